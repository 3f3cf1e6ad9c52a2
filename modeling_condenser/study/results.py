"""The table of a study: every figure beside the answer to whether it differs from the control's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from modeling_condenser.evaluation.system_results import SystemResult
from modeling_condenser.measures.measures import Evaluation
from modeling_condenser.measures.significance import ALPHA, Comparison, holm
from modeling_condenser.repository.training_log import spread
from modeling_condenser.retrieval.fusion import Fusion
from modeling_condenser.retrieval.systems import BM25
from modeling_condenser.runs.whole_files import write_json

FUSED = f"{BM25} + "  # what the name of an arm that is fused with BM25 begins with
_LIKE_BM25 = "~"
_SWAP_COSTS = 6  # entries of an arm's log that are shown

ArmResults = Mapping[str, SystemResult]  # arm -> its measures
ArmComparisons = dict[str, dict[str, Comparison]]  # arm -> measure -> comparison with the control


@dataclass(frozen=True)
class StudyResults:
    """What a study found.

    Attributes:
        bm25: lexical search of the same queries. Its first measure is the one that sentences name.
        groups: how much was fine-tuned ("no labels", "512 labels") -> arm -> measures. The last
            group is the one that the study is about. An arm fused with BM25 is one more arm,
            "bm25 + ARM".
        control: the arm that the others are compared with; fused arms with the fused control.
        facts: recipe, machine, versions, counts and time.
        fusion: how arms were fused with BM25; None where they were not.
        swap_costs: arm with a head -> its swap cost at some steps: `step`, `swap_cost`.
        failures: arm that failed -> its error.
        readiness: of start and arms, as Markdown; empty where it was not measured.
    """

    bm25: SystemResult
    groups: Mapping[str, ArmResults]
    control: str
    facts: Mapping[str, Any]
    fusion: Fusion | None = None
    swap_costs: Mapping[str, Sequence[Mapping[str, float]]] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    readiness: str = ""

    def control_of(self, arm: str) -> str:
        """The arm that an arm is compared with."""
        return FUSED + self.control if arm.startswith(FUSED) else self.control

    @cached_property
    def comparisons(self) -> dict[str, ArmComparisons]:
        """Group -> arm -> measure -> comparison with the control's arm of the same group."""
        return {
            group: {
                arm: result.compare_with(arms[self.control_of(arm)])
                for arm, result in arms.items()
                if arm != self.control_of(arm)
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
            (group, arm, measure, other or self.control_of(arm)): comparison.p_value
            for other, groups in (
                (None, self.comparisons),
                (self.bm25.system, self.lexical_comparisons),
            )
            for group, arms in groups.items()
            for arm, by_measure in arms.items()
            for measure, comparison in by_measure.items()
        }
        return dict(zip(tests, holm(list(tests.values())), strict=True))

    @property
    def arms(self) -> ArmResults:
        """The results of the last group, without the fused ones."""
        last = list(self.groups.values())[-1]
        return {arm: result for arm, result in last.items() if not arm.startswith(FUSED)}

    @property
    def first_measure(self) -> str:
        return next(iter(self.bm25.evaluation.means))

    @property
    def best_arm(self) -> str:
        return max(self.arms, key=lambda arm: self.arms[arm].evaluation.means[self.first_measure])

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
        from_control, how = self.control, ""
        if self.fusion is not None:
            from_control += f", for fused arms from {FUSED}{self.control}"
            how = f" {FUSED}ARM: the runs of both, fused by {self.fusion}."
        return (
            f"{table}\n\nIn brackets: the difference from {from_control}.{how} {_LIKE_BM25} marks "
            f"figures that do not differ significantly from those of {self.bm25.system} "
            f"(p >= {ALPHA}); all others do. p is of a two-sided paired randomisation test over "
            f"queries, by Holm's correction for the {len(self.adjusted_p_values)} tests of this "
            "table."
        )

    def _cell(self, group: str, arm: str, measure: str) -> str:
        value = f"{self.groups[group][arm].evaluation.means[measure]:.3f}"
        if self.adjusted_p_values[group, arm, measure, self.bm25.system] >= ALPHA:
            value += f" {_LIKE_BM25}"
        control = self.control_of(arm)
        if arm == control:
            return value
        p = self.adjusted_p_values[group, arm, measure, control]
        p_text = f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"
        return f"{value} ({self.comparisons[group][arm][measure].difference:+.3f}, {p_text})"

    def verdict(self) -> str:
        """A list: tokens, failed arms, and whether each arm of a group differs from the control."""
        seen = self.facts.get("tokens_seen", {})
        budget = ", ".join(f"{arm} {n / 1e6:.2f} million" for arm, n in seen.items())
        measure = self.first_measure
        sentences = [f"Tokens of pre-training from the common start: {budget}."] if seen else []
        sentences += [
            f"The arm {arm} failed and is left out from there on: {error}"
            for arm, error in self.failures.items()
        ]
        for group, arms in self.comparisons.items():
            for arm, by_measure in arms.items():
                c, control = by_measure[measure], self.control_of(arm)
                p = self.adjusted_p_values[group, arm, measure, control]
                low, high = c.interval
                differs = "differs" if p < ALPHA else "does not differ"
                sentences.append(
                    f"With {group}, {arm} {differs} significantly from {control} in {measure}: "
                    f"{c.difference:+.3f} (95 % interval {low:+.3f} to {high:+.3f}, p = {p:.4f})."
                )
        return "\n".join(f"- {sentence}" for sentence in sentences)

    def swap_cost_table(self) -> str:
        """Swap cost by step of each arm with a head, as Markdown; empty where there is none."""
        if not self.swap_costs:
            return ""
        rows = []
        for arm, entries in self.swap_costs.items():
            costs = ", ".join(f"{entry['swap_cost']:.3f} ({entry['step']})" for entry in entries)
            rows.append(f"| {arm} | {costs} |")
        return (
            "## Swap cost by step\n\nRise of the head's loss, in nats a masked token, when each "
            "block is given another block's late CLS; in brackets the step.\n\n"
            "| arm | swap cost (step) |\n| --- | --- |\n" + "\n".join(rows)
        )

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
                        arm: {
                            measure: c._replace(
                                p_adjusted=self.adjusted_p_values[
                                    group, arm, measure, self.control_of(arm)
                                ]
                            )._asdict()
                            for measure, c in by_measure.items()
                        }
                        for arm, by_measure in arms.items()
                    }
                    for group, arms in self.comparisons.items()
                },
                "adjusted_p_values": [
                    {"group": group, "arm": arm, "measure": measure, "other": other, "p": p}
                    for (group, arm, measure, other), p in self.adjusted_p_values.items()
                ],
                "swap_costs": dict(self.swap_costs),
                "failures": dict(self.failures),
                "facts": dict(self.facts),
            },
        )
        parts = [self.table(), self.verdict(), self.swap_cost_table(), self.readiness]
        (folder / "results.md").write_text("\n\n".join(filter(None, parts)) + "\n")


def mean_evaluation(evaluations: Sequence[Evaluation]) -> Evaluation:
    """Per-query means over several runs of one system."""
    first = evaluations[0]
    per_query = {
        measure: {
            query: fmean(e.per_query[measure][query] for e in evaluations) for query in values
        }
        for measure, values in first.per_query.items()
    }
    means = {measure: fmean(values.values()) for measure, values in per_query.items()}
    return Evaluation(means, per_query, first.unanswerable)


def swap_costs(log: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    """The swap cost at a few evenly spaced steps of a log; none for an arm without a head."""
    probed = [entry for entry in log if "swap_cost" in entry]
    names = ("step", "swap_cost")
    return [{n: entry[n] for n in names} for entry in spread(probed, at_most=_SWAP_COSTS)]
