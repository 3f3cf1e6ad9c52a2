"""BM25: the baseline that every dense retriever is compared with.

In: passages and queries as text. Out: a run. The settings are those of the collections' reference
figures (k1 0.9, b 0.4, as Anserini's; English stopwords removed, no stemming, title and text in one
field; Lucene's variant, Kamphuis et al. 2020, as implemented in bm25s).
"""

import bm25s
import numpy as np
from datasets import Dataset
from tqdm.auto import tqdm

from .runs import Run, best_first, order_of_ids


class Bm25:
    """A BM25 index over the passages of a collection, in memory."""

    def __init__(
        self, passages: Dataset, *, k1: float = 0.9, b: float = 0.4, show_progress: bool = False
    ) -> None:
        """Tokenize and index the passages.

        Args:
            passages: columns `_id`, `title`, `text`, as in `Collection.passages`.
            k1: term frequency saturation, at least 0.
            b: length normalisation, from 0 (none) to 1 (full).
            show_progress: show bars while indexing and searching.

        Raises:
            ValueError: there are no passages, or k1 or b is out of range.
        """
        if len(passages) == 0:
            raise ValueError("0 passages to index, expected at least one: load a collection first")
        if k1 < 0 or not 0 <= b <= 1:
            raise ValueError(f"k1={k1}, b={b}: expected k1 >= 0 and 0 <= b <= 1; try 0.9 and 0.4")
        self.show_progress = show_progress
        self.passage_ids: list[str] = list(passages["_id"])
        self._id_order = order_of_ids(self.passage_ids)
        titles, texts = passages["title"], passages["text"]
        documents = [f"{title} {text}" for title, text in zip(titles, texts, strict=True)]
        tokens = bm25s.tokenize(documents, stopwords="en", show_progress=show_progress)
        self._index = bm25s.BM25(method="lucene", k1=k1, b=b)
        self._index.index(tokens, show_progress=show_progress)

    def search(self, queries: dict[str, str], *, depth: int = 100) -> Run:
        """Rank the passages for each query.

        Args:
            queries: query id -> text.
            depth: how many passages a query gets at most.

        Returns:
            A run; passages that share no word with the query (score 0) are left out, so a query
            can have fewer than `depth` passages, or none.

        Raises:
            ValueError: depth is below 1.
        """
        if depth < 1:
            raise ValueError(f"depth {depth}: expected at least 1, e.g. 100")
        bar = tqdm(queries.items(), desc="BM25", disable=not self.show_progress)
        return {query_id: self._search_one(text, depth) for query_id, text in bar}

    def _search_one(self, text: str, depth: int) -> dict[str, float]:
        # Not bm25s' own top-k: it breaks ties by where numpy's partition happens to leave them.
        [words] = bm25s.tokenize([text], stopwords="en", return_ids=False, show_progress=False)
        scores: np.ndarray = self._index.get_scores_from_ids(self._index.get_tokens_ids(words))
        best = best_first(scores, id_order=self._id_order, depth=depth)
        return {self.passage_ids[i]: float(scores[i]) for i in best if scores[i] > 0}
