"""What a repository records of its model: the stages that made it, and its evaluation results.

provenance.json             the stages, each with its recipe, record and log
evaluation_results.json     all results, unrounded

Every stage copies the provenance of its predecessor and adds itself, so a card can be written from
the folder alone. Settings are published without secrets and local paths.
"""

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path, PureWindowsPath
from typing import Any

from modeling_condenser.files.models import (
    STARTER_FOLDER,
    STARTER_TITLE,
    find_model_folder,
    resolve_encoder_name,
)
from modeling_condenser.files.run_folder import (
    atomic_file,
    describe_machine,
    read_json,
    write_json,
)

from .training_log import thin_log

logger = logging.getLogger(__name__)

PROVENANCE_FILE = "provenance.json"
RESULTS_FILE = "evaluation_results.json"
PRETRAINING, FINETUNING, ADAPTATION = "Pre-training", "Fine-tuning", "Adaptation"

# A token of the Hub, or the login in an address.
SECRET = re.compile(r"\b(?:hf|api_org)_[A-Za-z0-9]{20,}|(?<=://)[^\s/:@\"']+:[^\s/@\"']{3,}@")
KEEPS_START = "keeps_start"  # in the record of a fine-tuning: the best weights are the start's
IN_MEMORY = "a model in memory"  # as the encoder of a training
LOCAL = "local: "  # before the name of a folder, or the ending of files, of this machine
# Names of settings that are secrets, or folders of this machine.
_LEFT_OUT = re.compile(
    r"(^|_)(token|password|passwd|secret|api_?key|credentials?|dir)$", re.IGNORECASE
)
# Settings that name data, in which a text with an ending is a file.
_DATA = frozenset({"corpus", "collection", "data", "negatives", "path"})
_MODELS = ("encoder", "tokenizer")  # settings that name a model
# Texts, and mappings of texts, in which a slash makes no path.
_NEVER_PATHS = frozenset({"query_prompt", "passage_prompt", "title_separator", "verdict"})
_NEVER_PATHS |= {"columns", "text_column", "hardware", "versions"}
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class Stage:
    """One stage of training.

    Attributes:
        name: "Pre-training", "Fine-tuning" or "Adaptation".
        recipe: its settings, without secrets and local paths (`publishable`).
        run: its record: data, versions, hardware, time.
        log: at most 200 entries of the training log with losses (`thin_log`).
    """

    name: str
    recipe: dict[str, Any]
    run: dict[str, Any]
    log: list[dict[str, float]] = field(default_factory=list)


def describe_stage(
    name: str, recipe: Mapping[str, Any], run: Mapping[str, Any], log: Sequence[Mapping[str, Any]]
) -> Stage:
    """A stage with what may be published of its settings, its record and its log."""
    return Stage(name, publishable(recipe), publishable(run), thin_log(log))


def read_start(name: str | Path | None) -> list[Stage]:
    """The stages of the model that a stage starts from; none if they are not on this disk.

    A record of another tool gives none either, with a warning.
    """
    try:  # a training that started from a model of the Hub has fetched it
        return read_provenance(find_model_folder(name, local_files_only=True)) if name else []
    except OSError:
        return []
    except ValueError as error:
        logger.warning("The stages that made %s are not recorded: %s", name, error)
        return []


def drop_starter(stages: Sequence[Stage]) -> Sequence[Stage]:
    """The stages after the bundled encoder; all if they did not start from it."""
    encoders = [str(stage.recipe.get("encoder", "")) for stage in stages]
    starts = [i for i, name in enumerate(encoders) if name.startswith(STARTER_TITLE)]
    return stages[starts[-1] :] if starts else stages


def read_provenance(folder: Path) -> list[Stage]:
    """The stages that made a model, first to last; empty if not recorded."""
    try:
        return [Stage(**stage) for stage in read_json(folder / PROVENANCE_FILE, [])]
    except TypeError as error:
        raise ValueError(
            f"{folder / PROVENANCE_FILE} does not hold the stages of a training ({error})."
        ) from error


def write_provenance(folder: Path, stages: Sequence[Stage]) -> None:
    write_json(folder / PROVENANCE_FILE, [asdict(stage) for stage in stages])


