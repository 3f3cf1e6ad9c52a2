"""Fetch repositories and training checkpoints from the Hub."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from huggingface_hub import errors, snapshot_download

from modeling_condenser.runs.checkpoints import is_complete, last_whole_checkpoint
from modeling_condenser.runs.run_folder import whole_folder

_NOT_FOUND = (
    errors.RepositoryNotFoundError,
    errors.RevisionNotFoundError,
    errors.LocalEntryNotFoundError,
    errors.HFValidationError,
)
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
    repo_type: Literal["model", "dataset", "space"] = "model",
    only: Sequence[str] | None = None,
    without: Sequence[str] | None = None,
) -> Path:
    """Fetch a repository into the Hub's cache.

    Args:
        name: `owner/name` or `owner/name@revision`.
        repo_type: kind of repository.
        only, without: patterns of the files to fetch, all by default, and of those to leave out.

    Raises:
        FileNotFoundError: it does not exist on the Hub, or may not be read; or the Hub cannot be
            reached and the files are not in the cache.
        OSError: the Hub failed.
    """
    repository, revision = HubName.parse(name)
    try:
        folder = snapshot_download(
            repository,
            repo_type=repo_type,
            revision=revision,
            allow_patterns=None if only is None else list(only),
            ignore_patterns=None if without is None else list(without),
        )
    except _NOT_FOUND as error:
        raise FileNotFoundError(f"Cannot fetch {name} from the Hub: {error}") from None
    return Path(folder)


def fetch_checkpoint(name: str, run_folder: Path) -> Path:
    """Copy the last checkpoint that a run pushed into a run folder, to resume from it.

    Args:
        name: `owner/name` or `owner/name@revision`, pushed with `hub_strategy="checkpoint"`.
        run_folder: of the local run; a later checkpoint in it is returned instead.

    Raises:
        FileNotFoundError: the repository does not exist, or holds no complete checkpoint.
    """
    fetched = fetch(name, only=[f"{LAST_CHECKPOINT}/*"]) / LAST_CHECKPOINT
    if not is_complete(fetched):
        raise FileNotFoundError(
            f"{name} has no complete {LAST_CHECKPOINT}/: push with push_to_hub=True and "
            f'hub_strategy="checkpoint" to resume from the Hub, or name an older commit '
            "(owner/name@COMMIT)."
        )
    step, local = _step(fetched), last_whole_checkpoint(run_folder)
    if local is not None and _step(local) >= step:
        return local
    checkpoint = run_folder / f"checkpoint-{step}"
    with whole_folder(checkpoint) as partial:
        shutil.copytree(fetched, partial, dirs_exist_ok=True)
    return checkpoint


def _step(checkpoint: Path) -> int:
    return int(json.loads((checkpoint / "trainer_state.json").read_text("utf-8"))["global_step"])
