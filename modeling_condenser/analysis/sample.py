"""The fixed sample: documents in, a few texts and pairs of texts that belong together out.

It follows from the texts and a seed alone, so that every checkpoint, and another run on the same
text, is measured on the same.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from datasets import Dataset, IterableDataset

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.lookup import find_rows
from modeling_condenser.pretraining.blocks import sentence_starts

_SEARCHED = 20  # rows looked at for each text that is wanted, beyond which a stream is too poor
HALVES, JUDGED = "halves of one text", "query and judged passage"


class Pair(NamedTuple):
    """Two texts that belong together; the second may have a title."""

    first: str
    second: str
    title: str = ""


@dataclass(frozen=True)
class Sample:
    """Texts and pairs that models are measured on.

    Attributes:
        texts: different from each other, at least two.
        pairs: of texts that belong together.
        kind: of the pairs, in words.
        seed: that they and their masks follow from.
    """

    texts: tuple[str, ...]
    pairs: tuple[Pair, ...]
    kind: str
    seed: int

    @property
    def fingerprint(self) -> str:
        """Identifies texts, pairs and seed: 64 hexadecimal digits."""
        content = json.dumps([self.texts, self.pairs, self.kind, self.seed], ensure_ascii=False)
        return hashlib.sha256(content.encode()).hexdigest()


def make_sample(
    documents: Dataset | IterableDataset,
    n_texts: int,
    *,
    seed: int,
    collection: Collection | None = None,
    n_pairs: int = 50,
) -> Sample:
    """Choose a sample.

    Args:
        documents: with a column `text`, and perhaps `title`; of a stream the first are taken.
        n_texts: how many to take, where there are so many.
        seed: decides which.
        collection: whose judged pairs are taken; by default the halves of the texts are.
        n_pairs: how many judged pairs, at most.

    Raises:
        ValueError: there are no two different texts of at least two words, or the collection has
            no judged passage.
    """
    texts = _choose_texts(documents, n_texts, seed=seed)
    if collection is None:
        return Sample(texts, tuple(map(halve, texts)), HALVES, seed)
    return Sample(texts, _judged_pairs(collection, n_pairs, seed=seed), JUDGED, seed)


def _choose_texts(documents: Dataset | IterableDataset, n: int, *, seed: int) -> tuple[str, ...]:
    chosen: dict[str, None] = {}
    for row in _rows(documents, n, seed):
        text = " ".join(f"{row.get('title') or ''} {row['text'] or ''}".split())
        if " " in text:
            chosen[text] = None
        if len(chosen) == n:
            break
    if len(chosen) < 2:
        raise ValueError(
            f"Readiness is measured on at least 2 different texts of 2 words or more, but "
            f"{len(chosen)} came: without another text there is no other vector to swap with. "
            "Give more text."
        )
    return tuple(chosen)


def _rows(documents: Dataset | IterableDataset, n: int, seed: int) -> Iterator[dict[str, Any]]:
    if isinstance(documents, IterableDataset):
        yield from islice(documents, _SEARCHED * n)
    else:
        order = np.random.default_rng(seed).permutation(len(documents))
        yield from (documents[int(row)] for row in order)


def halve(text: str) -> Pair:
    """A text of two words or more, cut where the sentence begins that is nearest to its middle.

    A text of one sentence is cut between two words.
    """
    starts = [start for start in sentence_starts(text) if text[:start].strip()]
    starts = starts or [i + 1 for i, letter in enumerate(text) if letter == " "]
    middle = min(starts, key=lambda start: abs(2 * start - len(text)))
    return Pair(text[:middle].strip(), text[middle:].strip())


def _judged_pairs(collection: Collection, n: int, *, seed: int) -> tuple[Pair, ...]:
    """Queries, at random, each with its best judged passage; the lowest id of equally good ones."""
    best = {
        query: min(passages, key=lambda i: (-passages[i], i))
        for query, passages in collection.qrels.items()
        if any(grade > 0 for grade in passages.values())
    }
    if not best:
        raise ValueError(
            f"{collection.name} judges no passage as relevant, so it has no texts that are known "
            "to belong together: choose another split or collection, or leave collection out."
        )
    queries = list(best)
    order = np.random.default_rng(seed).permutation(len(queries))[:n]
    chosen = [queries[i] for i in order]
    rows = find_rows(collection.passages, {best[query] for query in chosen})
    pairs = []
    for query in chosen:
        passage = collection.passages[rows[best[query]]]
        pairs.append(Pair(collection.queries[query], passage["text"], passage["title"]))
    return tuple(pairs)
