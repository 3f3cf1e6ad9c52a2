"""Run folders: what a stage leaves behind, so that it can be rerun, judged and described.

recipe.yaml    what was asked for
run.json       what it ran on: versions, machine, data fingerprints, counts, time
...            what the stage made
"""

import importlib.metadata
import json
import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from .whole_files import write_json

RECIPE_FILE = "recipe.yaml"
RUN_FILE = "run.json"
MODEL_FOLDER = "model"
LOG_FILE = "log.json"

# Settings that may change between two sessions of one run, because its result does not depend on
# them.
_FREE = frozenset(
    "dataloader_num_workers dataloader_prefetch_factor dataloader_persistent_workers "
    "dataloader_pin_memory disable_tqdm hub_always_push hub_model_id hub_private_repo hub_revision "
    "hub_strategy log_level logging_dir logging_first_step logging_steps preprocessing_workers "
    "push_to_hub readiness report_to resume_from_checkpoint run_name save_steps save_strategy "
    "save_total_limit".split()
)
_UNSTATED = frozenset({"output_dir", "hub_token"})  # where it lies, and what is secret
_PACKAGES = tuple(
    "torch transformers datasets sentence-transformers numpy faiss-cpu bm25s ir-measures".split()
)


def claim_run_folder(folder: Path, settings: Mapping[str, Any]) -> None:
    """Make a folder the run of these settings, or check that it already is.

    Args:
        folder: new, empty, or of an earlier session of the same run.
        settings: the recipe, as read.

    Raises:
        ValueError: the folder holds something else, or a run of other settings.
    """
    stated = {name: value for name, value in settings.items() if name not in _UNSTATED}
    recipe = folder / RECIPE_FILE
    if recipe.is_file():
        _refuse_other_recipe(folder, yaml.safe_load(recipe.read_text()) or {}, stated)
        return
    partial = recipe.with_name(f".{RECIPE_FILE}.partial")
    if folder.is_dir() and any(entry != partial for entry in folder.iterdir()):
        raise ValueError(
            f"{folder} is not empty and holds no run ({RECIPE_FILE} is missing): choose another "
            "output_dir, so that nothing is overwritten."
        )
    folder.mkdir(parents=True, exist_ok=True)
    partial.write_text(yaml.safe_dump(stated, sort_keys=True))
    partial.replace(recipe)


def _refuse_other_recipe(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    absent = object()
    changed = sorted(
        name
        for name in {*before, *now} - _FREE
        if before.get(name, absent) != now.get(name, absent)
    )
    if changed:
        differences = ", ".join(
            f"{name}: {before.get(name, 'not set')!r} then, {now.get(name, 'not set')!r} now"
            for name in changed
        )
        raise ValueError(
            f"{folder} holds a run of another recipe ({differences}). Choose another output_dir, "
            "or repeat the run's own settings to go on with it."
        )


def describe_machine() -> dict[str, Any]:
    """Versions and hardware, as the run's record and the model card state them."""
    import torch

    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "versions": versions,
        "hardware": {"cpu": _cpu_name(), "cores": os.cpu_count(), "gpus": gpus},
    }


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def record_run(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write a run's record, with versions and hardware added."""
    write_json(folder / RUN_FILE, {**describe_machine(), **facts})


def read_log(run_folder: Path) -> list[dict[str, float]]:
    """The log entries of a finished run that hold losses."""
    entries = json.loads((run_folder / LOG_FILE).read_text())
    return [entry for entry in entries if "loss" in entry]


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Fill a folder whole or not at all.

    Yields:
        An empty folder beside it, which takes its place when the block ends without an error.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    if partial.exists():
        shutil.rmtree(partial)  # of a process that was killed
    partial.mkdir(parents=True)
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    replaced = folder.with_name(f".{folder.name}.replaced")
    shutil.rmtree(replaced, ignore_errors=True)  # of a process that was killed
    if folder.exists():
        folder.replace(replaced)
    partial.replace(folder)
    shutil.rmtree(replaced, ignore_errors=True)
