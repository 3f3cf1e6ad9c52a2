"""Hard negatives as lines of files: what was mined for one query in, JSON out.

negatives.jsonl   ids, one line a query, in the order of the queries: the texts are the collection's
examples.jsonl    on request: texts, one line for each query and positive, for use without the
                  collection; only queries that have negatives
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

NEGATIVES_FILE, EXAMPLES_FILE = "negatives.jsonl", "examples.jsonl"


@dataclass(frozen=True)
class HardNegatives:
    """What was mined for one query.

    Attributes:
        query_id: whose.
        positive_ids: passages judged relevant, and those that were taken for relevant.
        negative_ids: best first; none if no candidate was left.
        negative_scores: the searcher's, of the negatives.
        positive_teacher_scores: the cross-encoder's (log-odds); None without one.
        negative_teacher_scores: the same, of the negatives.
    """

    query_id: str
    positive_ids: tuple[str, ...]
    negative_ids: tuple[str, ...]
    negative_scores: tuple[float, ...]
    positive_teacher_scores: tuple[float, ...] | None = None
    negative_teacher_scores: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for passage_id, score in zip(self.negative_ids, self.negative_scores, strict=True):
            if not math.isfinite(score):
                raise ValueError(
                    f"query {self.query_id!r} scores passage {passage_id!r} {score}: expected a "
                    "finite number; look for NaN or overflow in the embeddings"
                )

    @property
    def passage_ids(self) -> tuple[str, ...]:
        """All that the line names."""
        return self.positive_ids + self.negative_ids

    @property
    def is_scored(self) -> bool:
        """Whether a cross-encoder scored them."""
        return self.positive_teacher_scores is not None

    def line(self) -> str:
        """The line of negatives.jsonl."""
        record: dict[str, Any] = {
            "query_id": self.query_id,
            "positive_ids": self.positive_ids,
            "negative_ids": self.negative_ids,
            "negative_scores": self.negative_scores,
        }
        if self.is_scored:
            record["positive_teacher_scores"] = self.positive_teacher_scores
            record["negative_teacher_scores"] = self.negative_teacher_scores
        return _json_line(record)

    def example_lines(self, query: str, texts: Mapping[str, str]) -> Iterator[str]:
        """The lines of examples.jsonl.

        Args:
            query: its text.
            texts: passage id -> text, with its title.
        """
        if not self.negative_ids:
            return
        negatives = [texts[passage_id] for passage_id in self.negative_ids]
        for place, passage_id in enumerate(self.positive_ids):
            record: dict[str, Any] = {
                "query": query,
                "positive": texts[passage_id],
                "negatives": negatives,
            }
            if self.positive_teacher_scores is not None:
                record["positive_score"] = self.positive_teacher_scores[place]
                record["negative_scores"] = self.negative_teacher_scores
            yield _json_line(record)


def _json_line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"
