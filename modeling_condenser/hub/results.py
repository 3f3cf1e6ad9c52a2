"""Store evaluation results beside a model's weights.

evaluation_results.json     all results, with the figures in full
evaluation/*.trec.gz        the runs that were measured

The card and `evaluate_retrieval.py` read the first of these.
"""

import gzip
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from modeling_condenser.runs.run_folder import describe_machine
from modeling_condenser.runs.whole_files import checksum_file, whole_file

from .model_folder import read_json

RESULTS_FILE = "evaluation_results.json"
RUNS_FOLDER = "evaluation"


@dataclass(frozen=True)
class EvaluationResult:
    """Measures of a model on one split of one collection.

    Attributes:
        depth: passages retrieved for a query.
        values: measure -> mean over the queries, in full.
        source: the collection's name on the Hub, `owner/name`; None if it is local.
        search: settings of an approximate search; empty for exact search.
        intervals: measure -> 95 % confidence interval of the mean.
        comparisons: with other systems on the same queries: `baseline`, `measure`, the baseline's
            `value`, the `difference` of this model's value from it, and the `p_value` of a
            two-sided paired randomisation test, with Holm's correction over the result.
        run: `file` (within the repository) and `sha256` (of the uncompressed run).
        qrels_sha256: of the judgements as sorted lines in TREC format.
        benchmark: that defines the task, such as "MTEB"; None for a collection.
        command: that reproduces the result; it calls the model `OWNER/NAME`.
        date: in UTC, as in 2026-01-31.
        versions: of libraries.
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
    comparisons: Sequence[Mapping[str, Any]] = field(default_factory=list)
    run: Mapping[str, str] | None = None
    qrels_sha256: str | None = None
    fingerprint_passages: str | None = None
    benchmark: str | None = None
    command: str | None = None
    date: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """A later result with the same key replaces this one."""
        search = [f"{name}={value}" for name, value in sorted(self.search.items())]
        named = [self.benchmark, self.collection] if self.benchmark else []
        source = self.source or self.collection
        words = map(str, [*named, source, self.split, self.depth, *search])
        return re.sub(r"[^\w.=-]+", "_", "-".join(words)).lstrip(".")


def read_results(folder: Path) -> list[EvaluationResult]:
    """A repository's results; none if it was not evaluated."""
    return [EvaluationResult(**stored) for stored in read_json(folder / RESULTS_FILE, [])]


def add_result(folder: Path, result: EvaluationResult, *, run_file: Path | None = None) -> None:
    """Add a result to a repository, or replace an earlier one with the same key.

    Args:
        folder: of the repository.
        result: its `run`, `date` and `versions` are filled in here; stated versions are kept.
        run_file: the TREC run that was measured; a compressed copy is stored.
    """
    results = {earlier.key: earlier for earlier in read_results(folder)}
    versions = {**describe_machine()["versions"], **result.versions}
    result = replace(result, date=datetime.now(UTC).date().isoformat(), versions=versions)
    if run_file is not None:
        name = f"{RUNS_FOLDER}/{result.key}.trec.gz"
        (folder / RUNS_FOLDER).mkdir(exist_ok=True)
        with whole_file(folder / name) as file:
            file.write(gzip.compress(run_file.read_bytes(), mtime=0))
        result = replace(result, run={"file": name, "sha256": checksum_file(run_file)})
    results[result.key] = result
    contents = [
        {name: value for name, value in asdict(each).items() if value or name == "source"}
        for each in results.values()
    ]
    with whole_file(folder / RESULTS_FILE) as file:  # the first measure is the main one
        file.write(f"{json.dumps(contents, indent=2)}\n".encode())
