"""Fetch repositories from the Hugging Face Hub."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import errors, snapshot_download

_HTTP_ERROR: type[Exception] = errors.HfHubHTTPError.__bases__[0]  # of the HTTP library
# The last is Xet's.
NETWORK_ERRORS = (_HTTP_ERROR, ConnectionError, TimeoutError, RuntimeError)
_NOT_FOUND = (
    errors.RepositoryNotFoundError,
    errors.RevisionNotFoundError,
    errors.LocalEntryNotFoundError,
)


def split_revision(name: str) -> tuple[str, str | None]:
    """Split `owner/name@revision`; the revision is a branch, tag or commit, or None."""
    repository, _, revision = name.partition("@")
    return repository, revision or None


def fetch(
    name: str,
    *,
    repo_type: str = "model",
    only: Sequence[str] | None = None,
    without: Sequence[str] | None = None,
    **hub: Any,
) -> Path:
    """Fetch a repository into the Hub's cache.

    Args:
        name: `owner/name` or `owner/name@revision`.
        repo_type: "model" or "dataset".
        only, without: patterns of the files to fetch (by default all) and to leave out.
        **hub: for `snapshot_download`, such as `token`.

    Raises:
        FileNotFoundError: it does not exist on the Hub or is private, or the Hub cannot be reached
            and the files are not in the cache.
        OSError: the Hub or the network failed.
    """
    repository, revision = split_revision(name)
    options: Any = {"allow_patterns": only, "ignore_patterns": without, "revision": revision, **hub}
    try:
        return Path(snapshot_download(repository, repo_type=repo_type, **options))
    except errors.HFValidationError:
        raise FileNotFoundError(
            f"There is no folder {name!r}, and a name on the Hub is owner/name."
        ) from None
    except _NOT_FOUND as error:
        raise FileNotFoundError(
            f"There is no folder {name!r}, and it cannot be fetched from the Hub: {error}"
        ) from None
    except NETWORK_ERRORS as error:
        raise OSError(f"Cannot fetch {name} from the Hub; try again: {error}") from error
