"""Store evaluation results beside a model's weights.

evaluation_results.json                     all results, with the figures in full
evaluation/<collection>-<split>.trec.gz     the runs that were measured
.eval_results/<owner>--<name>.yaml          results on a Hub data set, in the Hub's format

The card and `evaluate_retrieval.py` read the first of these.
"""

import gzip
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

from modeling_condenser.runs.whole_files import whole_file

RESULTS_FILE = "evaluation_results.json"
RUNS_FOLDER = "evaluation"
HUB_RESULTS_FOLDER = ".eval_results"
DIGITS = 4  # of figures that are shown


@dataclass(frozen=True)
class BaselineComparison:
    """A measure compared with another system's on the same queries.

    Attributes:
        baseline: name of the other system.
        measure: such as "MRR@10".
        value: of the other system.
        difference: this model's value minus it.
        p_value: two-sided, of a paired randomisation test over queries, with Holm's correction over
            all comparisons of the result.
    """

    baseline: str
    measure: str
    value: float
    difference: float
    p_value: float


@dataclass(frozen=True)
class EvaluationResult:
    """Measures of a model on one split of one collection.

    Attributes:
        collection: its name.
        split: whose queries were judged.
        depth: passages retrieved for a query.
        n_queries: that were measured.
        values: measure -> mean over the queries, in full.
        source: the collection's name on the Hub, `owner/name`; None if it is local.
        revision: of that data set, if one was named.
        search: settings of an approximate search; empty for exact search.
        intervals: measure -> 95 % confidence interval of the mean.
        comparisons: with baselines.
        run: `file` (within the repository) and `sha256` (of the uncompressed run).
        qrels_sha256: of the judgements as sorted lines in TREC format.
        fingerprint_passages: of the passages that were searched.
        command: that reproduces the result; it calls the model `OWNER/NAME`.
        date: day of the evaluation in UTC, as in 2026-01-31.
        versions: of Python and the libraries.
    """

    collection: str
    split: str
    depth: int
    n_queries: int
    values: Mapping[str, float]
    source: str | None = None
    revision: str | None = None
    search: Mapping[str, Any] = field(default_factory=dict)
    intervals: Mapping[str, Sequence[float]] = field(default_factory=dict)
    comparisons: Sequence[BaselineComparison] = ()
    run: Mapping[str, str] | None = None
    qrels_sha256: str | None = None
    fingerprint_passages: str | None = None
    command: str | None = None
    date: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[Any, ...]:
        """A later result with the same key replaces this one."""
        search = json.dumps(dict(self.search), sort_keys=True)
        return (self.collection, self.source, self.split, self.depth, search)


def read_results(folder: Path) -> list[EvaluationResult]:
    """A repository's results; none if it was not evaluated.

    Raises:
        ValueError: the file is not a list of results.
    """
    file = folder / RESULTS_FILE
    if not file.is_file():
        return []
    try:
        results = [EvaluationResult(**content) for content in json.loads(file.read_text("utf-8"))]
        return [
            replace(r, comparisons=tuple(BaselineComparison(**dict(c)) for c in r.comparisons))
            for r in results
        ]
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{file} is not a list of results ({error}): remove it and evaluate the model again."
        ) from error


def add_result(folder: Path, result: EvaluationResult, *, run_file: Path | None = None) -> None:
    """Add a result to a repository, or replace an earlier one with the same key.

    Args:
        folder: of the repository.
        result: its `run` is filled in here.
        run_file: the TREC run that was measured; a compressed copy is stored.
    """
    results = {earlier.key: earlier for earlier in read_results(folder)}
    replaced = results.get(result.key)
    if replaced and replaced.run:
        (folder / replaced.run["file"]).unlink(missing_ok=True)
    if run_file is not None:
        content = run_file.read_bytes()
        others = [other for key, other in results.items() if key != result.key]
        name = _run_name(result, {other.run["file"] for other in others if other.run})
        _write(folder / name, gzip.compress(content, mtime=0))
        result = replace(result, run={"file": name, "sha256": hashlib.sha256(content).hexdigest()})
    results[result.key] = result
    if result.source:
        of_source = [other for other in results.values() if other.source == result.source]
        name = f"{HUB_RESULTS_FOLDER}/{result.source.replace('/', '--')}.yaml"
        _write(folder / name, _hub_yaml(of_source))
    empty: tuple[Any, ...] = (None, {}, (), [])
    contents = [
        {k: v for k, v in asdict(each).items() if k == "source" or v not in empty}
        for each in results.values()
    ]
    _write(folder / RESULTS_FILE, f"{json.dumps(contents, indent=2)}\n".encode())


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    with whole_file(path) as file:
        file.write(content)


def _run_name(result: EvaluationResult, taken: set[str]) -> str:
    """`evaluation/<collection>-<split>.trec.gz`; with a digest of the key if that is taken."""
    words = [re.sub(r"[^\w.=-]+", "_", word) for word in (result.collection, result.split)]
    stem = f"{RUNS_FOLDER}/{'-'.join(words).lstrip('.')}"
    digest = hashlib.sha256(repr(result.key).encode()).hexdigest()[:8]
    return f"{stem}-{digest}.trec.gz" if f"{stem}.trec.gz" in taken else f"{stem}.trec.gz"


def _hub_yaml(results: Sequence[EvaluationResult]) -> bytes:
    entries = {}
    # A task has one value: of several depths the greatest is written.
    for result in sorted(results, key=lambda result: result.depth):
        search = [f"{name}={value}" for name, value in result.search.items()]
        for measure, value in result.values.items():
            task = "_".join([result.split, measure, *search])
            entries[task] = EvalResultEntry(
                dataset_id=str(result.source),
                task_id=task,
                value=round(value, DIGITS),
                dataset_revision=result.revision,
                date=result.date,
                notes=f"depth {result.depth}",
            )
    listed = eval_result_entries_to_yaml(list(entries.values()))
    return yaml.safe_dump(listed, sort_keys=False, allow_unicode=True).encode()
