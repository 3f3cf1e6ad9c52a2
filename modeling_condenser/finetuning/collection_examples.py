"""Turn a collection's judgements, mined negatives or triples of ids into training examples.

The examples name passages by row. A passage's text is looked up when a batch needs it, so that a
passage which is a negative of a thousand queries is stored once.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from modeling_condenser.collection.collection import Collection
from modeling_condenser.hub.contract import EncodingContract
from modeling_condenser.mining.hard_negatives import HardNegatives, judged_positives
from modeling_condenser.mining.passage_index import PassageIndex

from .rows import LEFT_OUT, NO_NEGATIVE, Example, Fields

USELESS_NEGATIVE = "triples whose negative is relevant or has the text of the positive"
NOT_IN_SPLIT = "lines of queries that are not in the split"
WITHOUT_LINE = "queries of the split without a line of negatives"


@dataclass(frozen=True)
class CollectionExamples:
    """Makes examples whose `positive` and `negatives` are rows of the collection's passages."""

    collection: Collection
    contract: EncodingContract

    @cached_property
    def index(self) -> PassageIndex:
        return PassageIndex(self.collection.passages)

    @cached_property
    def _relevant(self) -> dict[str, tuple[str, ...]]:
        return judged_positives(self.collection)

    def judged(self) -> Iterator[Example]:
        """One example for each query and passage judged relevant for it."""
        if not self._relevant:
            hint = ": its queries have answers; train on data of format dpr"
            raise ValueError(
                f"The split of {self.collection.name} judges no passage relevant"
                f"{hint if self.collection.answers else ''}."
            )
        for query_id, ids in self._relevant.items():
            for row in self.index.rows(ids).tolist():
                yield {"query": self._query(query_id), "positive": row}

    def triple(self, fields: Fields) -> Example:
        """A triple of ids, as in MS MARCO's qidpidtriples.train.full.2.tsv."""
        names = ("query_id", "positive_id", "negative_id")
        query_id, positive_id, negative_id = (str(fields[name]) for name in names)
        positive, negative = self.index.rows([positive_id, negative_id]).tolist()
        if query_id not in self.collection.queries:
            raise ValueError(
                f"query {query_id!r} is not in the split of {self.collection.name}: use the split "
                "that the triples were made from."
            )
        is_relevant = negative_id in self._relevant.get(query_id, ())
        if is_relevant or self.index.content[positive] == self.index.content[negative]:
            return {LEFT_OUT: USELESS_NEGATIVE}
        return {"query": self._query(query_id), "positive": positive, "negatives": [negative]}

    def mined(self, lines: Iterable[HardNegatives], *, with_scores: bool) -> Iterator[Example]:
        """One example for each query and positive, with the query's hard negatives.

        A query's positives are those of its line, or else the passages judged relevant. Negatives
        that are relevant or have the text of the positive are dropped.
        """
        seen: set[str] = set()
        for line in lines:
            seen.add(line.query_id)
            if line.query_id in self.collection.queries:
                yield from self._of_line(line, with_scores)
            else:
                yield {LEFT_OUT: NOT_IN_SPLIT}
        yield from [{LEFT_OUT: WITHOUT_LINE}] * len(self.collection.queries.keys() - seen)

    def _of_line(self, line: HardNegatives, with_scores: bool) -> Iterator[Example]:
        relevant = self._relevant.get(line.query_id, ())
        positives = line.positive_ids or relevant
        if not positives:
            raise ValueError(
                f"Neither the line nor the judgements of {self.collection.name} name a positive of "
                f"query {line.query_id!r}: mine with --positives answers."
            )
        own, others = line.positive_teacher_scores, line.negative_teacher_scores
        if with_scores and (own is None or others is None):
            raise ValueError(
                f"Query {line.query_id!r} has no cross-encoder scores to learn from: mine with a "
                "cross-encoder, or use objective contrastive."
            )
        rows = self.index.rows(line.negative_ids).tolist()
        known = {*positives, *relevant}
        for place, positive in enumerate(self.index.rows(positives).tolist()):
            kept = [
                i
                for i, row in enumerate(rows)
                if line.negative_ids[i] not in known
                and self.index.content[row] != self.index.content[positive]
            ]
            if not kept:
                yield {LEFT_OUT: NO_NEGATIVE}
                continue
            example = {"query": self._query(line.query_id), "positive": positive}
            example["negatives"] = [rows[i] for i in kept]
            if with_scores and own and others:
                example["teacher_scores"] = [own[place], *(others[i] for i in kept)]
            yield example

    def _query(self, query_id: str) -> str:
        return self.contract.query(self.collection.queries[query_id])
