"""BM25 search with bm25s, the baseline for dense retrievers.

English stopwords are removed, words are not stemmed, and title and text are one field. The formula
is Lucene's (Kamphuis et al. 2020, "Lucene (accurate)"). Anserini also stems words (Porter), so its
published figures differ a little from those of a preset here.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path

import bm25s
import numpy as np
from datasets import Dataset
from tqdm.auto import tqdm

from modeling_condenser.collection.fingerprint import fingerprint_passages
from modeling_condenser.runs.run_folder import whole_folder
from modeling_condenser.runs.whole_files import write_json

from .runs import Run, best_first, order_of_ids

PRESETS: Mapping[str, tuple[float, float]] = {
    # Anserini's and DPR's default (Karpukhin et al. 2020). Anserini's documents report with it the
    # BM25 rows of Condenser, Tables 5 (MRR@10 .184, R@1000 .853) and 8 (MRR@100 .230), and of the
    # thesis, Table 4.2 (MAP .1926, R@1000 .8526).
    "default": (0.9, 0.4),
    # docs/experiments-msmarco-passage.md: the best of a grid for recall@1000 (.8573, MRR@10 .1874),
    # and for MRR@10 and MAP (MRR@10 .1892, as in Condenser, Table 6).
    "msmarco-passage": (0.82, 0.68),
    "msmarco-passage-mrr": (0.60, 0.62),
    # docs/regressions-msmarco-doc.md: for recall@100 (.8076, MRR@100 .2770).
    "msmarco-document": (4.46, 0.82),
    # The thesis, section 4.2: "optimized for average precision". docs/experiments-msmarco-doc.md
    # reports them for MS MARCO documents (MAP .2788), not for the passages that the thesis ranks.
    "thesis": (3.44, 0.87),
}
"""Name -> k1 and b."""

INDEX_FOLDER, IDENTITY_FILE = "index", "bm25.json"
_BATCH_PASSAGES = 10_000


@dataclass(frozen=True)
class Bm25Identity:
    """What a stored index was made from.

    Attributes:
        k1: term frequency saturation.
        b: length normalisation.
        passages: fingerprint of the collection.
        bm25s: version of the library.
    """

    k1: float
    b: float
    passages: str
    bm25s: str = bm25s.__version__


class Bm25:
    """A BM25 index over the passages of a collection.

    Attributes:
        k1: term frequency saturation.
        b: length normalisation.
        passage_ids: of the passages, in their order.
    """

    def __init__(
        self,
        passages: Dataset,
        *,
        preset: str | None = None,
        k1: float | None = None,
        b: float | None = None,
        folder: str | Path | None = None,
        show_progress: bool = False,
    ) -> None:
        """Tokenize and index the passages, or open the index in a folder.

        Memory: about 50 bytes per word of the passages while indexing, then 8; an index in a folder
        is mapped into memory.

        Args:
            passages: columns `_id`, `title`, `text`, as in `Collection.passages`.
            preset: a name of `PRESETS`; "default" if neither k1 nor b are given.
            k1: term frequency saturation, at least 0; by default 0.9.
            b: length normalisation, from 0 (none) to 1 (full); by default 0.4.
            folder: for the index, which later calls open again; None to keep it in memory only.
            show_progress: show bars while indexing and searching.

        Raises:
            ValueError: there are no passages, k1 or b is out of range, there is no such preset, or
                the folder holds another index.
        """
        self.k1, self.b = read_settings(preset, k1, b)
        if len(passages) == 0:
            raise ValueError("There are no passages to index; expected at least one.")
        self.show_progress = show_progress
        self.passage_ids: list[str] = list(passages["_id"])
        self._id_order = order_of_ids(self.passage_ids)
        if folder is None:
            self._index = self._make_index(passages)
        else:
            self._index = self._open_index(passages, Path(folder))

    def search(self, queries: Mapping[str, str], *, depth: int = 100) -> Run:
        """Rank the passages for each query.

        Args:
            queries: query id -> text.
            depth: the most passages per query.

        Returns:
            A run without passages that share no word with the query, so a query can have fewer
            than `depth` passages, or none.

        Raises:
            ValueError: depth is below 1.
        """
        if depth < 1:
            raise ValueError(f"depth is {depth}, expected at least 1, e.g. 100.")
        bar = tqdm(queries.items(), desc="BM25", unit="query", disable=not self.show_progress)
        return {query_id: self._search_one(text, depth) for query_id, text in bar}

    def _search_one(self, text: str, depth: int) -> dict[str, float]:
        # bm25s' own top-k does not break ties by id.
        [words] = bm25s.tokenize([text], stopwords="en", return_ids=False, show_progress=False)
        scores = self._index.get_scores_from_ids(self._index.get_tokens_ids(words))  # (N,)
        found = np.flatnonzero(scores > 0)
        scores = scores[found]
        best = best_first(scores, id_order=self._id_order[found], depth=depth)
        ids = [self.passage_ids[row] for row in found[best].tolist()]
        return dict(zip(ids, scores[best].tolist(), strict=True))

    def _make_index(self, passages: Dataset) -> bm25s.BM25:
        vocabulary: dict[str, int] = {}
        words: list[list[int]] = []
        bar = tqdm(total=len(passages), desc="tokenize", disable=not self.show_progress)
        with bar:
            for texts in _texts(passages):
                tokens = bm25s.tokenize(texts, stopwords="en", show_progress=False)
                ids = [vocabulary.setdefault(word, len(vocabulary)) for word in tokens.vocab]
                words += [[ids[i] for i in of_passage] for of_passage in tokens.ids]
                bar.update(len(texts))
        if not vocabulary:
            raise ValueError(
                f"None of the {len(passages)} passages has a word beside stopwords: expected text "
                "in the columns title and text."
            )
        logging.getLogger("bm25s").setLevel(logging.WARNING)  # it logs each of its steps
        index = bm25s.BM25(method="lucene", k1=self.k1, b=self.b)
        tokens = bm25s.tokenization.Tokenized(ids=words, vocab=vocabulary)
        index.index(tokens, show_progress=self.show_progress)
        return index

    def _open_index(self, passages: Dataset, folder: Path) -> bm25s.BM25:
        identity = Bm25Identity(self.k1, self.b, fingerprint_passages(passages))
        file = folder / IDENTITY_FILE
        if not file.is_file():
            if folder.exists() and any(folder.iterdir()):
                raise ValueError(
                    f"{folder} is not empty and holds no BM25 index ({IDENTITY_FILE} is missing): "
                    "name another folder."
                )
            with whole_folder(folder) as partial:
                self._make_index(passages).save(partial / INDEX_FOLDER, show_progress=False)
                write_json(partial / IDENTITY_FILE, asdict(identity))
        stored = json.loads(file.read_text())
        if stored != asdict(identity):
            raise ValueError(
                f"{folder} holds a BM25 index of {stored}, expected {asdict(identity)}: name "
                "another folder, or remove this one to build the index again."
            )
        return bm25s.BM25.load(folder / INDEX_FOLDER, mmap=True)


def read_settings(
    preset: str | None = None, k1: float | None = None, b: float | None = None
) -> tuple[float, float]:
    """The k1 and b of a preset, or those given, with defaults.

    Raises:
        ValueError: the preset is unknown or given together with k1 or b, or these are out of range.
    """
    if preset is None:
        default_k1, default_b = PRESETS["default"]
        k1, b = default_k1 if k1 is None else k1, default_b if b is None else b
    elif preset not in PRESETS:
        nearest = get_close_matches(preset, PRESETS, n=1)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        raise ValueError(
            f"There is no BM25 preset {preset!r}: expected {', '.join(PRESETS)}.{hint}"
        )
    elif k1 is not None or b is not None:
        raise ValueError(
            f"Got preset {preset!r} and k1={k1}, b={b}: expected a preset or the two numbers."
        )
    else:
        k1, b = PRESETS[preset]
    if not (0 <= k1 < float("inf") and 0 <= b <= 1):
        raise ValueError(f"k1={k1}, b={b}: expected k1 >= 0 and 0 <= b <= 1, e.g. 0.9 and 0.4.")
    return k1, b


def _texts(passages: Dataset) -> Iterator[list[str]]:
    """Titles and texts of the passages, in batches."""
    for batch in passages.select_columns(["title", "text"]).iter(batch_size=_BATCH_PASSAGES):
        pairs = zip(batch["title"], batch["text"], strict=True)
        yield [f"{title} {text}" for title, text in pairs]
