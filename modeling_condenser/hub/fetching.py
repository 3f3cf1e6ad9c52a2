"""Repositories of the Hub in the local cache: a name in; a folder with checked files out."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from huggingface_hub import snapshot_download
from huggingface_hub.utils.sha import git_hash

from modeling_condenser.runs.whole_files import checksum_file

from .errors import HubError, hub_errors
from .retries import retrying

RepositoryType = Literal["model", "dataset", "space"]
_SHA256_DIGITS, _SHA1_DIGITS = 64, 40


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
    """Fetch a repository, or what of it is needed, into the Hub's cache.

    Each file that this call downloads is hashed and compared with the checksum that the Hub gave
    for it: the client itself compares lengths only.

    Args:
        name: `owner/name` or `owner/name@revision`.
        repo_type: kind of repository.
        only: patterns of the files to fetch; all by default.
        without: patterns of files to leave.

    Returns:
        The folder of the revision in the cache; it may hold files of earlier calls too.

    Raises:
        NotOnHubError: it is not there, may not be seen, or the Hub cannot be reached and it was not
            fetched before.
        HubError: anything else, such as a file that differs from its checksum, which is removed.
    """
    repository, revision = HubName.parse(name)
    started = time.time()
    with hub_errors(f"fetch {name}"):
        folder = Path(
            retrying(
                lambda: snapshot_download(
                    repository,
                    repo_type=repo_type,
                    revision=revision,
                    allow_patterns=list(only) if only is not None else None,
                    ignore_patterns=list(without) if without is not None else None,
                )
            )
        )
    _check_downloads(folder, name, since=started)
    return folder


def _check_downloads(folder: Path, name: str, *, since: float) -> None:
    """Compare new files of the cache with their names, which are their checksums."""
    for file in folder.rglob("*"):
        if not file.is_symlink():  # a cache without links does not keep the checksums
            continue
        blob = file.resolve()
        if blob.is_file() and blob.stat().st_mtime >= since - 1 and not _is_intact(blob):
            file.unlink()
            blob.unlink()
            raise HubError(
                f"Cannot use {file.relative_to(folder)} of {name}: what came differs from the "
                "checksum that the Hub gives. It was removed; fetch it again, and if this is said "
                "again, something between here and the Hub changes the file."
            )


def _is_intact(blob: Path) -> bool:
    if len(blob.name) == _SHA256_DIGITS:
        return checksum_file(blob) == blob.name
    if len(blob.name) == _SHA1_DIGITS:
        return git_hash(blob.read_bytes()) == blob.name
    return True  # an ETag that is no checksum
