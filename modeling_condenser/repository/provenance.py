"""Provenance: the stages that made a model, each with its recipe, record and log.

Every stage copies the provenance of its predecessor and adds itself, so that the folder alone is
enough to write a card.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from modeling_condenser.hub.model_folder import resolve_encoder_name
from modeling_condenser.runs.run_folder import LOG_FILE, RECIPE_FILE, RUN_FILE
from modeling_condenser.runs.whole_files import write_json

from .publishable import publishable as publishable
from .readiness import readiness_entries
from .training_log import thin_log

PROVENANCE_FILE = "provenance.json"
PRETRAINING, FINETUNING = "Pre-training", "Fine-tuning"


@dataclass(frozen=True)
class Stage:
    """One stage of training.

    Attributes:
        name: "Pre-training" or "Fine-tuning".
        recipe: its settings, without secrets and local paths (`publishable`).
        run: its record: data, versions, hardware, time.
        log: at most 200 entries of the training log with losses (`thin_log`).
        readiness: entries with readiness, if it was measured (`readiness.py`).
    """

    name: str
    recipe: dict[str, Any]
    run: dict[str, Any]
    log: Sequence[Mapping[str, float]] = ()
    readiness: Sequence[Mapping[str, float]] = ()


def read_stage(run_folder: Path, name: str) -> Stage | None:
    """The stage of a run folder; None if it is not a run folder."""
    if not (run_folder / RECIPE_FILE).is_file():
        return None
    entries = _read_json(run_folder / LOG_FILE, [])
    return Stage(
        name,
        publishable(_read_recipe(run_folder), near=run_folder),
        publishable(_read_json(run_folder / RUN_FILE, {}), near=run_folder),
        thin_log(entries),
        readiness_entries(entries),
    )


def read_pretraining(run_folder: Path) -> list[Stage]:
    """The pre-training runs that led to a run, the run itself last, as far as they are local."""
    stage = read_stage(run_folder, PRETRAINING)
    if stage is None:
        return []
    encoder = Path(resolve_encoder_name(_read_recipe(run_folder).get("encoder", "")))
    earlier: list[Stage] = []
    if encoder.is_dir() and encoder.resolve().parent != run_folder.resolve():
        earlier = read_provenance(encoder) or read_pretraining(encoder.resolve().parent)
    return [*earlier, stage]


def read_provenance(folder: Path) -> list[Stage]:
    """The stages that made a model, first to last; empty if not recorded."""
    stages = _read_json(folder / PROVENANCE_FILE, [])
    listed = ("log", "readiness")
    return [Stage(**{**stage, **{k: tuple(stage.get(k, ())) for k in listed}}) for stage in stages]


def write_provenance(folder: Path, stages: Sequence[Stage]) -> None:
    write_json(folder / PROVENANCE_FILE, [asdict(stage) for stage in stages])


def label_stages(stages: Sequence[Stage]) -> dict[str, Stage]:
    """Stages by name, numbered where a name occurs again."""
    labelled: dict[str, Stage] = {}
    for stage in stages:
        number = sum(label.partition(" ")[0] == stage.name for label in labelled) + 1
        labelled[stage.name if number == 1 else f"{stage.name} {number}"] = stage
    return labelled


def _read_recipe(run_folder: Path) -> dict[str, Any]:
    return yaml.safe_load((run_folder / RECIPE_FILE).read_text(encoding="utf-8")) or {}


def _read_json(file: Path, otherwise: Any) -> Any:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else otherwise
