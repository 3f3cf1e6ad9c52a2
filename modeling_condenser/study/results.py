"""The table of a study: every figure beside the answer to whether it differs from the control's."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from modeling_condenser.evaluation.system_results import SystemResult
from modeling_condenser.measures.contrasts import ALPHA
from modeling_condenser.measures.significance import Comparison, holm
from modeling_condenser.runs.whole_files import write_json

_LIKE_BM25 = "~"

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
        readiness: of start and arms, as Markdown; empty where it was not measured.
    """

    bm25: SystemResult
    groups: Mapping[str, ArmResults]
    control: str
    facts: Mapping[str, Any]
    readiness: str = ""

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

    @cached_property
    def lexical_comparisons(self) -> dict[str, ArmComparisons]:
        """Group -> arm -> measure -> comparison with bm25."""
        return {
            group: {arm: result.compare_with(self.bm25) for arm, result in arms.items()}
            for group, arms in self.groups.items()
        }

    @cached_property
    def adjusted_p_values(self) -> dict[tuple[str, str, str, str], float]:
        """(group, arm, measure, other system) -> p-value by Holm over all of the table's tests."""
        tests = {
            (group, arm, measure, other): comparison.p_value
            for other, groups in (
                (self.control, self.comparisons),
                (self.bm25.system, self.lexical_comparisons),
            )
            for group, arms in groups.items()
            for arm, by_measure in arms.items()
            for measure, comparison in by_measure.items()
        }
        return dict(zip(tests, holm(list(tests.values())), strict=True))

    @property
    def arms(self) -> ArmResults:
        """The results of the last group."""
        return list(self.groups.values())[-1]

    @property
    def best_arm(self) -> str:
        return max(self.arms, key=lambda arm: self.arms[arm].evaluation.means["MRR@10"])

    def table(self) -> str:
        """The results as a Markdown table, with the sentence that explains its signs."""
        measures = list(self.bm25.evaluation.means)
        means = [f"{self.bm25.evaluation.means[measure]:.3f}" for measure in measures]
        rows = [["system", *measures], ["---"] * (len(measures) + 1), [self.bm25.system, *means]]
        for group, arms in self.groups.items():
            for arm in arms:
                cells = [self._cell(group, arm, measure) for measure in measures]
                rows.append([f"{arm}, {group}", *cells])
        table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        return (
            f"{table}\n\nIn brackets: the difference from {self.control}. {_LIKE_BM25} marks "
            f"figures that do not differ significantly from those of {self.bm25.system} "
            f"(p >= {ALPHA}); all others do. p is of a two-sided paired randomisation test over "
            f"queries, by Holm's correction for the {len(self.adjusted_p_values)} tests of this "
            "table."
        )

    def _cell(self, group: str, arm: str, measure: str) -> str:
        value = f"{self.groups[group][arm].evaluation.means[measure]:.3f}"
        if self.adjusted_p_values[group, arm, measure, self.bm25.system] >= ALPHA:
            value += f" {_LIKE_BM25}"
        if arm == self.control:
            return value
        p = self.adjusted_p_values[group, arm, measure, self.control]
        p_text = f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"
        return f"{value} ({self.comparisons[group][arm][measure].difference:+.3f}, {p_text})"

    def verdict(self) -> str:
        """What each arm cost, and for each arm and group whether it differs from the control."""
        seen = self.facts.get("tokens_seen", {})
        budget = ", ".join(f"{arm} {n / 1e6:.2f} million" for arm, n in seen.items())
        sentences = [f"Tokens of pre-training from the common start: {budget}."] if seen else []
        for group, arms in self.comparisons.items():
            for arm, by_measure in arms.items():
                c = by_measure["MRR@10"]
                p = self.adjusted_p_values[group, arm, "MRR@10", self.control]
                low, high = c.interval
                differs = "differs" if p < ALPHA else "does not differ"
                sentences.append(
                    f"With {group}, {arm} {differs} significantly from {self.control} in MRR@10: "
                    f"{c.difference:+.3f} (95 % interval {low:+.3f} to {high:+.3f}, p = {p:.4f})."
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
                "adjusted_p_values": [
                    {"group": group, "arm": arm, "measure": measure, "other": other, "p": p}
                    for (group, arm, measure, other), p in self.adjusted_p_values.items()
                ],
                "facts": dict(self.facts),
            },
        )
        parts = [self.table(), self.verdict(), self.readiness]
        (folder / "results.md").write_text("\n\n".join(filter(None, parts)) + "\n")
