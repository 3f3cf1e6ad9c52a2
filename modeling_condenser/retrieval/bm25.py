"""BM25 search with bm25s, the baseline for dense retrievers.

The formula is Lucene's (Kamphuis et al. 2020, "Lucene (accurate)"). Title and text are one field;
`words.py` says what a word is. Anserini stems words for the papers' settings, too, so its published
figures differ slightly from those of the presets here.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
from datasets import Dataset

from modeling_condenser.collection.collection import fingerprint_passages
from modeling_condenser.collection.rows import iterate_rows
from modeling_condenser.encoding.embeddings import id_column
from modeling_condenser.files.run_folder import bar, build_once

from .runs import Run, cut_run
from .words import NO_LANGUAGE, PlainWords, Words, bm25s, recognize_language

logger = logging.getLogger(__name__)

INDEX_FOLDER = "index"
DEFAULT_PRESET = "default"
WORDS_VERSION = 3  # of `words.py`: stored indexes and runs of another one are made again

PRESETS: Mapping[str, tuple[float, float]] = {
    # Lucene's. All others are of papers, with their words (`PlainWords`).
    "default": (1.2, 0.75),
    # The default of Anserini and of DPR (Karpukhin et al. 2020); gives the BM25 rows of Condenser,
    # Tables 5 (MRR@10 .184) and 8 (MRR@100 .230), and of the thesis, Table 4.2 (MAP .1926).
    "dpr": (0.9, 0.4),
    # Anserini, docs/experiments-msmarco-passage.md: best for recall@1000, and for MRR@10 (.1892,
    # Condenser, Table 6).
    "msmarco-passage": (0.82, 0.68),
    "msmarco-passage-mrr": (0.60, 0.62),
    # Anserini, docs/regressions-msmarco-doc.md: best for recall@100 (.8076).
    "msmarco-document": (4.46, 0.82),
    # The thesis, section 4.2; Anserini reports them for MS MARCO documents (MAP .2788), not for the
    # passages that the thesis ranks.
    "thesis": (3.44, 0.87),
}
"""Name -> k1 and b."""


class Bm25:
    """A BM25 index over the passages of a collection.

    Indexing needs about 50 bytes of memory per word.

    Args:
        passages: columns `_id`, `title`, `text`.
        preset: a name of `PRESETS`, for k1 and b.
        k1: term frequency saturation, at least 0.
        b: length normalisation, from 0 (none) to 1 (full).
        language: of stopwords and stems, one of `LANGUAGES`, as in "french" or "fr"; by default
            recognised from the passages.
        folder: stores the index for later calls; by default it is only in memory.

    Raises:
        ValueError: a parameter is wrong, or no passage has a word.
    """

    def __init__(
        self,
        passages: Dataset,
        *,
        preset: str = "default",
        k1: float | None = None,
        b: float | None = None,
        language: str | None = None,
        folder: str | Path | None = None,
    ) -> None:
        default_k1, default_b = PRESETS[preset]
        self.k1, self.b = default_k1 if k1 is None else k1, default_b if b is None else b
        if not (self.k1 >= 0 and 0 <= self.b <= 1):
            raise ValueError(
                f"k1 is {self.k1} and b is {self.b}: expected k1 from 0, and b from 0 to 1."
            )
        self._is_recognized = language is None and preset == DEFAULT_PRESET
        if language is None:
            language = recognize_language(passages)
        self.words = Words(language) if preset == DEFAULT_PRESET else PlainWords(language)
        self._ids = id_column(passages)
        if folder is None:
            self.index = self._make_index(passages)
            return

        def build(new: Path) -> None:
            self._make_index(passages).save(new / INDEX_FOLDER, show_progress=False)

        identity = {"k1": self.k1, "b": self.b, "language": self.words.language}
        identity["words"] = f"{type(self.words).__name__} {WORDS_VERSION}"
        identity["passages"] = fingerprint_passages(passages)
        build_once(Path(folder), identity, build)
        self.index = bm25s.BM25.load(Path(folder) / INDEX_FOLDER, mmap=True)

    def search(self, queries: Mapping[str, str], depth: int = 100) -> Run:
        """Find up to `depth` passages that share words with each query (query id -> text)."""
        run: Run = {}
        for query_id, text in bar(queries.items(), "BM25", unit="query", total=len(queries)):
            scores = self.scores(text)
            # bm25s' own top-k does not break ties by id.
            rows = np.flatnonzero(scores > 0)
            if depth < len(rows):
                rows = rows[scores[rows] >= np.partition(scores[rows], -depth)[-depth]]
            ids = self._ids.take(pa.array(rows)).to_pylist()
            run[query_id] = dict(zip(ids, scores[rows].tolist(), strict=True))
        return cut_run(run, depth)

    def scores(self, query: str) -> np.ndarray:
        """The scores of all passages for a query, (N,) float32."""
        known = self.index.get_tokens_ids(self.words.terms(query))
        return self.index.get_scores_from_ids(known)

    def _make_index(self, passages: Dataset) -> bm25s.BM25:
        if self._is_recognized:
            language = self.words.language
            logger.info(
                "BM25: the language was not recognised, so nothing is stemmed and no word left "
                "out; bm25,language=german chooses German."
                if language == NO_LANGUAGE
                else f"BM25: the text looks {language.title()}, so words are stemmed and stopwords "
                "left out in this language; bm25,language=none keeps all words as they are."
            )
        rows = iterate_rows(passages.select_columns(["title", "text"]))
        shown = bar(rows, "BM25 index", unit="passage", total=len(passages))
        tokens = bm25s.tokenization.Tokenizer(
            lower=False, splitter=self.words.terms, stopwords=[]
        ).tokenize(
            (f"{row['title']} {row['text']}" for row in shown),
            length=len(passages),
            return_as="tuple",
            allow_empty=False,
            show_progress=False,
        )
        if not tokens.vocab:
            raise ValueError(
                "BM25 finds no word in the passages: expected letters or digits, other than "
                f"stopwords (language={self.words.language}; none keeps them)."
            )
        logging.getLogger("bm25s").setLevel(logging.WARNING)  # it logs each of its steps
        index = bm25s.BM25(method="lucene", k1=self.k1, b=self.b)
        index.index(tokens, show_progress=False)
        return index
