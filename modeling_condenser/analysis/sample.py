"""Choose what models are measured on: texts, matching texts and a small collection."""

import logging
from dataclasses import dataclass, replace
from typing import Any

from datasets import Dataset

from modeling_condenser.collection.collection import Collection, sample_collection
from modeling_condenser.collection.load import load_collection, load_dev

from .recipe import Measuring

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sample:
    """What each model of a comparison is measured on."""

    measuring: Measuring
    texts: list[str]  # at least two different ones
    matches: Dataset  # `query`, and the `title` and `text` of a judged passage; or halves of texts
    small: Collection | None = None  # a small part of the collection

    @classmethod
    def choose(cls, measuring: Measuring, documents: Dataset) -> "Sample":
        """Choose from documents with a column `text` and perhaps `title`."""
        seed, name = measuring.sample_seed, measuring.collection
        texts = _choose_texts(documents, measuring.texts, seed=seed)
        if name is None:
            return cls(measuring, texts, Dataset.from_list([_halve(text) for text in texts]))
        collection, split = _load_queries(name, measuring.split)
        sizes = {"n_queries": measuring.queries, "n_passages": measuring.passages}
        small = sample_collection(collection, **sizes, seed=seed)
        passages = {passage["_id"]: passage for passage in small.passages}
        matches = []
        for query, grades in small.qrels.items():
            best = max(sorted(grades), key=grades.__getitem__)  # of the highest grade
            matches.append({"query": small.queries[query], **passages[best]})
        return cls(replace(measuring, split=split), texts, Dataset.from_list(matches), small)

    def facts(self) -> dict[str, Any]:
        """Counts, for a record; the sample itself follows from settings and documents."""
        facts: dict[str, Any] = {"texts": len(self.texts), "pairs": len(self.matches)}
        if self.small is None:
            return {**facts, "pairs_are": "halves of one text"}
        counts = {"queries": len(self.small.queries), "passages": len(self.small.passages)}
        collection = {"name": self.small.name, "split": self.measuring.split, **counts}
        return {**facts, "pairs_are": "query and judged passage", "collection": collection}


def _load_queries(name: str, split: str | None) -> tuple[Collection, str]:
    """A collection with the queries of a split, by default dev or else test; and the split."""
    if split is None:
        if dev := load_dev(name, judged="test"):
            return dev, "dev"
        split = "test"
        logger.warning("Readiness is measured on test queries: do not choose by it.")
    return load_collection(name, split=split), split


def _choose_texts(documents: Dataset, n: int, *, seed: int) -> list[str]:
    """Up to n different texts of two words, or of two characters of a script without spaces."""
    chosen: dict[str, None] = {}  # in order
    for row in documents.shuffle(seed, keep_in_memory=True):
        text = " ".join(f"{row.get('title') or ''} {row['text'] or ''}".split())
        if " " in text or (len(text) > 1 and not text.isascii()):
            chosen[text] = None
        if len(chosen) == n:
            break
    if len(chosen) < 2:
        raise ValueError(
            f"There are {len(chosen)} different texts of 2 words or more, but readiness is "
            "measured on at least 2: give more text."
        )
    return list(chosen)


def _halve(text: str) -> dict[str, str]:
    blank = " " if " " in text else ""
    words = text.split() if blank else text
    middle = len(words) // 2
    return {"query": blank.join(words[:middle]), "title": "", "text": blank.join(words[middle:])}
