"""Whole checkpoints and how they are told from torn ones.

A process can die, and a disk can fill, in the middle of writing. A checkpoint therefore counts as
whole when it holds a manifest, written last, that names every file with its size and checksum.
"""

import json
import logging
import shutil
from pathlib import Path

from .whole_files import checksum_file, is_partial, write_json

logger = logging.getLogger(__name__)

MANIFEST = "checkpoint_manifest.json"
# What the Trainer saves beside the model, to go on training with.
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
    """Write the manifest of a checkpoint all of whose files are written."""
    files = {
        str(file.relative_to(folder)): {"size": file.stat().st_size, "sha256": checksum_file(file)}
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != MANIFEST and not is_partial(file)
    }
    write_json(folder / MANIFEST, files)


def model_files(checkpoint: Path) -> list[Path]:
    """The files of a checkpoint that belong to the model, and not to its training."""
    return [
        file
        for file in sorted(checkpoint.rglob("*"))
        if file.is_file() and not is_partial(file) and not is_training_state(file)
    ]


def is_training_state(file: Path) -> bool:
    """Whether a file of a checkpoint only serves to go on training."""
    return any(file.match(pattern) for pattern in _TRAINING_STATE)


def find_damage(folder: Path) -> str | None:
    """What is wrong with a sealed checkpoint; None if nothing is."""
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
        if checksum_file(file) != expected["sha256"]:
            return f"{name} has been changed"
    return None


def last_whole_checkpoint(run_folder: Path) -> Path | None:
    """The newest checkpoint to resume from; None if there is none.

    Torn checkpoints, which a killed process leaves, and damaged ones are passed over with a
    warning.

    Raises:
        ValueError: there are checkpoints, but every one of them is damaged.
    """
    damaged: list[str] = []
    for folder in sorted(run_folder.glob("checkpoint-*"), key=_step, reverse=True):
        if not _is_sealed(folder):
            logger.warning("%s was not written to its end; trying an older one.", folder)
            continue
        damage = find_damage(folder)
        if damage is None:
            return folder
        damaged.append(f"{folder.name}: {damage}")
        logger.warning("%s is damaged (%s); trying an older one.", folder, damage)
    if damaged:
        raise ValueError(
            f"No checkpoint in {run_folder} can be resumed from: {'; '.join(damaged)}. Restore the "
            "files, or remove these folders to start the run again."
        )
    return None


def drop_old_checkpoints(run_folder: Path, *, keep: int | None, best: str | None = None) -> None:
    """Remove the oldest whole checkpoints beyond a number to keep, never the best one.

    Args:
        run_folder: that holds the `checkpoint-*` folders.
        keep: how many to keep, at least 1; None or 0 to keep all.
        best: folder of the best checkpoint, if any.
    """
    if not keep:
        return
    sealed = [f for f in sorted(run_folder.glob("checkpoint-*"), key=_step) if _is_sealed(f)]
    for folder in sealed[:-keep]:
        if best is None or folder.resolve() != Path(best).resolve():
            shutil.rmtree(folder)


def _is_sealed(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def _step(folder: Path) -> int:
    number = folder.name.rpartition("-")[2]
    return int(number) if number.isdigit() else -1
