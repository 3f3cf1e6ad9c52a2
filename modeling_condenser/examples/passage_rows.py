"""Passages by id and by content, in bulk: a collection in; rows of passages, and texts, out.

Mined negatives name millions of ids. A table of all ids and texts would hold the collection in
memory; here a passage costs 24 bytes: two hashes and a place.
"""

from collections.abc import Sequence

import numpy as np
from datasets import Dataset
from tqdm.auto import tqdm

from modeling_condenser.repository.contract import EncodingContract

_BATCH_ROWS = 100_000


class PassageRows:
    """Finds the rows of passages by their ids, and tells which passages have the same text.

    Args:
        passages: columns `_id` (unique), `title`, `text`; N rows.

    Attributes:
        content: hashes of title and text, (N,) int64; equal texts have equal ones.
    """

    def __init__(self, passages: Dataset):
        self.passages = passages
        self.content = np.empty(len(passages), dtype=np.int64)
        hashes = np.empty(len(passages), dtype=np.int64)
        table = passages.select_columns(["_id", "title", "text"]).with_format("arrow")
        with tqdm(total=len(passages), desc="indexing passages", delay=2) as bar:
            first = 0
            for batch in table.iter(batch_size=_BATCH_ROWS):
                ids, titles, texts = (batch[name].to_pylist() for name in batch.column_names)
                rows = slice(first, first + len(ids))
                hashes[rows] = np.fromiter(map(hash, ids), np.int64, len(ids))
                contents = map(hash, zip(titles, texts, strict=True))
                self.content[rows] = np.fromiter(contents, np.int64, len(ids))
                first += len(ids)
                bar.update(len(ids))
        self._order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._order]
        self._shared = np.unique(self._hashes[1:][self._hashes[1:] == self._hashes[:-1]])

    def find(self, ids: Sequence[str]) -> np.ndarray:
        """The rows of ids, (n,) int64; -1 for an id that no passage has.

        Ids are told apart by 64 bits, and by themselves where two passages share these. An id that
        no passage has is taken for one of 10 million with a probability of 5e-13.
        """
        wanted = np.fromiter(map(hash, ids), np.int64, len(ids))
        places = np.minimum(np.searchsorted(self._hashes, wanted), len(self._hashes) - 1)
        rows = np.where(self._hashes[places] == wanted, self._order[places], -1)
        for i in np.flatnonzero(np.isin(wanted, self._shared)).tolist():
            rows[i] = self._find_among(int(places[i]), int(wanted[i]), ids[i])
        return rows

    def _find_among(self, place: int, wanted: int, wanted_id: str) -> int:
        """The row of an id among those that share a hash, of which `place` is the first."""
        while place < len(self._hashes) and self._hashes[place] == wanted:
            row = int(self._order[place])
            if self.passages[row]["_id"] == wanted_id:
                return row
            place += 1
        return -1


class PassageTexts:
    """Passages as they are encoded, by row.

    Args:
        passages: columns `title` and `text`.
        contract: how they become one text.
    """

    def __init__(self, passages: Dataset, contract: EncodingContract):
        self.passages = passages.select_columns(["title", "text"])
        self.contract = contract

    def __call__(self, rows: Sequence[int]) -> list[str]:
        """The texts of passages, in the order of the rows."""
        unique, inverse = np.unique(np.asarray(rows, dtype=np.int64), return_inverse=True)
        found = self.passages[unique]
        pairs = zip(found["title"], found["text"], strict=True)
        texts = [self.contract.passage(title, text) for title, text in pairs]
        return [texts[i] for i in inverse]
