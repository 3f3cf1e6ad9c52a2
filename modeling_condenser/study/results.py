"""The results of a study as tables and files, with a significance test for each difference."""

import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
from datasets import Dataset
from jinja2 import Template

from modeling_condenser.evaluation.measures import Evaluation, make_evaluation
from modeling_condenser.evaluation.plots import Figures
from modeling_condenser.evaluation.significance import (
    ALPHA,
    MARKS,
    N_RESAMPLES,
    Comparison,
    correct,
)
from modeling_condenser.publishing.markdown import listed, p_in_words
from modeling_condenser.retrieval.systems import BM25
from modeling_condenser.runs.whole_files import write_json

PAGE_FILE = "results.md"
FUSED = f"{BM25} + "  # start of the name of an arm that is fused with BM25
_TOPICS, _PASSAGES = 8, 40  # of the map: the titles with most passages, and passages of each


def is_fused(system: str) -> bool:
    return system.startswith(FUSED)


@dataclass(frozen=True)
class StudyResults:
    """The results of a study. "bm25 + ARM" is an arm whose runs are fused with those of BM25."""

    bm25: Evaluation
    groups: Mapping[str, Mapping[str, Evaluation]]  # "512 labels" -> row -> measures
    controls: Mapping[str, str]  # row -> that which it is compared with, without fused ones
    facts: Mapping[str, Any]  # recipe, machine, counts and time
    systems: Sequence[str] = ()  # rows that are no arms
    fusions: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of each arm's runs
    verdicts: Mapping[str, str] = field(default_factory=dict)  # of adapted arms
    failures: Mapping[str, str] = field(default_factory=dict)  # arm -> error

    def control_of(self, name: str) -> str:
        """The row that a row is compared with: for fused arms the fused one."""
        own = self.controls[name.removeprefix(FUSED)]
        return FUSED + own if is_fused(name) and own not in self.systems else own

    @cached_property
    def tests(self) -> dict[tuple[str, str, str, str], Comparison]:
        """(group, arm, measure, other system) -> comparison; p-values by Holm over all of them."""
        found = {
            (group, arm, measure, other): own.compare(measure, {BM25: self.bm25, **arms}[other])
            for group, arms in self.groups.items()
            for arm, own in arms.items()
            for other in (BM25, self.control_of(arm))
            for measure in own.means
            if other != arm
        }
        return correct(found)

    @property
    def last_group(self) -> Mapping[str, Evaluation]:
        """The measures of all rows with most labels."""
        *_, last = self.groups.values()
        return last

    @property
    def arms(self) -> list[str]:
        """The arms, without fused ones."""
        rows = filter(lambda name: not is_fused(name), self.last_group)
        return [name for name in rows if name not in self.systems]

    @property
    def best_arm(self) -> str:
        """The best of the last group, in the first measure."""
        measure = next(iter(self.bm25.means))
        return max(self.arms, key=lambda arm: self.last_group[arm].means[measure])

    def cell(self, group: str, name: str, measure: str, *, with_p: bool) -> str:
        """A value, in brackets its difference from the control, and what the marks say of it."""
        text = f"{self.groups[group][name].means[measure]:.3f}"
        if test := self.tests.get((group, name, measure, self.control_of(name))):
            p = f", {p_in_words(test.p_adjusted)}" if with_p else ""
            text += f" ({test.difference:+.3f} {test.mark}{p})"
        return text if self.tests[group, name, measure, BM25].is_significant else f"{text} ~"

    def table(self, measure: str, *, with_p: bool = False) -> pd.DataFrame:
        """The cells of a measure: systems by numbers of labels."""
        rows = {BM25: [f"{self.bm25.means[measure]:.3f}"] * len(self.groups)}
        for name in self.last_group:
            rows[name] = [self.cell(group, name, measure, with_p=with_p) for group in self.groups]
        table = pd.DataFrame.from_dict(rows, orient="index", columns=list(self.groups))
        return table.rename_axis(columns=measure)

    @property
    def explanation(self) -> str:
        """What is in brackets, and what the marks mean."""
        first, *others = dict.fromkeys(self.controls.values())
        text = f"In brackets: the difference from {first}"
        if others:
            text = (
                f"In brackets: the difference from {listed([first, *others])}, that of the same "
                f"start; for these and for systems, from {first}"
            )
        if self.fusions:
            control = "" if first in self.systems else ", compared with the fused control"
            text += f". {FUSED}ARM: the fused runs of both{control}"
        n_tests = len(self.tests)
        if n_tests / N_RESAMPLES >= ALPHA:
            text += f". No p can be below {ALPHA} after so many tests: name fewer measures"
        return (
            f"{text}. {MARKS} ~ marks values that do not differ significantly from those of {BM25}."
            " p is that of a two-sided paired randomisation test over queries, after Holm's "
            f"correction over all {n_tests} tests."
        )

    def tables(self) -> str:
        """The tables as Markdown, with all p-values."""
        lines = []
        for table in (self.table(measure, with_p=True) for measure in self.bm25.means):
            rows = [[table.columns.name, *table.columns], ["---", *["---:"] * len(self.groups)]]
            rows += [[name, *cells] for name, *cells in table.itertuples()]
            lines += [*(f"| {' | '.join(row)} |" for row in rows), ""]
        return "\n".join([*lines, self.explanation])

    def __str__(self) -> str:
        tables = (self.table(measure).to_string() for measure in self.bm25.means)
        return "\n\n".join([*tables, self.explanation])

    def by_labels(self) -> dict[str, dict[str, Figures]]:
        """Panel -> number of labels -> system -> its figures, without the fused arms.

        There is a panel for each measure and start.
        """
        found: dict[str, dict[str, Figures]] = {}
        starts = dict.fromkeys(arm.rpartition("/")[0] for arm in self.arms)
        for measure, start in product(self.bm25.means, starts):
            own = [arm for arm in self.arms if arm.rpartition("/")[0] == start]
            title = f"{measure}, {start}" if start else measure
            found[title] = {
                group.removesuffix(" labels"): {
                    name.removeprefix(f"{start}/"): {
                        "mean": (evaluation := {BM25: self.bm25, **rows}[name]).means[measure],
                        "interval": evaluation.interval(measure),
                    }
                    for name in (BM25, *self.systems, *own)
                }
                for group, rows in self.groups.items()
            }
        return found

    def write(self, folder: Path, *, pictures: Sequence[str] = (), readiness: str = "") -> None:
        """Write results.json and the page results.md, with files of pictures and a section."""
        names = ("group", "arm", "measure", "other")
        figures = {
            "bm25": self.bm25.means,
            "groups": {
                group: {arm: evaluation.means for arm, evaluation in arms.items()}
                for group, arms in self.groups.items()
            },
            "tests": [
                dict(zip(names, key, strict=True)) | c._asdict() for key, c in self.tests.items()
            ],
        }
        write_json(folder / "results.json", {**vars(self), **figures})
        template = Template(Path(__file__).with_name("results.md.jinja").read_text("utf-8"))
        page = template.render(results=self, pictures=pictures, readiness=readiness, fused=FUSED)
        (folder / PAGE_FILE).write_text(f"{page.strip()}\n", "utf-8")


