"""Run folders: recipe.yaml (settings), run.json (versions, machine, counts), log and checkpoints.

A checkpoint is complete if it has the marker, which is written last.
"""

import importlib.metadata
import json
import logging
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from .whole_files import whole_file, write_json

logger = logging.getLogger(__name__)

RECIPE_FILE = "recipe.yaml"
RUN_FILE = "run.json"
MODEL_FOLDER = "model"
LOG_FILE = "log.json"

# Marks a complete checkpoint. Older versions listed the other files and their sizes in it.
MANIFEST = "checkpoint_manifest.json"
# Patterns of the files beside the model that are only needed for resuming.
TRAINING_STATE = "optimizer.pt scheduler.pt scaler.pt rng_state*.pth trainer_state.json".split()
TRAINING_STATE += ["training_args.bin", MANIFEST]

# Settings that may change when a run is resumed, because its result does not depend on them.
_FREE = set(
    "dataloader_num_workers dataloader_prefetch_factor dataloader_persistent_workers "
    "dataloader_pin_memory devices disable_tqdm hub_always_push hub_model_id hub_private_repo "
    "hub_revision hub_strategy log_level logging_dir logging_first_step logging_steps "
    "preprocessing_workers project push_to_hub readiness report_to resume_from_checkpoint run_name "
    "save_steps save_strategy save_total_limit trackio_bucket_id trackio_space_id "
    "trackio_static_space_id work_folder".split()
)
_UNSTATED = {"output_dir", "hub_token"}  # the place of the folder, and a secret
_PACKAGES = (
    "condenser torch transformers datasets sentence-transformers faiss-cpu bm25s ir-measures"
)


def check_run_folder(folder: Path, settings: Mapping[str, Any]) -> None:
    """Check that a run with these settings can start or resume in a folder.

    Raises:
        ValueError: the folder has other files, or a run with other settings.
    """
    if not (folder / RECIPE_FILE).is_file():
        # Another machine of the same run may be writing the recipe just now.
        if any(RECIPE_FILE not in file.name for file in folder.glob("*")):
            raise ValueError(
                f"{folder} is not empty and holds no run ({RECIPE_FILE} is missing). Choose "
                "another output_dir."
            )
        return
    before = yaml.safe_load((folder / RECIPE_FILE).read_text()) or {}
    changed, stated = [], _stated(settings)
    for name in sorted({*before, *stated} - _FREE):
        then, now = before.get(name, "not set"), stated.get(name, "not set")
        if then != now:
            changed.append(f"{name}: {then!r} then, {now!r} now")
    if changed:
        raise ValueError(
            f"{folder} holds a run of another recipe ({', '.join(changed)}). Choose another "
            "output_dir, or resume the run with its own settings."
        )


def claim_run_folder(folder: Path, settings: Mapping[str, Any]) -> None:
    """Start a run in a folder, after `check_run_folder`."""
    check_run_folder(folder, settings)
    if not (folder / RECIPE_FILE).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(folder / RECIPE_FILE) as file:
            file.write(yaml.safe_dump(_stated(settings), sort_keys=True).encode())


def _stated(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they are written to a recipe: paths as text, tuples as lists."""
    stated = {name: value for name, value in settings.items() if name not in _UNSTATED}
    return json.loads(json.dumps(stated, default=str))


def describe_machine() -> dict[str, Any]:
    """Versions and hardware, for the run's record and the model card."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES.split():
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    cpuinfo = Path("/proc/cpuinfo")  # on Linux
    cpu = re.search(r"model name\s*: (.*)", cpuinfo.read_text() if cpuinfo.is_file() else "")
    name, gpus = cpu[1] if cpu else platform.machine(), []
    if torch := sys.modules.get("torch"):  # BM25 does not import it, and uses no GPU
        gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    hardware = {"cpu": name, "cores": os.cpu_count(), "gpus": gpus}
    return {"versions": versions, "hardware": hardware}


def record_run(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write the record of a run, with versions and hardware added."""
    write_json(folder / RUN_FILE, {**describe_machine(), **facts})


def read_log(run_folder: Path, *, measure: str = "loss") -> list[dict[str, float]]:
    """Read the log entries of a finished run that have a measure."""
    entries = json.loads((run_folder / LOG_FILE).read_text())
    return [entry for entry in entries if measure in entry]


def seal_checkpoint(folder: Path) -> None:
    """Mark a checkpoint as complete, after all of its other files are written."""
    write_json(folder / MANIFEST, {"complete": True})


def is_complete(folder: Path) -> bool:
    """Whether a checkpoint was written to its end."""
    return (folder / MANIFEST).is_file()


def last_whole_checkpoint(run_folder: Path) -> Path | None:
    """Find the newest complete checkpoint, if there is one. Incomplete ones are logged."""
    for folder in sorted(run_folder.glob("checkpoint-*"), key=_step, reverse=True):
        if is_complete(folder):
            return folder
        logger.warning("%s is incomplete; trying an older checkpoint.", folder)
    return None


def drop_old_checkpoints(run_folder: Path, *, keep: int | None, best: str | None = None) -> None:
    """Remove all complete checkpoints but the newest `keep` (None or 0 for all) and the best."""
    folders = sorted(filter(is_complete, run_folder.glob("checkpoint-*")), key=_step)
    for folder in folders[:-keep] if keep else []:
        if best is None or folder.resolve() != Path(best).resolve():
            shutil.rmtree(folder)


def _step(folder: Path) -> int:
    number = folder.name.rpartition("-")[2]
    return int(number) if number.isdigit() else -1


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Write a folder atomically: yield a new folder, which replaces it if the block succeeds."""
    if folder.is_file():
        raise FileExistsError(f"{folder} is a file: name a folder.")
    partial = folder.with_name(f".{folder.name}.partial")
    replaced = folder.with_name(f".{folder.name}.replaced")
    for left in (partial, replaced):  # by a killed process
        shutil.rmtree(left, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        if folder.exists():
            folder.replace(replaced)
        partial.replace(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(replaced, ignore_errors=True)
