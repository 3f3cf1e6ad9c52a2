"""A training checkpoint from the Hub: a repository's name in; a checkpoint of a run folder out."""

import json
import shutil
from pathlib import Path

from transformers.trainer import TRAINER_STATE_NAME

from modeling_condenser.runs.checkpoints import is_complete, last_whole_checkpoint
from modeling_condenser.runs.run_folder import whole_folder

from .errors import HubError
from .fetching import fetch

LAST_CHECKPOINT = "last-checkpoint"


def fetch_checkpoint(name: str, run_folder: Path) -> Path:
    """Bring the checkpoint that a run pushed last into a run folder, to go on from it here.

    Args:
        name: `owner/name` or `owner/name@revision`, pushed with `hub_strategy="checkpoint"`.
        run_folder: of this machine's run.

    Returns:
        `run_folder/checkpoint-N`; or a later one that the run folder has already.

    Raises:
        HubError: the repository is not there or holds no checkpoint.
    """
    fetched = fetch(name, only=[f"{LAST_CHECKPOINT}/*"]) / LAST_CHECKPOINT
    if not is_complete(fetched):
        raise HubError(
            f"{name} holds no {LAST_CHECKPOINT}/ that this package made: push with "
            'push_to_hub=True and hub_strategy="checkpoint" to be able to go on from the Hub.'
        )
    step = _step(fetched)
    local = last_whole_checkpoint(run_folder)
    if local is not None and _step(local) >= step:
        return local
    checkpoint = run_folder / f"checkpoint-{step}"
    with whole_folder(checkpoint) as partial:
        shutil.copytree(fetched, partial, dirs_exist_ok=True)  # out of the cache, links followed
    return checkpoint


def _step(checkpoint: Path) -> int:
    state = json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    return int(state["global_step"])
