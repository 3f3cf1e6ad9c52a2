"""What went wrong on the Hub, in words: what was asked, why it failed, what to do; no token."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub import get_token
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

# The error of the HTTP library, whose name differs between versions of the client.
HTTP_ERROR: type[Exception] = HfHubHTTPError.__bases__[0]
_TOKEN = re.compile(r"\b(hf|api_org)_[A-Za-z0-9]{4,}")
_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN to a token"
_BY_STATUS = {
    400: "the Hub refused the request",
    401: f"the Hub does not accept the token: {_LOG_IN} that is valid",
    403: f"the token may not do this: {_LOG_IN} with write access to it",
    409: "there is something of this name already",
    412: "the repository was changed meanwhile: look at the new commits, then try again",
    413: "the Hub finds it too large",
    429: "the Hub asks to send fewer requests, also after several tries: try again later",
}


class HubError(OSError):
    """Something could not be done on the Hub; the message says what, why and what to do."""


class NotOnHubError(HubError, FileNotFoundError):
    """A repository, a revision or a file is not on the Hub, or may not be seen."""


@contextmanager
def hub_errors(action: str, *, token: str | None = None) -> Iterator[None]:
    """Turn the errors of the Hub's client into sentences.

    Args:
        action: what is tried, such as "fetch owner/name": the sentence's beginning.
        token: that is used; it is taken out of every message.

    Raises:
        NotOnHubError: there is no such repository, revision or file, or it may not be seen.
        HubError: anything else that the Hub or the way to it did.
        ValueError: the name is no repository's name.
    """
    try:
        yield
    except HubError:
        raise
    except HFValidationError as error:
        raise ValueError(f"Cannot {action}: {without_tokens(str(error), token)}") from None
    except (
        HTTP_ERROR,
        LocalEntryNotFoundError,
        LocalTokenNotFoundError,
        EntryNotFoundError,
        ConnectionError,
        TimeoutError,
    ) as error:
        is_missing = isinstance(error, RepositoryNotFoundError | RevisionNotFoundError)
        is_missing = is_missing or isinstance(error, EntryNotFoundError)
        kind = NotOnHubError if is_missing else HubError
        # Without the cause, whose text may hold the request's headers.
        raise kind(f"Cannot {action}: {without_tokens(_reason(error), token)}.") from None


def _reason(error: Exception) -> str:
    if isinstance(error, GatedRepoError):
        return f"access has to be asked for on its page first; then {_LOG_IN} of that account"
    if isinstance(error, RepositoryNotFoundError):
        return (
            "the Hub has no repository of that name, or it is private and the token may not see "
            f"it: mend the name, or {_LOG_IN} of an account that may"
        )
    if isinstance(error, RevisionNotFoundError):
        return "it has no such revision: expected one of its branches, tags or commits"
    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set: unset it to reach the Hub"
    if isinstance(error, LocalEntryNotFoundError):
        return (
            "the Hub cannot be reached (or HF_HUB_OFFLINE is set), and it was not fetched before: "
            "check the connection"
        )
    if isinstance(error, LocalTokenNotFoundError):
        return f"there is no token: {_LOG_IN}"
    if isinstance(error, EntryNotFoundError):
        return "the repository has no such file"
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        said = error.server_message or ""
        what = _BY_STATUS.get(status, f"the Hub answered {status}, also after several tries")
        return f"{what} (status {status}{': ' if said else ''}{said})"
    return f"the connection failed ({type(error).__name__}: {error}), also after several tries"


def without_tokens(text: str, token: str | None = None) -> str:
    """A text in which nothing is left of a token."""
    for secret in (token, get_token()):
        if secret:
            text = text.replace(secret, "[token]")
    return _TOKEN.sub("[token]", text)
