"""Tells complete checkpoints from those that a killed process left half written.

The last file of a checkpoint is a manifest with the size of every other file. A checkpoint without
it, or with files of other sizes, is not used to resume.
"""

import json
import logging
import shutil
from pathlib import Path

from .whole_files import is_partial, write_json

logger = logging.getLogger(__name__)

MANIFEST = "checkpoint_manifest.json"
# Files that the Trainer saves beside the model, for resuming.
_TRAINING_STATE = (
    "optimizer.pt",
    "scheduler.pt",
    "scaler.pt",
    "rng_state*.pth",
    "trainer_state.json",
    "training_args.bin",
    MANIFEST,
)


def seal_checkpoint(folder: Path) -> None:
    """Write the manifest of a checkpoint whose other files are all written."""
    files = {
        str(file.relative_to(folder)): {"size": file.stat().st_size}
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != MANIFEST and not is_partial(file)
    }
    write_json(folder / MANIFEST, files)


def model_files(checkpoint: Path) -> list[Path]:
    """List the files of a checkpoint that belong to the model, not to its training."""
    return [
        file
        for file in sorted(checkpoint.rglob("*"))
        if file.is_file() and not is_partial(file) and not is_training_state(file)
    ]


def is_training_state(file: Path) -> bool:
    """Whether a file of a checkpoint is only needed for resuming."""
    return any(file.match(pattern) for pattern in _TRAINING_STATE)


def find_damage(folder: Path) -> str | None:
    """Describe what is wrong with a checkpoint that has a manifest; None if nothing is."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except ValueError:
        return f"{MANIFEST} cannot be read"
    for name, expected in manifest.items():
        file = folder / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != expected["size"]:
            return f"{name} has {file.stat().st_size} bytes instead of {expected['size']}"
    return None


def last_whole_checkpoint(run_folder: Path) -> Path | None:
    """Find the newest complete checkpoint; None if there is none.

    Incomplete and damaged checkpoints are skipped with a warning.

    Raises:
        ValueError: there are checkpoints with a manifest, but all of them are damaged.
    """
    damaged: list[str] = []
    for folder in sorted(run_folder.glob("checkpoint-*"), key=_step, reverse=True):
        if not (folder / MANIFEST).is_file():
            logger.warning("%s is incomplete; trying an older checkpoint.", folder)
            continue
        damage = find_damage(folder)
        if damage is None:
            return folder
        damaged.append(f"{folder.name}: {damage}")
        logger.warning("%s is damaged (%s); trying an older checkpoint.", folder, damage)
    if damaged:
        raise ValueError(
            f"No checkpoint in {run_folder} can be resumed from: {'; '.join(damaged)}. Restore the "
            "files, or remove these folders to start the run again."
        )
    return None


def drop_old_checkpoints(run_folder: Path, *, keep: int | None, best: str | None = None) -> None:
    """Remove the oldest complete checkpoints, but never the best one.

    Args:
        run_folder: that holds the `checkpoint-*` folders.
        keep: how many to keep; None or 0 to keep all.
        best: folder of the best checkpoint, if any.
    """
    if not keep:
        return
    folders = sorted(run_folder.glob("checkpoint-*"), key=_step)
    for folder in [f for f in folders if (f / MANIFEST).is_file()][:-keep]:
        if best is None or folder.resolve() != Path(best).resolve():
            shutil.rmtree(folder)


def _step(folder: Path) -> int:
    number = folder.name.rpartition("-")[2]
    return int(number) if number.isdigit() else -1
