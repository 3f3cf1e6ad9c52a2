"""Find each query's positives, and other passages with the text of a positive."""

import logging
from collections.abc import Collection as Ids
from collections.abc import Mapping

import numpy as np
from datasets import Dataset
from tqdm.auto import tqdm

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.lookup import find_rows

logger = logging.getLogger(__name__)

Positives = Mapping[str, tuple[str, ...]]
"""Query id -> ids of its positives, at least one."""

_BATCH_ROWS = 50_000


def judged_positives(collection: Collection) -> dict[str, tuple[str, ...]]:
    """The passages graded above 0, of the queries that have any, in the collection's order."""
    positives = {}
    for query_id in collection.queries:
        grades = collection.qrels.get(query_id, {})
        relevant = tuple(passage_id for passage_id, grade in grades.items() if grade > 0)
        if relevant:
            positives[query_id] = relevant
    return positives


def find_copies(
    passages: Dataset, positive_ids: Ids[str], *, progress: bool = False
) -> dict[str, tuple[str, ...]]:
    """Find the passages that have the same text as a positive.

    A copy of a positive that is not judged would be mined as its query's hardest negative. Titles
    are compared only for passages without a text. Texts are compared by 64-bit hashes, so memory
    grows by 8 bytes a passage.

    Args:
        passages: columns `_id`, `title`, `text`; N rows.
        positive_ids: ids of passages.
        progress: whether to show a bar.

    Returns:
        Positive's id -> ids of all other passages with its text, if there are any.

    Raises:
        ValueError: no passage has one of the ids.
    """
    hashes = _hash_texts(passages, progress=progress)  # (N,)
    rows = find_rows(passages, positive_ids)
    same = np.flatnonzero(np.isin(hashes, hashes[list(rows.values())]))
    _, inverse, sizes = np.unique(hashes[same], return_inverse=True, return_counts=True)
    groups: dict[int, list[str]] = {}
    shared = same[sizes[inverse] > 1]
    for first in range(0, len(shared), _BATCH_ROWS):
        batch = shared[first : first + _BATCH_ROWS]
        for row, passage_id in zip(batch, passages[batch]["_id"], strict=True):
            groups.setdefault(int(hashes[row]), []).append(passage_id)
    copies = {}
    for positive_id, row in rows.items():
        others = tuple(i for i in groups.get(int(hashes[row]), ()) if i != positive_id)
        if others:
            copies[positive_id] = others
    logger.info("%d of %d positives have a copy in the collection.", len(copies), len(rows))
    return copies


def _hash_texts(passages: Dataset, *, progress: bool) -> np.ndarray:
    """A hash of each text, (N,) int64."""
    hashes = np.empty(len(passages), dtype=np.int64)
    table = passages.select_columns(["title", "text"]).with_format("arrow")
    with tqdm(total=len(passages), desc="Comparing texts", disable=not progress, delay=2) as bar:
        first = 0
        for batch in table.iter(batch_size=_BATCH_ROWS):
            titles, texts = batch["title"].to_pylist(), batch["text"].to_pylist()
            values = [hash(text or f"\0{title}") for title, text in zip(titles, texts, strict=True)]
            hashes[first : first + len(values)] = values
            first += len(values)
            bar.update(len(values))
    return hashes
