"""Open weights without transformers' reports and progress bars."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from transformers.utils import logging


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Silence reports of missing weights, where the caller checks them, and progress bars."""
    with ExitStack() as restored:
        restored.callback(logging.set_verbosity, logging.get_verbosity())
        if logging.is_progress_bar_enabled():
            restored.callback(logging.enable_progress_bar)
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        yield
