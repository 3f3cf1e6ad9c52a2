"""Provenance: the stages that made a published model, each with its recipe and its record.

Every stage copies its predecessor's provenance and adds itself, so that a card can be made from the
folder alone, wherever it was copied to.
"""

import glob
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from modeling_condenser.runs.run_folder import RECIPE_FILE, RUN_FILE
from modeling_condenser.runs.whole_files import write_json

PROVENANCE_FILE = "provenance.json"
_SECRETS = ("hub_token", "push_to_hub_token")


@dataclass(frozen=True)
class Stage:
    """One stage of a model's making.

    Attributes:
        name: "Pre-training" or "Fine-tuning".
        recipe: what was asked for; local paths are cut to their last part, tokens left out.
        run: what it ran on and how long it took.
    """

    name: str
    recipe: dict[str, Any]
    run: dict[str, Any]


def read_stage(run_folder: Path, name: str) -> Stage | None:
    """The stage that a run folder holds; None if it is not a run folder."""
    recipe, run = run_folder / RECIPE_FILE, run_folder / RUN_FILE
    if not recipe.is_file():
        return None
    record = json.loads(run.read_text()) if run.is_file() else {}
    settings = yaml.safe_load(recipe.read_text()) or {}
    public = {field: value for field, value in settings.items() if field not in _SECRETS}
    return Stage(name, _without_local_paths(public), record)


def read_pretraining(run_folder: Path) -> list[Stage]:
    """The pre-training runs that led to a run, itself last, as far back as they lie here."""
    stage = read_stage(run_folder, "Pre-training")
    if stage is None:
        return []
    recipe = yaml.safe_load((run_folder / RECIPE_FILE).read_text()) or {}
    encoder = Path(str(recipe.get("encoder", "")))
    started_from_run = encoder.is_dir() and encoder.resolve().parent != run_folder.resolve()
    earlier = read_pretraining(encoder.resolve().parent) if started_from_run else []
    return [*earlier, stage]


def read_provenance(folder: Path) -> list[Stage]:
    """The stages that made a model, first to last; none if they are not known."""
    file = folder / PROVENANCE_FILE
    if not file.is_file():
        return []
    return [Stage(**stage) for stage in json.loads(file.read_text())]


def write_provenance(folder: Path, stages: Sequence[Stage]) -> None:
    write_json(folder / PROVENANCE_FILE, [asdict(stage) for stage in stages])


def _without_local_paths(value: Any) -> Any:
    """A recipe as it may be published: a path of this machine says nothing elsewhere."""
    if isinstance(value, dict):
        return {name: _without_local_paths(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_local_paths(item) for item in value]
    is_path = isinstance(value, str) and _is_local_path(value)
    return f"local: {Path(value).name}" if is_path else value


def _is_local_path(text: str) -> bool:
    """Whether a setting names something on this machine, be it still there or not."""
    if not text or "://" in text:
        return False
    looks_local = Path(text).is_absolute() or text.startswith((".", "~")) or text.count("/") > 1
    is_pattern = "/" in text and glob.has_magic(text)
    return looks_local or is_pattern or (len(text) < 256 and Path(text).exists())
