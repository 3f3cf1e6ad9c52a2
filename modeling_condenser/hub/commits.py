"""Upload a folder to the Hub as one commit."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

from .errors import HubError, hub_errors

# Weights of an earlier commit that would be loaded beside the new ones.
STALE_WEIGHTS = ("model*.safetensors", "model.safetensors.index.json", "pytorch_model*")


@dataclass(frozen=True)
class Target:
    """The repository `owner/name` that a folder is pushed to; None means the Hub's default."""

    name: str
    revision: str | None = None
    private: bool | None = None
    create_pr: bool = False
    token: str | None = None

    @property
    def url(self) -> str:
        return f"{HfApi().endpoint}/{self.name}"


@dataclass(frozen=True)
class Committed:
    """The newest commit after a push, and whether the push made it."""

    sha: str
    url: str
    is_new: bool


def commit_folder(
    folder: Path, target: Target, *, message: str, stale: Sequence[str] = STALE_WEIGHTS
) -> Committed:
    """Upload a folder in one atomic commit; makes the repository and the branch if needed.

    Args:
        folder: its files; links are followed. Without a change there is no commit.
        target: where to.
        message: of the commit.
        stale: patterns of files to delete from the repository that the folder does not hold.

    Raises:
        HubError: the Hub failed or refused, or the repository is public but must be private.
    """
    api = HfApi(token=target.token)
    with hub_errors(f"push to {target.name}"):
        head = _head(api, target)
        if head is None:
            api.create_repo(target.name, private=target.private, exist_ok=True)
            if target.revision is not None:
                api.create_branch(target.name, branch=target.revision, exist_ok=True)
        commit = api.upload_folder(
            repo_id=target.name,
            folder_path=folder,
            commit_message=message,
            revision=target.revision,
            create_pr=target.create_pr,
            delete_patterns=list(stale),
        )
        url = str(commit.pr_url or commit.commit_url)
        return Committed(str(commit.oid), url, is_new=commit.oid != head)


def _head(api: HfApi, target: Target) -> str | None:
    """Newest commit of the branch; None if there is no such repository or branch."""
    try:
        if target.private and not api.repo_info(target.name).private:
            raise HubError(
                f"{target.name} exists and is public: make it private in its settings, or push "
                "without --private."
            )
        return api.repo_info(target.name, revision=target.revision).sha
    except (RepositoryNotFoundError, RevisionNotFoundError):
        return None
