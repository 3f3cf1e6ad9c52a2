"""Complete checkpoints: those with the marker, which is written last."""

import logging
import shutil
from pathlib import Path

from .whole_files import write_json

logger = logging.getLogger(__name__)

# Marks a complete checkpoint. Older versions listed the other files and their sizes in it.
MANIFEST = "checkpoint_manifest.json"
# Patterns of the files beside the model that are only needed for resuming.
TRAINING_STATE = "optimizer.pt scheduler.pt scaler.pt rng_state*.pth trainer_state.json".split()
TRAINING_STATE += ["training_args.bin", MANIFEST]


def seal_checkpoint(folder: Path) -> None:
    """Mark a checkpoint as complete, after all of its other files are written."""
    write_json(folder / MANIFEST, {"complete": True})


def is_complete(folder: Path) -> bool:
    """Whether a checkpoint was written to its end."""
    return (folder / MANIFEST).is_file()


def last_whole_checkpoint(run_folder: Path) -> Path | None:
    """Find the newest complete checkpoint; None if there is none. Incomplete ones are logged."""
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
