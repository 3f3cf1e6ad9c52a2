"""What a published model reached: results of its evaluations in, files beside its weights out.

evaluation_results.json                     all of them, with the figures in full
evaluation/<collection>-<split>.trec.gz     the runs that were measured
.eval_results/<owner>--<name>.yaml          those on a Hub data set, in the Hub's own form

The card's tables and metadata, and `evaluate_retrieval.py`, read the first of these.
"""

import gzip
import hashlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
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

_NO_FILE_NAME = re.compile(r"[^\w.=-]+")


@dataclass(frozen=True)
class BaselineComparison:
    """One measure beside another system's, on the same queries.

    Attributes:
        baseline: name of the other system.
        measure: such as "MRR@10".
        value: of the other system.
        difference: this model's value minus it.
        p_value: two-sided, of a paired randomisation test over queries, by Holm's correction for
            all comparisons of the result.
    """

    baseline: str
    measure: str
    value: float
    difference: float
    p_value: float


@dataclass(frozen=True)
class EvaluationResult:
    """What a model reached on one split of one collection.

    Attributes:
        collection: its name.
        split: whose queries were judged.
        depth: passages retrieved for a query.
        n_queries: that were measured.
        values: measure -> mean over the queries, in full.
        source: the collection's name on the Hub, `owner/name`, where it is there.
        revision: of that data set, where one was named.
        search: settings of an approximate search; empty for exact search.
        intervals: measure -> 95 % confidence interval of the mean.
        comparisons: with baselines.
        run: `file` (within the repository) and `sha256` (of the run as it was before compression).
        qrels_sha256: of the judgements, as sorted lines in TREC's form.
        fingerprint_passages: of the passages that were searched.
        command: that makes the result again; the model is called `OWNER/NAME`.
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
        """What a later result must share to take this one's place."""
        search = json.dumps(dict(self.search), sort_keys=True)
        return (self.collection, self.source, self.split, self.depth, search)


def read_results(folder: Path) -> list[EvaluationResult]:
    """A repository's results; none if it was not evaluated.

    Raises:
        ValueError: the file is no list of results.
    """
    file = folder / RESULTS_FILE
    if not file.is_file():
        return []
    try:
        return [_from_json(content) for content in json.loads(file.read_text(encoding="utf-8"))]
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{file} is no list of results ({error}): remove it, and evaluate the model anew."
        ) from error


def add_result(folder: Path, result: EvaluationResult, *, run_file: Path | None = None) -> None:
    """Add a result to a repository, or put it in the place of an earlier one of the same things.

    Other results stay as they are. All files are written before the first of them takes its place.

    Args:
        folder: of the repository.
        result: its `run` is filled in here.
        run_file: the TREC run that was measured; it is copied, compressed.

    Raises:
        ValueError: the earlier results cannot be read.
        OSError: no space.
    """
    earlier = read_results(folder)
    replaced = next((other for other in earlier if other.key == result.key), None)
    others = [other for other in earlier if other.key != result.key]
    files: dict[str, bytes] = {}
    if run_file is not None:
        content = run_file.read_bytes()
        name = (replaced and replaced.run and replaced.run["file"]) or _run_name(result, others)
        files[name] = _compressed(content)
        run = {"file": name, "sha256": hashlib.sha256(content).hexdigest()}
        result = replace(result, run=run)
    place = earlier.index(replaced) if replaced else len(others)
    results = [*others[:place], result, *others[place:]]
    files |= _hub_files(folder, results)
    listed = json.dumps([_as_json(each) for each in results], indent=2) + "\n"
    with ExitStack() as written:
        # What is opened first takes its place last: the list of what the others must hold.
        for name, content in {RESULTS_FILE: listed.encode(), **files}.items():
            (folder / name).parent.mkdir(exist_ok=True)
            written.enter_context(whole_file(folder / name)).write(content)
    kept = {each.run["file"] for each in results if each.run}
    if replaced and replaced.run and replaced.run["file"] not in kept:
        (folder / replaced.run["file"]).unlink(missing_ok=True)


def _from_json(content: Mapping[str, Any]) -> EvaluationResult:
    comparisons = tuple(BaselineComparison(**each) for each in content.get("comparisons", ()))
    return EvaluationResult(**{**content, "comparisons": comparisons})


def _as_json(result: EvaluationResult) -> dict[str, Any]:
    """A result without what is not known; the source always stands there."""
    content = asdict(result)
    empty: tuple[Any, ...] = (None, {}, (), [])
    return {k: v for k, v in content.items() if k == "source" or v not in empty}


def _compressed(content: bytes) -> bytes:
    """The same bytes for the same content, whenever and from whatever file."""
    buffer = io.BytesIO()
    with gzip.GzipFile("", "wb", fileobj=buffer, mtime=0) as stream:
        stream.write(content)
    return buffer.getvalue()


def _run_name(result: EvaluationResult, others: Sequence[EvaluationResult]) -> str:
    """`evaluation/<collection>-<split>.trec.gz`, or with more words where that is another's."""
    taken = {other.run["file"] for other in others if other.run}
    words = [result.collection, result.split]
    more = [str(result.depth), *(f"{name}={value}" for name, value in result.search.items())]
    numbers = (str(number) for number in range(2, len(others) + 3))
    for ending in ([], more, *([*more, number] for number in numbers)):
        stem = "-".join(_NO_FILE_NAME.sub("_", word) for word in [*words, *ending])
        name = f"{RUNS_FOLDER}/{stem.lstrip('.')}.trec.gz"
        if name not in taken:
            return name
    raise AssertionError("more names than results")


def _hub_files(folder: Path, results: Sequence[EvaluationResult]) -> dict[str, bytes]:
    """A file for each data set on the Hub; entries that others put there are kept."""
    files = {}
    for source in dict.fromkeys(result.source for result in results if result.source):
        name = f"{HUB_RESULTS_FOLDER}/{source.replace('/', '--')}.yaml"
        of_source = [result for result in results if result.source == source]
        own = {  # of two depths the greater, since a task has one value
            entry.task_id: entry
            for result in sorted(of_source, key=lambda result: result.depth)
            for entry in _hub_entries(result)
        }
        others = [e for e in _read_hub_file(folder / name) if _task(e) not in own]
        entries = [*eval_result_entries_to_yaml(list(own.values())), *others]
        files[name] = yaml.safe_dump(entries, sort_keys=False, allow_unicode=True).encode()
    return files


def _hub_entries(result: EvaluationResult) -> list[EvalResultEntry]:
    settings = [f"depth {result.depth}", *(f"{k} {v}" for k, v in result.search.items())]
    return [
        EvalResultEntry(
            dataset_id=str(result.source),
            task_id="_".join([result.split, measure, *(_other_settings(result))]),
            value=round(value, DIGITS),
            dataset_revision=result.revision,
            date=result.date,
            notes=f"{measure}, split {result.split}, {', '.join(settings)}",
        )
        for measure, value in result.values.items()
    ]


def _other_settings(result: EvaluationResult) -> list[str]:
    """What tells an approximate search's entries from those of the exact one."""
    return [_NO_FILE_NAME.sub("", f"{name}={value}") for name, value in result.search.items()]


def _task(entry: Any) -> Any:
    return entry.get("dataset", {}).get("task_id") if isinstance(entry, Mapping) else None


def _read_hub_file(file: Path) -> list[Any]:
    if not file.is_file():
        return []
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{file} is no YAML ({error}): mend it or remove it.") from error
    return content if isinstance(content, list) else []
