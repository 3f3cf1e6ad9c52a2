"""Run folders: recipe.yaml (settings), run.json (versions, machine, counts), log and checkpoints.

A checkpoint is complete if it has the manifest, which is written last. A folder belongs to one run
(`RunIdentity`), and no other run continues it.
"""

import importlib.metadata
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from .whole_files import read_json, whole_file, write_json

RECIPE_FILE = "recipe.yaml"
RUN_FILE = "run.json"
MODEL_FOLDER = "model"
LOG_FILE = "log.json"

# Marks a complete checkpoint, and holds the fingerprints of its run and the sums of its training.
# Those of older versions have neither.
MANIFEST = "checkpoint_manifest.json"
# Patterns of the files beside the model that are only needed for resuming.
TRAINING_STATE = "optimizer.pt scheduler.pt scaler.pt rng_state*.pth trainer_state.json".split()
TRAINING_STATE += ["training_args.bin", MANIFEST]

START = "start_fingerprint"  # of the weights and the configuration that a training starts from

# Settings that may change when a run is resumed, because its result does not depend on them.
_MAY_DIFFER = set(
    "dataloader_num_workers dataloader_prefetch_factor dataloader_persistent_workers "
    "dataloader_pin_memory devices disable_tqdm embeddings hub_always_push hub_model_id "
    "hub_private_repo hub_revision hub_strategy log_level logging_dir logging_first_step "
    "logging_steps preprocessing_workers project push_to_hub readiness report_to "
    "resume_from_checkpoint run_name save_steps save_strategy save_total_limit trackio_bucket_id "
    "trackio_space_id trackio_static_space_id work_folder".split()
)
_NOT_RECORDED = {"output_dir", "hub_token"}  # the place of the folder, and a secret
_PACKAGES = (
    "condenser torch transformers datasets sentence-transformers faiss-cpu bm25s ir-measures"
)


@dataclass(frozen=True)
class RunIdentity:
    """What a run folder belongs to.

    Attributes:
        settings: of the recipe, or of the trainer in a script.
        fingerprints: of the model and the data that the run starts from (`fingerprints_of`).
        defaults: values of settings that are not stated.
    """

    settings: Mapping[str, Any]
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def differences(self, earlier: "RunIdentity") -> list[str]:
        """What differs from an earlier run; empty if this run may continue it.

        Settings that do not change a result may differ. A fingerprint that one of the two lacks is
        not compared.
        """
        then, now = (_stated({**self.defaults, **own.settings}) for own in (earlier, self))
        names = sorted({*then, *now} - _MAY_DIFFER)
        pairs = {name: (then.get(name, "not set"), now.get(name, "not set")) for name in names}
        for name in sorted(earlier.fingerprints.keys() & self.fingerprints.keys()):
            pairs[name] = (earlier.fingerprints[name][:12], self.fingerprints[name][:12])
        return [
            f"{name}: {old!r} then, {new!r} now" for name, (old, new) in pairs.items() if old != new
        ]


def fingerprints_of(facts: Mapping[str, Any]) -> dict[str, str]:
    """The facts of a run that are fingerprints of model and data, by the end of their name."""
    ends = ("_fingerprint", "_sha256")
    return {name: str(value) for name, value in facts.items() if name.endswith(ends)}


def read_identity(folder: Path) -> RunIdentity | None:
    """The run that a folder holds, with the fingerprints of what it was trained on so far.

    None if the folder has no recipe.
    """
    if not (folder / RECIPE_FILE).is_file():
        return None
    settings = yaml.safe_load((folder / RECIPE_FILE).read_text()) or {}
    checkpoint = last_whole_checkpoint(folder)
    so_far = read_manifest(checkpoint) if checkpoint else {}
    return RunIdentity(settings, fingerprints_of(read_json(folder / RUN_FILE, so_far)))


def check_run_folder(folder: Path, identity: RunIdentity) -> None:
    """Check that a run can start or resume in a folder.

    Raises:
        ValueError: the folder has other files, or a run with other settings, model or data.
        PermissionError: a new one cannot be written.
    """
    earlier = read_identity(folder)
    if earlier is None:
        place = folder.absolute()
        nearest = next(part for part in (place, *place.parents) if part.exists())
        if not os.access(nearest, os.W_OK):
            raise PermissionError(f"{folder} cannot be written: choose another output_dir.")
        # Another machine of the same run may be writing the recipe just now.
        if any(RECIPE_FILE not in file.name for file in folder.glob("*")):
            raise ValueError(
                f"{folder} is not empty and holds no run ({RECIPE_FILE} is missing). Choose "
                "another output_dir."
            )
    elif changed := identity.differences(earlier):
        advice = "Choose another output_dir, or resume the run with its own settings and data."
        if last_whole_checkpoint(folder):
            advice += (
                " In a script, train(resume_from_checkpoint=False) removes its checkpoints and "
                "starts again."
            )
        raise ValueError(f"{folder} holds a run of another recipe ({', '.join(changed)}). {advice}")


