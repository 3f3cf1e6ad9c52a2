"""Count what there is in a text, and report what training does not read of it."""

import logging
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from .arguments import CondenserTrainingArguments

logger = logging.getLogger(__name__)

_ROWS = 4096  # that are counted at once


class Survey(NamedTuple):
    """What there is in N blocks, or in N texts of which pairs are made."""

    n_parts: np.ndarray  # (N,) int64, 1 for a block
    lengths: np.ndarray  # (N,) int64, tokens
    n_read: np.ndarray  # (N,) float64, tokens that an epoch reads on average
    n_unknown: int  # tokens that stand for what the tokenizer does not know


def survey(
    texts: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    *,
    room: int,
    query_room: int | None = None,
    removal_probability: float = 0.0,
) -> Survey:
    """Count the tokens of blocks or texts (`BlockBuilder`).

    Args:
        texts: blocks; or texts of parts, of which `draw_query` makes pairs, or without a
            `query_room` `draw_spans`.
        tokenizer: that made them.
        room: tokens of an example, without special tokens.
        query_room: tokens of a pseudo-query, without special tokens.
        removal_probability: share of contexts without their pseudo-query.
    """
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    n_unknown = 0
    for batch in texts.with_format("arrow").iter(batch_size=_ROWS):
        ids = batch["input_ids"].combine_chunks()
        n_unknown += int((ids.flatten().to_numpy() == tokenizer.unk_token_id).sum())
        lengths = pc.list_value_length(ids).to_numpy().astype(np.int64)
        if "starts" not in batch.column_names:
            found.append((np.ones_like(lengths), lengths, np.minimum(lengths, room)))
            continue
        column = batch["starts"].combine_chunks()
        starts, n_parts = column.flatten().to_numpy(), pc.list_value_length(column).to_numpy()
        ends = np.append(starts[1:], 0)
        ends[np.cumsum(n_parts) - 1] = lengths
        parts, text = ends - starts, np.repeat(np.arange(len(lengths)), n_parts)
        drawn = 2.0 * np.minimum(parts, room)
        if query_room is not None:
            whole = lengths[text]
            removed = np.minimum(parts, query_room) + np.minimum(whole - parts, room)
            drawn = removal_probability * removed
            drawn += (1 - removal_probability) * np.minimum(whole, room)
        n_read = np.bincount(text, weights=drawn) / n_parts * (n_parts > 1)
        found.append((n_parts, lengths, n_read))
    n_parts, lengths, n_read = map(np.concatenate, zip(*found, strict=True))
    return Survey(n_parts, lengths, n_read, n_unknown)


def with_two_parts(
    texts: Dataset, found: Survey, n_documents: int
) -> tuple[Dataset, dict[str, int]]:
    """The texts that a pair can be made of, and how much is left out, which is logged.

    Raises:
        ValueError: there is no such text.
    """
    is_kept = found.n_parts > 1
    if not is_kept.any():
        raise ValueError(
            f"None of the {n_documents} documents can be cut in two to make a pair: use "
            "pretrain/own-text-condenser, or give whole documents (join_rows), or shorter spans "
            "(max_length, or span_length)."
        )
    documents = np.asarray(texts.with_format("numpy")["document"][:])
    left_out = {
        "n_documents_left_out": n_documents - len(np.unique(documents[is_kept])),
        "n_blocks_left_out": int((~is_kept).sum()),
        "n_tokens_left_out": int(found.lengths[~is_kept].sum()),
    }
    if any(left_out.values()):
        all_of_them = (n_documents, len(texts), int(found.lengths.sum()))
        logger.warning(
            "%d of %d documents, %d of %d blocks and %d of %d tokens cannot be cut in two and are "
            "left out.",
            *chain(*zip(left_out.values(), all_of_them, strict=True)),
        )
    return texts if is_kept.all() else texts.select(np.flatnonzero(is_kept)), left_out


def report_share(found: Survey, n_rows: int, arguments: CondenserTrainingArguments) -> None:
    """Log which share of the tokens an epoch reads if it is below 99 %; `n_rows` are trained on."""
    n_tokens = int(found.lengths.sum())
    share = found.n_read.sum() / n_tokens
    if arguments.dataloader_drop_last:
        share *= 1 - n_rows % (arguments.train_batch_size * arguments.world_size) / n_rows
    if share < 0.99:
        how = {
            "cocondenser": "two spans of each document",
            "ict": "one sentence and the rest of each block",
        }.get(arguments.objective, "a random window of max_length tokens of each longer block")
        logger.warning(
            "An epoch reads %.1f %% of the %d tokens of the text: %s.", 100 * share, n_tokens, how
        )


def warn_of_unknown(tokenizer: PreTrainedTokenizerBase, n_unknown: int, n_tokens: int) -> bool:
    """Log a warning, and return True, if more than a fifth of the tokens is the unknown one."""
    ends = (tokenizer.sep_token_id, tokenizer.eos_token_id)  # that some vocabularies use as unknown
    if tokenizer.unk_token_id in ends or n_unknown <= n_tokens / 5:
        return False
    logger.warning(
        "%.0f %% of the tokens of the text are %s, the tokenizer's token for what it does not know,"
        " which the model cannot read: choose an encoder for the language and script of the text.",
        100 * n_unknown / n_tokens,
        tokenizer.unk_token,
    )
    return True
