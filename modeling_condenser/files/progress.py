"""Progress bars, which `show_bars` hides in a whole call, so that no function has an option."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tqdm.auto import tqdm

_SECONDS = 1  # of work before a bar appears
_ARE_SHOWN = ContextVar("_ARE_SHOWN", default=True)


def bar(items: Iterable[Any] | None, description: str, *, unit: str, **options: Any) -> tqdm:
    """Iterate with a bar of tqdm, which appears after a second; `options` are those of tqdm."""
    settings: Any = {"unit": unit, "delay": _SECONDS, **options}
    if not _ARE_SHOWN.get():
        settings["disable"] = True  # False would override the environment variable TQDM_DISABLE
    return tqdm(items, description, **settings)


@contextmanager
def show_bars(are_shown: bool) -> Iterator[None]:
    """Show or hide the bars of a `with` block; a block within a hidden one is hidden, too."""
    token = _ARE_SHOWN.set(are_shown and _ARE_SHOWN.get())
    try:
        yield
    finally:
        _ARE_SHOWN.reset(token)
