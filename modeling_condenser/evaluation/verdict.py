"""Whether a changed model is better than its start, as one word with its figures."""

from dataclasses import dataclass
from typing import Any, Literal

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.reduce import sample_collection
from modeling_condenser.encoding.retriever import Retriever

from .significance import ALPHA, Comparison, compare
from .small import measure_small

MEASURE = "nDCG@10"
_QUERIES, _PASSAGES = 500, 2000  # that `judge` samples
_FEW = 50  # queries

Outcome = Literal["better", "no difference", "worse"]


@dataclass(frozen=True)
class Verdict:
    """A comparison of a changed model with its start on the same queries.

    Attributes:
        comparison: of the model (system) with its start (baseline).
        measure: such as "nDCG@10".
        queries: what the queries are, such as "300 judged dev queries".
        margin: least difference that counts as better.
    """

    comparison: Comparison
    measure: str
    queries: str
    margin: float = 0.0

    @property
    def outcome(self) -> Outcome:
        """Better or worse if the difference is significant, and for better above the margin."""
        if self.comparison.p_value < ALPHA and self.comparison.difference > self.margin:
            return "better"
        if self.comparison.p_value < ALPHA and self.comparison.difference < 0:
            return "worse"
        return "no difference"

    def to_dict(self) -> dict[str, Any]:
        """The figures, for a file."""
        return {"outcome": self.outcome, **vars(self), "comparison": self.comparison._asdict()}

    def __str__(self) -> str:
        own = self.comparison
        low, high = own.interval or (float("nan"),) * 2
        is_open = self.outcome == "no difference" and own.better + own.equal + own.worse < _FEW
        hint = "; so few queries show only large differences" if is_open else ""
        return (
            f"{self.outcome}: {self.measure} {own.mean_system:.3f} against {own.mean_baseline:.3f} "
            f"of the start, {own.difference:+.3f} (95 % interval {low:+.3f} to {high:+.3f}, "
            f"p = {own.p_value:.2g}) on {self.queries}{hint}"
        )


def judge(start: Retriever, result: Retriever, dev: Collection, *, seed: int = 0) -> Verdict:
    """Compare a retriever with its start on up to 500 dev queries, without a whole encoding.

    Both search the passages that are judged for these queries and random others, 2,000 in all.
    """
    small = sample_collection(dev, n_queries=_QUERIES, n_passages=_PASSAGES, seed=seed)
    before, after = (
        measure_small(retriever, small, [MEASURE]).per_query[MEASURE]
        for retriever in (start, result)
    )
    return Verdict(
        compare(after, before, seed=seed),
        measure=MEASURE,
        queries=f"{len(small.queries)} dev queries and {len(small.passages):,} passages",
    )
