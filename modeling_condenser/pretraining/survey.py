"""Count what there is in a text, and report what cannot be used of it."""

import logging
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)


class Survey(NamedTuple):
    """What there is in N blocks, or in N texts of which pairs are made."""

    n_parts: np.ndarray  # (N,) integers, 1 for a block
    lengths: np.ndarray  # (N,) int64, tokens
    n_unknown: int  # tokens that stand for what the tokenizer does not know


def survey(texts: Dataset, tokenizer: PreTrainedTokenizerBase) -> Survey:
    """Count the parts and tokens of blocks or texts (`BlockBuilder`), made by this tokenizer."""
    columns = texts.with_format("arrow")[:]  # of the file, not in memory
    ids = columns["input_ids"]
    lengths = pc.list_value_length(ids).to_numpy().astype(np.int64)
    n_parts = np.ones_like(lengths)
    if "part_starts" in columns.column_names:
        n_parts = pc.list_value_length(columns["part_starts"]).to_numpy()
    n_unknown = 0
    for chunk in ids.chunks:
        n_unknown += int(np.sum(chunk.flatten().to_numpy() == tokenizer.unk_token_id))
    return Survey(n_parts, lengths, n_unknown)


def with_two_parts(
    texts: Dataset, counts: Survey, n_documents: int
) -> tuple[np.ndarray, dict[str, int]]:
    """Of which texts a pair can be made, (N,) bool, and how much is left out, which is logged.

    Raises:
        ValueError: there is no such text.
    """
    is_kept = counts.n_parts > 1
    if not is_kept.any():
        raise ValueError(
            f"None of the {n_documents} documents can be cut in two to make a pair: use "
            "pretrain/own-text-condenser, or give whole documents (join_rows), or a shorter "
            "max_length."
        )
    documents = np.asarray(texts.with_format("numpy")["document"][:])
    n_kept = len(np.unique(documents[is_kept]))
    left_out = {
        "n_documents_left_out": n_documents - n_kept,
        "n_blocks_left_out": int((~is_kept).sum()),
        "n_tokens_left_out": int(counts.lengths[~is_kept].sum()),
    }
    if any(left_out.values()):
        logger.warning(
            "%d of %d documents, %d of %d blocks, %d of %d tokens cannot be cut in two and are "
            "left out.",
            *(left_out["n_documents_left_out"], n_documents),
            *(left_out["n_blocks_left_out"], len(texts)),
            *(left_out["n_tokens_left_out"], counts.lengths.sum()),
        )
    return is_kept, left_out
