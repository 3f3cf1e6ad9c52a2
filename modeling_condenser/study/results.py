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

from datasets import Dataset
from jinja2 import Template

from modeling_condenser.evaluation.measures import Evaluation, make_evaluation
from modeling_condenser.evaluation.plots import Figures
from modeling_condenser.evaluation.significance import ALPHA, Comparison, correct
from modeling_condenser.publishing.markdown import p_in_words
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
    groups: Mapping[str, Mapping[str, Evaluation]]  # "512 labels" -> arm -> measures
    control: str
    facts: Mapping[str, Any]  # recipe, machine, counts and time
    fusions: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of each arm's runs
    # Measure -> arm -> its value at some steps, while training.
    courses: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)  # arm -> error

    def control_of(self, arm: str) -> str:
        return FUSED + self.control if is_fused(arm) else self.control

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
    def arms(self) -> list[str]:
        """The arms, without fused ones."""
        *_, last = self.groups.values()
        return [arm for arm in last if not is_fused(arm)]

    @property
    def best_arm(self) -> str:
        """The best of the last group, in the first measure."""
        *_, last = self.groups.values()
        measure = next(iter(self.bm25.means))
        return max(self.arms, key=lambda arm: last[arm].means[measure])

    def tables(self) -> str:
        """A table for each measure, as Markdown."""
        return _render("tables", self, alpha=ALPHA, p_in_words=p_in_words)

    def by_labels(self) -> dict[str, dict[str, Figures]]:
        """Measure -> number of labels -> system -> its figures; without the fused arms."""
        found: dict[str, dict[str, Figures]] = {measure: {} for measure in self.bm25.means}
        for (group, arms), measure in product(self.groups.items(), found):
            systems = {BM25: self.bm25, **{arm: arms[arm] for arm in self.arms}}
            found[measure][group.removesuffix(" labels")] = {
                name: {"mean": own.means[measure], "interval": own.interval(measure)}
                for name, own in systems.items()
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
        page = _render("results", self, pictures=pictures, readiness=readiness)
        (folder / PAGE_FILE).write_text(f"{page.strip()}\n")


def _render(name: str, results: StudyResults, **values: Any) -> str:
    template = Template(Path(__file__).with_name(f"{name}.md.jinja").read_text("utf-8"))
    return template.render(results=results, bm25=BM25, fused=FUSED, **values).strip()


def copy_page(folder: Path, page: Path, *, pictures: Sequence[str]) -> None:
    """Copy the page of a study to a file, and its pictures to FILE-PICTURE beside it."""
    text = (folder / PAGE_FILE).read_text()
    page.parent.mkdir(parents=True, exist_ok=True)
    for picture in pictures:
        name = f"{page.stem}-{picture}"
        shutil.copyfile(folder / picture, page.with_name(name))
        text = text.replace(f"]({picture})", f"]({name})")
    page.write_text(text)


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
