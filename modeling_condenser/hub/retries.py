"""Asking the Hub again where it is busy or the line breaks: the client does so for few requests.

Seen at huggingface_hub 2.4: uploads of large files, preuploads and listings are tried again;
making repositories and commits, and asking for information on them, are not.
"""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from .errors import HTTP_ERROR

logger = logging.getLogger(__name__)

_WAITS = (1, 2, 4, 8)  # seconds between tries
_LONGEST_WAIT = 60.0
_BUSY = (408, 429, 500, 502, 503, 504)
_Answer = TypeVar("_Answer")


def retrying(call: Callable[[], _Answer], *, lines: bool = True) -> _Answer:
    """Call, and call again where what went wrong may pass.

    Args:
        call: asks the Hub; the last error is raised as it came.
        lines: whether a broken line may pass, too: not where it is unknown what the Hub has done.
    """
    for wait in _WAITS:
        try:
            return call()
        except (HTTP_ERROR, LocalEntryNotFoundError) as error:
            cause = _cause(error)
            is_busy = isinstance(cause, HfHubHTTPError) and cause.response.status_code in _BUSY
            is_line = _is_broken_line(cause)
            if not is_busy and not (lines and is_line):
                raise
            logger.info("The Hub did not answer (%s); trying again.", _in_short(cause))
            time.sleep(_asked_to_wait(cause) or wait)
    return call()


def _cause(error: BaseException) -> BaseException:
    """What made the client say that something is not in the cache."""
    if isinstance(error, LocalEntryNotFoundError):
        return error.__cause__ or error.__context__ or error
    return error


def _is_broken_line(error: BaseException) -> bool:
    """Whether a connection broke; where none could be made, there is nothing to wait for."""
    is_transport = isinstance(error, HTTP_ERROR) and not isinstance(error, HfHubHTTPError)
    return is_transport and type(error).__name__ != "ConnectError"


def _in_short(error: BaseException) -> str:
    if isinstance(error, HfHubHTTPError):
        return f"status {error.response.status_code}"
    return type(error).__name__


def _asked_to_wait(error: BaseException) -> float | None:
    """Seconds that the Hub asks to wait, if it does so, within reason."""
    if not isinstance(error, HfHubHTTPError):
        return None
    said = error.response.headers.get("Retry-After", "")
    return min(float(said), _LONGEST_WAIT) if said.isdigit() else None
