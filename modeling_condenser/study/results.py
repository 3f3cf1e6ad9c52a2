"""The table of a study: every figure beside the answer to whether it differs from the control's."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from modeling_condenser.pretraining.checkpoints import write_json
from modeling_condenser.retrieval.evaluate import SystemResult
from modeling_condenser.retrieval.significance import Comparison

ArmResults = Mapping[str, SystemResult]  # arm -> its measures
ArmComparisons = dict[str, dict[str, Comparison]]  # arm -> measure -> comparison with the control


@dataclass(frozen=True)
class StudyResults:
    """What a study found.

    Attributes:
        bm25: lexical search of the same queries.
        groups: how much was fine-tuned ("no labels", "512 labels") -> arm -> measures. The last
            group is the one that the study is about.
        control: the arm that the others are compared with.
        facts: recipe, machine, versions, counts and time.
    """

    bm25: SystemResult
    groups: Mapping[str, ArmResults]
    control: str
    facts: Mapping[str, Any]

    @cached_property
    def comparisons(self) -> dict[str, ArmComparisons]:
        """Group -> arm -> measure -> comparison with the control's arm of the same group."""
        return {
            group: {
                arm: result.compare_with(arms[self.control])
                for arm, result in arms.items()
                if arm != self.control
            }
            for group, arms in self.groups.items()
        }

    @property
    def arms(self) -> ArmResults:
        """The results of the last group."""
        return list(self.groups.values())[-1]

    @property
    def best_arm(self) -> str:
        return max(self.arms, key=lambda arm: self.arms[arm].evaluation.means["MRR@10"])

    def table(self) -> str:
        """The results as a Markdown table."""
        measures = list(self.bm25.evaluation.means)
        means = [f"{self.bm25.evaluation.means[measure]:.3f}" for measure in measures]
        rows = [["system", *measures], ["---"] * (len(measures) + 1), [self.bm25.system, *means]]
        for group, arms in self.groups.items():
            for arm, result in arms.items():
                compared = self.comparisons[group].get(arm, {})
                cells = [_cell(result, measure, compared.get(measure)) for measure in measures]
                rows.append([f"{arm}, {group}", *cells])
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)

    def verdict(self) -> str:
        """One sentence an arm and group: whether it differs from the control in MRR@10."""
        sentences = []
        for group, arms in self.comparisons.items():
            for arm, by_measure in arms.items():
                c = by_measure["MRR@10"]
                low, high = c.interval
                differs = "differs" if c.p_value < 0.05 else "does not differ"
                sentences.append(
                    f"With {group}, {arm} {differs} significantly from {self.control} in MRR@10: "
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
                "groups": {
                    group: {arm: r.evaluation.means for arm, r in arms.items()}
                    for group, arms in self.groups.items()
                },
                "control": self.control,
                "comparisons": {
                    group: {
                        arm: {measure: c._asdict() for measure, c in by_measure.items()}
                        for arm, by_measure in arms.items()
                    }
                    for group, arms in self.comparisons.items()
                },
                "facts": dict(self.facts),
            },
        )
        (folder / "results.md").write_text(f"{self.table()}\n\n{self.verdict()}\n")


def _cell(result: SystemResult, measure: str, comparison: Comparison | None) -> str:
    value = f"{result.evaluation.means[measure]:.3f}"
    if comparison is None:
        return value
    p_value = f"p = {comparison.p_value:.3f}" if comparison.p_value >= 0.001 else "p < 0.001"
    return f"{value} ({comparison.difference:+.3f}, {p_value})"