def copy_page(folder: Path, page: Path, *, pictures: Sequence[str]) -> None:
    """Copy the page of a study to a file, and its pictures to FILE-PICTURE beside it."""
    text = (folder / PAGE_FILE).read_text("utf-8")
    page.parent.mkdir(parents=True, exist_ok=True)
    for picture in pictures:
        name = f"{page.stem}-{picture}"
        shutil.copyfile(folder / picture, page.with_name(name))
        text = text.replace(f"]({picture})", f"]({name})")
    page.write_text(text, "utf-8")


def mean_evaluation(evaluations: Sequence[Evaluation]) -> Evaluation:
    """Means over several runs of one system, query by query."""
    per_query = {
        measure: {q: fmean(e.per_query[measure][q] for e in evaluations) for q in values}
        for measure, values in evaluations[0].per_query.items()
    }
    return make_evaluation(per_query, unanswerable=evaluations[0].unanswerable)


def choose_topics(passages: Dataset) -> dict[str, list[int]]:
    """Titles of most passages -> rows of some of these; empty if no title is repeated."""
    rows = defaultdict(list)
    for row, title in enumerate(passages["title"]):
        rows[title].append(row)
    rows.pop("", None)
    most = sorted(rows, key=lambda title: (-len(rows[title]), title))[:_TOPICS]
    return {title: rows[title][:_PASSAGES] for title in most if len(rows[title]) > 1}
