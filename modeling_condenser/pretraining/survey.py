"""Count what there is in a text, and report what cannot be used of it."""

import logging
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

_ROWS = 4096  # that are counted at once


class Survey(NamedTuple):
    """What there is in N blocks, or in N texts of which pairs are made."""

    n_parts: np.ndarray  # (N,) int64, 1 for a block
    lengths: np.ndarray  # (N,) int64, tokens
    n_unknown: int  # tokens that stand for what the tokenizer does not know


def survey(texts: Dataset, tokenizer: PreTrainedTokenizerBase) -> Survey:
    """Count the parts and tokens of blocks or texts (`BlockBuilder`), made by this tokenizer."""
    n_parts: list[np.ndarray] = []
    lengths: list[np.ndarray] = []
    n_unknown = 0
    for batch in texts.with_format("arrow").iter(batch_size=_ROWS):
        ids = batch["input_ids"].combine_chunks()
        n_unknown += int((ids.flatten().to_numpy() == tokenizer.unk_token_id).sum())
        lengths.append(pc.list_value_length(ids).to_numpy().astype(np.int64))
        parts = np.ones_like(lengths[-1])
        if "starts" in batch.column_names:
            parts = pc.list_value_length(batch["starts"].combine_chunks()).to_numpy()
        n_parts.append(parts)
    return Survey(np.concatenate(n_parts), np.concatenate(lengths), n_unknown)


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
