"""Turn errors of the Hub's client into one sentence: what failed, why, and what to do."""

from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    LocalTokenNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

# The base error of the HTTP library, which differs between versions of the client.
_HTTP_ERROR: type[Exception] = HfHubHTTPError.__bases__[0]
_LOG_IN = "log in with `hf auth login` or set HF_TOKEN"
_REASONS: dict[type[Exception], str] = {  # the first that fits is used
    GatedRepoError: f"ask for access on its page, then {_LOG_IN}",
    RepositoryNotFoundError: f"no such repository, or it is private: check the name, or {_LOG_IN}",
    RevisionNotFoundError: "no such revision: expected a branch, a tag or a commit",
    LocalEntryNotFoundError: "not in the cache, and the Hub cannot be reached or is switched off "
    "(HF_HUB_OFFLINE)",
    EntryNotFoundError: "the repository has no such file",
    LocalTokenNotFoundError: f"there is no token: {_LOG_IN}",
}
_HANDLED: tuple[type[Exception], ...] = (*_REASONS, _HTTP_ERROR, ConnectionError, TimeoutError)


class HubError(OSError):
    """Something failed on the Hub."""


class NotOnHubError(HubError, FileNotFoundError):
    """A repository, revision or file does not exist on the Hub, or the token may not read it."""


@contextmanager
def hub_errors(action: str) -> Iterator[None]:
    """Turn errors of the Hub's client into `HubError`; `action` begins the message."""
    try:
        yield
    except HFValidationError as error:
        raise ValueError(f"Cannot {action}: {error}") from None
    except _HANDLED as error:
        missing = (RepositoryNotFoundError, RevisionNotFoundError, EntryNotFoundError)
        kind = NotOnHubError if isinstance(error, missing) else HubError
        # Without the cause, whose text may hold the headers of the request, and so the token.
        raise kind(f"Cannot {action}: {_reason(error)}.") from None


def _reason(error: Exception) -> str:
    for kind, reason in _REASONS.items():
        if isinstance(error, kind):
            return reason
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        advice = f": {_LOG_IN} to a token with write access" if status in (401, 403) else ""
        return f"the Hub answered with status {status} ({error.server_message}){advice}"
    return f"the connection failed ({type(error).__name__})"
