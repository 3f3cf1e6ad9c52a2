"""Twins: a collection and its positives in, other passages with the same text out.

Collections hold copies. A copy of a positive that is not judged would be mined as its query's
hardest negative.
"""

import logging
from collections.abc import Collection

import numpy as np
from datasets import Dataset
from tqdm.auto import tqdm

from modeling_condenser.collection.lookup import find_rows

logger = logging.getLogger(__name__)

_BATCH_ROWS = 50_000


def find_twins(
    passages: Dataset, positive_ids: Collection[str], *, progress: bool = False
) -> dict[str, tuple[str, ...]]:
    """Find the passages whose text equals that of a positive.

    Texts are compared without their titles, unless they are empty. They are told apart by a hash of
    64 bits, so that memory grows by 8 bytes a passage.

    Args:
        passages: columns `_id`, `title`, `text`; N rows.
        positive_ids: of passages.
        progress: whether to show a bar.

    Returns:
        Positive's id -> ids of all other passages with its text, where there are any.

    Raises:
        ValueError: an id that no passage has.
    """
    hashes = _hash_texts(passages, progress=progress)  # (N,)
    rows = find_rows(passages, positive_ids)
    same = np.flatnonzero(np.isin(hashes, hashes[list(rows.values())]))
    _, inverse, sizes = np.unique(hashes[same], return_inverse=True, return_counts=True)
    shared = same[sizes[inverse] > 1]
    groups: dict[int, list[str]] = {}
    for first in range(0, len(shared), _BATCH_ROWS):
        batch = shared[first : first + _BATCH_ROWS]
        for row, passage_id in zip(batch, passages[batch]["_id"], strict=True):
            groups.setdefault(int(hashes[row]), []).append(passage_id)
    twins = {}
    for positive_id, row in rows.items():
        others = tuple(i for i in groups.get(int(hashes[row]), ()) if i != positive_id)
        if others:
            twins[positive_id] = others
    logger.info("%d of %d positives have a copy in the collection.", len(twins), len(rows))
    return twins


def _hash_texts(passages: Dataset, *, progress: bool) -> np.ndarray:
    """A hash of each text, (N,) int64; Python's own, which serves within one process."""
    hashes = np.empty(len(passages), dtype=np.int64)
    first = 0
    table = passages.select_columns(["title", "text"]).with_format("arrow")
    with tqdm(total=len(passages), desc="Comparing texts", disable=not progress, delay=2) as bar:
        for batch in table.iter(batch_size=_BATCH_ROWS):
            titles, texts = batch["title"].to_pylist(), batch["text"].to_pylist()
            values = [hash(text or f"\0{title}") for title, text in zip(titles, texts, strict=True)]
            hashes[first : first + len(values)] = values
            first += len(values)
            bar.update(len(values))
    return hashes
