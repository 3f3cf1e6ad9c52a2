"""Whether a changed model is better than its start, on dev queries."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .measures import ALPHA, Comparison

MEASURE = "nDCG@10"

Outcome = Literal["better", "no difference", "worse"]


@dataclass(frozen=True)
class Verdict:
    """A comparison of a changed model (system) with its start (baseline) in `MEASURE`.

    `queries` says what the queries are, such as "300 judged dev queries".
    """

    comparison: Comparison
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
        c, interval = self.comparison, ""
        if c.interval is not None:
            interval = f"95 % interval {c.interval[0]:+.3f} to {c.interval[1]:+.3f}, "
        return (
            f"{self.outcome}: {MEASURE} {c.mean_system:.3f} against {c.mean_baseline:.3f} of "
            f"the start, {c.difference:+.3f} ({interval}p = {c.p_value:.2g}) on {self.queries}"
        )


def read_verdict(facts: Mapping[str, Any]) -> Verdict:
    """Read what `Verdict.to_dict` wrote to a JSON file."""
    return Verdict(Comparison(**facts["comparison"]), facts["queries"])
