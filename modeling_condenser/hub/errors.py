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
_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"


class HubError(OSError):
    """Something failed on the Hub."""


class NotOnHubError(HubError, FileNotFoundError):
    """A repository, revision or file does not exist on the Hub, or the token may not read it."""


@contextmanager
def hub_errors(action: str) -> Iterator[None]:
    """Turn errors of the Hub's client into `HubError`.

    Args:
        action: beginning of the message, such as "fetch owner/name".

    Raises:
        NotOnHubError: the repository, revision or file does not exist, or may not be read.
        HubError: any other failure of the Hub or the connection.
        ValueError: the name is not valid on the Hub.
    """
    try:
        yield
    except HFValidationError as error:
        raise ValueError(f"Cannot {action}: {error}") from None
    except (
        _HTTP_ERROR,
        LocalEntryNotFoundError,
        LocalTokenNotFoundError,
        ConnectionError,
        TimeoutError,
    ) as error:
        missing = (RepositoryNotFoundError, RevisionNotFoundError, EntryNotFoundError)
        kind = NotOnHubError if isinstance(error, missing) else HubError
        # Without the cause, whose text may hold the headers of the request, and so the token.
        raise kind(f"Cannot {action}: {_reason(error)}.") from None


def _reason(error: Exception) -> str:
    match error:
        case GatedRepoError():
            return f"ask for access on its page; then {_LOG_IN} of that account"
        case RepositoryNotFoundError():
            return (
                "there is no such repository on the Hub, or it is private: check the name, or "
                f"{_LOG_IN} of an account that may read it"
            )
        case RevisionNotFoundError():
            return "it has no such revision: expected one of its branches, tags or commits"
        case LocalEntryNotFoundError():
            return (
                "it is not in the cache, and the Hub cannot be reached (or HF_HUB_OFFLINE is set): "
                "check the connection"
            )
        case EntryNotFoundError():
            return "the repository has no such file"
        case LocalTokenNotFoundError():
            return f"there is no token: {_LOG_IN}"
        case HfHubHTTPError():
            status = error.response.status_code
            advice = f": {_LOG_IN} to a token with write access" if status in (401, 403) else ""
            message = f" ({error.server_message})" if error.server_message else ""
            return f"the Hub answered with status {status}{message}{advice}"
    return f"the connection failed ({type(error).__name__})"
