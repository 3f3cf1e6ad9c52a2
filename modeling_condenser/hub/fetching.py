"""Fetch repositories and training checkpoints from the Hub."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from huggingface_hub import snapshot_download

from modeling_condenser.runs.checkpoints import is_complete, last_whole_checkpoint
from modeling_condenser.runs.run_folder import whole_folder

from .errors import HubError, hub_errors

RepositoryType = Literal["model", "dataset", "space"]
LAST_CHECKPOINT = "last-checkpoint"  # as the Trainer calls it


class HubName(NamedTuple):
    """`owner/name`, or `owner/name@revision` to pin a branch, a tag or a commit."""

    name: str
    revision: str | None

    @classmethod
    def parse(cls, text: str) -> "HubName":
        name, _, revision = text.partition("@")
        return cls(name, revision or None)


def fetch(
    name: str,
    *,
    repo_type: RepositoryType = "model",
    only: Sequence[str] | None = None,
    without: Sequence[str] | None = None,
) -> Path:
    """Fetch a repository into the Hub's cache.

    Args:
        name: `owner/name` or `owner/name@revision`.
        repo_type: kind of repository.
        only: patterns of the files to fetch; all by default.
        without: patterns of files to leave out.

    Raises:
        NotOnHubError: it does not exist on the Hub, or may not be read.
        HubError: the Hub failed, or cannot be reached and the files are not in the cache.
    """
    repository, revision = HubName.parse(name)
    with hub_errors(f"fetch {name}"):
        folder = snapshot_download(
            repository,
            repo_type=repo_type,
            revision=revision,
            allow_patterns=None if only is None else list(only),
            ignore_patterns=None if without is None else list(without),
        )
    return Path(folder)


def fetch_checkpoint(name: str, run_folder: Path) -> Path:
    """Copy the last checkpoint that a run pushed into a run folder, to resume from it.

    Args:
        name: `owner/name` or `owner/name@revision`, pushed with `hub_strategy="checkpoint"`.
        run_folder: of the local run.

    Returns:
        `run_folder/checkpoint-N`, or a later local checkpoint.

    Raises:
        HubError: the repository does not exist, or holds no complete checkpoint.
    """
    fetched = fetch(name, only=[f"{LAST_CHECKPOINT}/*"]) / LAST_CHECKPOINT
    if not is_complete(fetched):
        raise HubError(
            f"{name} has no complete {LAST_CHECKPOINT}/: push with push_to_hub=True and "
            f'hub_strategy="checkpoint" to resume from the Hub, or name an older commit '
            "(owner/name@COMMIT)."
        )
    step = _step(fetched)
    local = last_whole_checkpoint(run_folder)
    if local is not None and _step(local) >= step:
        return local
    checkpoint = run_folder / f"checkpoint-{step}"
    with whole_folder(checkpoint) as partial:
        shutil.copytree(fetched, partial, dirs_exist_ok=True)  # files instead of the cache's links
    return checkpoint


def _step(checkpoint: Path) -> int:
    from transformers.trainer import TRAINER_STATE_NAME  # BM25 imports this module, not torch

    state = json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    return int(state["global_step"])
