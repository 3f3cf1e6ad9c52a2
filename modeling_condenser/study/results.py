"""The results of a study as tables and files, with a significance test for each difference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from modeling_condenser.evaluation.measures import Evaluation, make_evaluation
from modeling_condenser.evaluation.significance import ALPHA, Comparison, compare, correct
from modeling_condenser.hub.markdown import p_in_words, table
from modeling_condenser.hub.training_log import spread
from modeling_condenser.retrieval.fusion import Fusion
from modeling_condenser.retrieval.systems import BM25
from modeling_condenser.runs.whole_files import write_json

FUSED = f"{BM25} + "  # start of the name of an arm that is fused with BM25
_MOST_SWAP_COSTS = 6  # of an arm in the table


@dataclass(frozen=True)
class StudyResults:
    """What a study found. "bm25 + ARM" is an arm whose runs are fused with those of BM25."""

    bm25: Evaluation
    groups: Mapping[str, Mapping[str, Evaluation]]  # "512 labels" -> arm -> measures
    control: str
    facts: Mapping[str, Any]  # recipe, machine, counts and time
    fusion: Fusion | None = None
    swap_costs: Mapping[str, Sequence[Mapping[str, float]]] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)  # arm -> error

    def control_of(self, arm: str) -> str:
        return FUSED + self.control if arm.startswith(FUSED) else self.control

    @cached_property
    def tests(self) -> dict[tuple[str, str, str, str], Comparison]:
        """(group, arm, measure, other system) -> comparison; p-values by Holm over all of them."""
        found = {}
        for group, arms in self.groups.items():
            for arm, evaluation in arms.items():
                control = self.control_of(arm)
                others = {BM25: self.bm25} | ({control: arms[control]} if arm != control else {})
                for other, baseline in others.items():
                    for measure, values in evaluation.per_query.items():
                        key = (group, arm, measure, other)
                        found[key] = compare(values, baseline.per_query[measure])
        return correct(found)

    @property
    def arms(self) -> Mapping[str, Evaluation]:
        """The arms of the last group, without fused ones."""
        *_, last = self.groups.values()
        return {arm: result for arm, result in last.items() if not arm.startswith(FUSED)}

    @property
    def first_measure(self) -> str:
        return next(iter(self.bm25.means))

    @property
    def best_arm(self) -> str:
        return max(self.arms, key=lambda arm: self.arms[arm].means[self.first_measure])

    def table(self) -> str:
        """The means as a Markdown table, with an explanation of its signs."""
        rows = [[BM25, *(f"{mean:.3f}" for mean in self.bm25.means.values())]]
        for group, arms in self.groups.items():
            for arm, evaluation in arms.items():
                cells = [self._cell(group, arm, measure) for measure in evaluation.means]
                rows.append([f"{arm}, {group}", *cells])
        control, fused = self.control, ""
        if self.fusion is not None:
            control += f", for fused arms from {FUSED}{self.control}"
            fused = f" {FUSED}ARM: the runs of both, fused by {self.fusion}."
        return (
            f"{table(['system', *self.bm25.means], rows)}\n\nIn brackets: the difference from "
            f"{control}.{fused} ~ marks values that do not differ significantly from those of "
            f"{BM25} (p >= {ALPHA}). p is that of a two-sided paired randomisation test over "
            f"queries, after Holm's correction over the {len(self.tests)} tests of this table."
        )

    def _cell(self, group: str, arm: str, measure: str) -> str:
        value = f"{self.groups[group][arm].means[measure]:.3f}"
        if not self.tests[group, arm, measure, BM25].is_significant:
            value += " ~"
        c = self.tests.get((group, arm, measure, self.control_of(arm)))
        return f"{value} ({c.difference:+.3f}, {p_in_words(c.p_adjusted)})" if c else value

    def verdict(self) -> str:
        """A Markdown list: tokens, failed arms, and each arm against the control."""
        seen = self.facts.get("tokens_seen", {})
        budget = ", ".join(f"{arm} {n / 1e6:.2f} million" for arm, n in seen.items())
        lines = [f"Tokens of pre-training from the common start: {budget}."] if seen else []
        for arm, error in self.failures.items():
            lines.append(f"The arm {arm} failed and is left out from there on: {error}")
        for (group, arm, measure, other), c in self.tests.items():
            if other == self.control_of(arm) and measure == self.first_measure:
                differs = "differs" if c.is_significant else "does not differ"
                lines.append(
                    f"With {group}, {arm} {differs} significantly from {other} in {measure}: "
                    f"{c.difference:+.3f} (95 % interval {c.interval[0]:+.3f} to "
                    f"{c.interval[1]:+.3f}, p = {c.p_adjusted:.4f})."
                )
        return "\n".join(f"- {line}" for line in lines)

    def swap_cost_table(self) -> str:
        """Swap cost by step of each arm with a head, as Markdown; empty without such an arm."""
        rows = [
            [arm, ", ".join(f"{entry['swap_cost']:.3f} ({entry['step']})" for entry in entries)]
            for arm, entries in self.swap_costs.items()
        ]
        explanation = (
            "## Swap cost by step\n\nRise of the head's loss, in nats a masked token, when each "
            "block gets another block's late CLS; in brackets the step."
        )
        return f"{explanation}\n\n{table(['arm', 'swap cost (step)'], rows)}" if rows else ""

    def write(self, folder: Path, readiness: str = "") -> None:
        """Write results.json, and results.md with a section of readiness."""
        names = ("group", "arm", "measure", "other")
        content = {
            "bm25": self.bm25.means,
            "groups": {
                group: {arm: evaluation.means for arm, evaluation in arms.items()}
                for group, arms in self.groups.items()
            },
            "control": self.control,
            "tests": [
                dict(zip(names, key, strict=True)) | c._asdict() for key, c in self.tests.items()
            ],
            "swap_costs": self.swap_costs,
            "failures": self.failures,
            "facts": self.facts,
        }
        write_json(folder / "results.json", content)
        parts = [self.table(), self.verdict(), self.swap_cost_table(), readiness]
        (folder / "results.md").write_text("\n\n".join(filter(None, parts)) + "\n")


def mean_evaluation(evaluations: Sequence[Evaluation]) -> Evaluation:
    """Means over several runs of one system, query by query."""
    per_query = {
        measure: {q: fmean(e.per_query[measure][q] for e in evaluations) for q in values}
        for measure, values in evaluations[0].per_query.items()
    }
    return make_evaluation(per_query, unanswerable=evaluations[0].unanswerable)


def swap_costs(log: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """The swap cost at some evenly spaced steps of a log; empty for an arm without a head."""
    probed = [entry for entry in log if "swap_cost" in entry]
    shown = spread(probed, at_most=_MOST_SWAP_COSTS)
    return [{name: entry[name] for name in ("step", "swap_cost")} for entry in shown]
