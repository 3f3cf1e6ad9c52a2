"""Whether a changed model is better than its start, on dev queries."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .measures import ALPHA, Comparison

MEASURE = "nDCG@10"
_FEW = 50  # queries

Outcome = Literal["better", "no difference", "worse"]


@dataclass(frozen=True)
class Verdict:
    """A comparison of a changed model with its start on the same queries.

    Attributes:
        comparison: of the model (system) with its start (baseline).
        measure: such as "nDCG@10".
        queries: what the queries are, such as "300 judged dev queries".
    """

    comparison: Comparison
    measure: str
    queries: str

    @property
    def outcome(self) -> Outcome:
        """Better or worse if the difference is significant."""
        if self.comparison.p_value < ALPHA and self.comparison.difference > 0:
            return "better"
        if self.comparison.p_value < ALPHA and self.comparison.difference < 0:
            return "worse"
        return "no difference"

    def to_dict(self) -> dict[str, Any]:
        """The figures, for a JSON file."""
        return {"outcome": self.outcome, **vars(self), "comparison": self.comparison._asdict()}

    def __str__(self) -> str:
        c = self.comparison
        text = (
            f"{self.outcome}: {self.measure} {c.mean_system:.3f} against {c.mean_baseline:.3f} of "
            f"the start, {c.difference:+.3f} ("
        )
        if c.interval is not None:
            text += f"95 % interval {c.interval[0]:+.3f} to {c.interval[1]:+.3f}, "
        text += f"p = {c.p_value:.2g}) on {self.queries}"
        if self.outcome == "no difference" and c.better + c.equal + c.worse < _FEW:
            text += "; so few queries show only large differences"
        return text


def read_verdict(facts: Mapping[str, Any]) -> Verdict:
    """Read what `Verdict.to_dict` wrote to a JSON file."""
    comparison = dict(facts["comparison"])
    if comparison["interval"] is not None:
        comparison["interval"] = tuple(comparison["interval"])  # a list in JSON
    return Verdict(Comparison(**comparison), facts["measure"], facts["queries"])
