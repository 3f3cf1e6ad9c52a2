"""Choose what models are measured on: texts, matching texts and a small collection."""

import logging
from dataclasses import dataclass, replace
from typing import Any

import regex  # type: ignore[import-untyped]
from datasets import Dataset, IterableDataset

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.load import load_collection, load_dev
from modeling_condenser.collection.reduce import sample_collection
from modeling_condenser.collection.sentences import SPACELESS

from .recipe import Measuring

logger = logging.getLogger(__name__)

# A character of a script without spaces is a word.
_WORDS = regex.compile(rf"[{SPACELESS}].*[{SPACELESS}]")
_STREAMED_ROWS = 20  # of a stream to read for each text in the sample


@dataclass(frozen=True)
class Sample:
    """What each model of a comparison is measured on."""

    measuring: Measuring
    texts: list[str]  # at least two different ones
    matches: Dataset  # `query`, and the `title` and `text` of a judged passage; or halves of texts
    small: Collection | None = None  # a small part of the collection

    @classmethod
    def choose(cls, measuring: Measuring, documents: Dataset | IterableDataset) -> "Sample":
        """Choose from documents with a column `text` and perhaps `title`; a stream's first ones."""
        texts = _choose_texts(documents, measuring.texts, seed=measuring.sample_seed)
        small = None
        if measuring.collection is not None:
            collection, split = _load_asked(measuring.collection, measuring.split)
            measuring = replace(measuring, split=split)
            small = sample_collection(
                collection,
                n_queries=measuring.queries,
                n_passages=measuring.passages,
                seed=measuring.sample_seed,
            )
        if small is None:
            matches = list(map(_halves, texts))
        else:  # the passage of the highest grade, then of the lowest id
            best = {q: min(own, key=lambda p: (-own[p], p)) for q, own in small.qrels.items()}
            passages = {passage["_id"]: passage for passage in small.passages}
            matches = [{"query": small.queries[q], **passages[p]} for q, p in best.items()]
        return cls(measuring, texts, Dataset.from_list(matches), small)

    def facts(self) -> dict[str, Any]:
        """Counts, for a record; the sample itself follows from settings and documents."""
        facts: dict[str, Any] = {"texts": len(self.texts), "pairs": len(self.matches)}
        if self.small is None:
            return {**facts, "pairs_are": "halves of one text"}
        counts = {"queries": len(self.small.queries), "passages": len(self.small.passages)}
        collection = {"name": self.small.name, "split": self.measuring.split, **counts}
        return {**facts, "pairs_are": "query and judged passage", "collection": collection}


def _load_asked(name: str, split: str | None) -> tuple[Collection, str]:
    """A collection with the queries of a split, by default dev or else test; and the split."""
    if split is None:
        if dev := load_dev(name, judged="test"):
            return dev, "dev"
        split = "test"
        logger.warning("Readiness is measured on test queries: do not choose by it.")
    return load_collection(name, split=split), split


def _choose_texts(documents: Any, n: int, *, seed: int) -> list[str]:
    """Up to n different texts of two words or more."""
    if isinstance(documents, IterableDataset):
        rows = documents.take(_STREAMED_ROWS * n)
    else:
        rows = documents.shuffle(seed, keep_in_memory=True)
    chosen: dict[str, None] = {}  # in order
    for row in rows:
        text = " ".join(f"{row.get('title') or ''} {row['text'] or ''}".split())
        if " " in text or _WORDS.search(text):
            chosen[text] = None
        if len(chosen) == n:
            break
    if len(chosen) < 2:
        raise ValueError(
            f"There are {len(chosen)} different texts of 2 words or more, but readiness is "
            "measured on at least 2: give more text."
        )
    return list(chosen)


def _halves(text: str) -> dict[str, str]:
    blank = " " if " " in text else ""
    words = text.split() if blank else text
    middle = len(words) // 2
    return {"query": blank.join(words[:middle]), "title": "", "text": blank.join(words[middle:])}