def publishable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe, record or Trainer's arguments as plain JSON without secrets and local paths.

    Tokens, passwords and settings named `..._dir` are left out. A path becomes `local: FOLDER`,
    without the folders above, or `local: *.ENDING` for a file, because the names of documents may
    be private. An address loses its query.
    """
    named = {str(name): value for name, value in settings.items()}
    return {
        name: _publishable(value, name)
        for name, value in named.items()
        if not _LEFT_OUT.search(name)
    }


def _publishable(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        if name in _NEVER_PATHS:
            return {str(key): _publishable(part, name) for key, part in value.items()}
        return publishable(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [_publishable(item, name) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    text = SECRET.sub("…", str(value))
    if name in _NEVER_PATHS:
        return text
    if name in _MODELS and resolve_encoder_name(text) == str(STARTER_FOLDER):
        return STARTER_TITLE
    if "://" in text and not text.startswith("file:"):
        return text.partition("?")[0]
    if cached := re.search(r"models--([^/\\]+)--([^/\\]+)[/\\]snapshots[/\\]", text):
        return "/".join(cached.groups())  # the folder of a revision
    path = PureWindowsPath(text)  # Windows' rules accept both kinds of slashes
    if re.search(r"[/\\]", text):
        is_path = hub_name(text) is None or Path(text).exists()
    elif name in _MODELS:
        is_path = Path(text).is_dir()
    else:
        is_path = name in _DATA and (path.suffix != "" or Path(text).exists())
    if not is_path:
        return text
    is_file = path.suffix != "" and not Path(text).is_dir() and name not in _MODELS
    return f"{LOCAL}*{path.suffix}" if is_file else f"{LOCAL}{path.name}"


def hub_name(text: object) -> str | None:
    """The `owner/name` in a setting, without `@revision`; None if it is no name on the Hub."""
    name = text.partition("@")[0] if isinstance(text, str) else ""
    return name if _HUB_NAME.fullmatch(name) else None


def hub_model(text: object) -> str | None:
    """As `hub_name`; a model of the Hub may also have no owner, as `bert-base-uncased`."""
    name = text.partition("@")[0] if isinstance(text, str) else ""
    return name if re.fullmatch(r"[\w.-]+", name) else hub_name(text)


@dataclass(frozen=True)
class EvaluationResult:
    """Measures of a model on one split of one collection.

    Attributes:
        depth: passages retrieved for a query.
        values: measure -> mean over the queries, unrounded.
        source: `owner/name` of the collection on the Hub; None if it is local.
        search: settings of an approximate search, and `dtype` unless it is float32.
        intervals: measure -> 95 % confidence interval of the mean.
        comparisons: with other systems on the same queries: `baseline`, `measure`, the baseline's
            `value`, the `difference` of this model's value from it, and the `p_value` of a
            two-sided paired randomisation test, with Holm's correction over the evaluation.
        shared_queries: other split of the collection -> number of these queries that it has too.
        command: reproduces the result of the model `OWNER/NAME`.
        date: in UTC, as in 2026-01-31.
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
    shared_queries: Mapping[str, int] = field(default_factory=dict)
    fingerprint_passages: str | None = None
    command: str | None = None
    date: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """A later result with the same key replaces this one."""
        search = [f"{name}={value}" for name, value in sorted(self.search.items())]
        words = (self.source or self.collection, self.split, str(self.depth), *search)
        return re.sub(r"[^\w.=-]+", "_", "-".join(words)).lstrip(".")


def read_results(folder: Path) -> list[EvaluationResult]:
    """A repository's results; none if it was not evaluated."""
    try:
        return [EvaluationResult(**result) for result in read_json(folder / RESULTS_FILE, [])]
    except TypeError as error:
        raise ValueError(
            f"{folder / RESULTS_FILE} does not hold results of this version ({error}): remove it, "
            "and evaluate again."
        ) from error


def add_result(folder: Path, result: EvaluationResult) -> None:
    """Add a result to a repository, or replace an earlier one with the same key.

    Date and versions of the result are filled in here.
    """
    results = {earlier.key: earlier for earlier in read_results(folder)}
    versions = describe_machine()["versions"]
    result = replace(result, date=datetime.now(UTC).date().isoformat(), versions=versions)
    results[result.key] = result
    _write_results(folder, results.values())


def add_results_of(earlier: Path, folder: Path) -> None:
    """Add to a repository the results of another one whose keys it has not."""
    results = {each.key: each for each in (*read_results(earlier), *read_results(folder))}
    if results:
        _write_results(folder, results.values())


def _write_results(folder: Path, results: Iterable[EvaluationResult]) -> None:
    contents = [
        {name: value for name, value in asdict(each).items() if value or name == "source"}
        for each in results
    ]
    with atomic_file(folder / RESULTS_FILE) as file:  # unsorted: the main measure is first
        file.write(f"{json.dumps(contents, indent=2)}\n".encode())
