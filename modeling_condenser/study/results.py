"""The table of a study: every figure beside the answer to whether it differs from the control's."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from modeling_condenser.pretraining.checkpoints import write_json
from modeling_condenser.retrieval.evaluate import SystemResult
from modeling_condenser.retrieval.significance import Comparison


@dataclass(frozen=True)
class StudyResults:
    """What a study found.

    Attributes:
        bm25: lexical search of the same queries.
        arms: name -> measures; per-query means over the fine-tuning seeds.
        control: the arm that the others are compared with.
        facts: recipe, machine, versions, counts and time.
    """

    bm25: SystemResult
    arms: Mapping[str, SystemResult]
    control: str
    facts: Mapping[str, Any]

    @cached_property
    def comparisons(self) -> dict[str, dict[str, Comparison]]:
        """Arm -> measure -> comparison with the control, by a paired randomisation test."""
        control = self.arms[self.control]
        return {
            arm: result.compare_with(control)
            for arm, result in self.arms.items()
            if arm != self.control
        }

    @property
    def best_arm(self) -> str:
        return max(self.arms, key=lambda arm: self.arms[arm].evaluation.means["MRR@10"])

    def table(self) -> str:
        """The results as a Markdown table."""
        measures = list(self.bm25.evaluation.means)
        rows = [
            f"| system | {' | '.join(measures)} |",
            f"| --- | {' | '.join('---' for _ in measures)} |",
        ]
        for system in (self.bm25, *self.arms.values()):
            values = [self._cell(system.system, m, system.evaluation.means[m]) for m in measures]
            rows.append(f"| {system.system} | {' | '.join(values)} |")
        return "\n".join(rows)

    def _cell(self, system: str, measure: str, value: float) -> str:
        comparison = self.comparisons.get(system, {}).get(measure)
        if comparison is None:
            return f"{value:.3f}"
        return f"{value:.3f} ({comparison.difference:+.3f}, p = {comparison.p_value:.3f})"

    def verdict(self) -> str:
        """One sentence an arm: whether it differs from the control in MRR@10."""
        sentences = []
        for arm, by_measure in self.comparisons.items():
            c = by_measure["MRR@10"]
            low, high = c.interval
            differs = "differs" if c.p_value < 0.05 else "does not differ"
            sentences.append(
                f"{arm} {differs} significantly from {self.control} in MRR@10: "
                f"{c.difference:+.3f} (95 % interval {low:+.3f} to {high:+.3f}, "
                f"p = {c.p_value:.4f}, two-sided paired randomisation test over queries)."
            )
        return "\n".join(sentences)

    def write(self, folder: Path) -> None:
        """Write results.json and results.md."""
        write_json(
            folder / "results.json",
            {
                "bm25": self.bm25.evaluation.means,
                "arms": {arm: r.evaluation.means for arm, r in self.arms.items()},
                "control": self.control,
                "comparisons": {
                    arm: {measure: c._asdict() for measure, c in by_measure.items()}
                    for arm, by_measure in self.comparisons.items()
                },
                "facts": dict(self.facts),
            },
        )
        (folder / "results.md").write_text(f"{self.table()}\n\n{self.verdict()}\n")