def check_checkpoint(checkpoint: Path, identity: RunIdentity) -> None:
    """Raise a ValueError if a checkpoint, whose settings and start may differ, has other data.

    Data without a fingerprint are not compared; a stream is compared by its first documents.
    """
    earlier = fingerprints_of(read_manifest(checkpoint))
    now = {name: value for name, value in identity.fingerprints.items() if name != START}
    if changed := RunIdentity({}, now).differences(RunIdentity({}, earlier)):
        raise ValueError(
            f"{checkpoint} was trained on other data ({', '.join(changed)}). To train it on "
            "these, open it as the model of a new run, in another output_dir."
        )


def claim_run_folder(folder: Path, identity: RunIdentity) -> None:
    """Start a run in a folder, after `check_run_folder`."""
    check_run_folder(folder, identity)
    if not (folder / RECIPE_FILE).is_file():
        write_settings(folder, identity.settings)


def write_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write the recipe of a run, without its place and secrets."""
    folder.mkdir(parents=True, exist_ok=True)
    with whole_file(folder / RECIPE_FILE) as file:
        file.write(yaml.safe_dump(_stated(settings), sort_keys=True).encode())


def _stated(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they are written to a recipe: paths as text, tuples as lists."""
    stated = {name: value for name, value in settings.items() if name not in _NOT_RECORDED}
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
    return [entry for entry in json.loads((run_folder / LOG_FILE).read_text()) if measure in entry]


def seal_checkpoint(folder: Path, facts: Mapping[str, Any] | None = None) -> None:
    """Mark a checkpoint as complete, after all of its other files are written."""
    write_json(folder / MANIFEST, {**(facts or {}), "complete": True})


def read_manifest(checkpoint: Path) -> dict[str, Any]:
    """The manifest of a checkpoint; empty if there is none, as in those of other trainers."""
    return read_json(checkpoint / MANIFEST, {})


def is_complete(folder: Path) -> bool:
    """Whether a checkpoint was written to its end."""
    return (folder / MANIFEST).is_file()


def all_checkpoints(run_folder: Path) -> list[Path]:
    """The checkpoints of a run, complete or not, oldest first."""
    return sorted(filter(Path.is_dir, run_folder.glob("checkpoint-*")), key=_step)


def last_whole_checkpoint(run_folder: Path) -> Path | None:
    """The newest complete checkpoint of a run; None if there is none."""
    return next(filter(is_complete, reversed(all_checkpoints(run_folder))), None)


def _step(folder: Path) -> int:
    number = folder.name.rpartition("-")[2]
    return int(number) if number.isdigit() else -1


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Write a folder atomically: yield a new folder, which replaces it if the block succeeds."""
    if folder.is_file():
        raise FileExistsError(f"{folder} is a file: name a folder.")
    folder = _real(folder)
    restore_folder(folder)
    partial = _beside(folder, "partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a killed process
    partial.mkdir(parents=True)
    try:
        yield partial
        replace_folder(folder, partial)
    finally:
        restore_folder(folder)
        shutil.rmtree(partial, ignore_errors=True)


def replace_folder(folder: Path, new: Path) -> None:
    """Move a complete folder to the place of another one, which `restore_folder` undoes."""
    folder = _real(folder)
    if folder.exists():
        folder.replace(_beside(folder, "replaced"))
    new.replace(folder)
    restore_folder(folder)


def restore_folder(folder: Path) -> None:
    """Put back a folder that `whole_folder` had moved away, unless the new one is in its place."""
    folder = _real(folder)
    replaced = _beside(folder, "replaced")
    if folder.exists():
        shutil.rmtree(replaced, ignore_errors=True)
    elif replaced.exists():
        replaced.replace(folder)


def _real(folder: Path) -> Path:
    """The folder itself, where a link leads to it."""
    if folder.name in ("", ".."):
        raise ValueError(f"{folder} would be replaced as a whole: name a new folder in it.")
    return folder.resolve()


def _beside(folder: Path, ending: str) -> Path:
    """Where a folder is kept while it is written or replaced."""
    return folder.with_name(f".{folder.name}.{ending}")
