"""The `condenser` command: finds the function of a verb and runs it."""

import argparse
import importlib.metadata
import inspect
import logging
import os
import sys
from contextlib import nullcontext
from difflib import get_close_matches
from functools import partial
from typing import Any, TextIO

from .commands import COMMANDS

_LINE_UP = "\x1b[A"  # with which tqdm returns from the bar below another

# These verbs start without torch; opening an encoder imports and registers the model.
_WITHOUT_MODEL = ("collect", "evaluate", "mine", "search")


def main(words: list[str] | None = None) -> int:
    """Run a verb with the words behind `condenser`, by default those of this process.

    Returns:
        The exit status: 0, 2 after an error that the user can correct, or 130 if the user
        interrupted. With CONDENSER_DEBUG=1 the error is raised.
    """
    verb, rest = _parse(words)
    _configure_logging()
    if words is None and not sys.stderr.isatty():
        os.environ.setdefault("TQDM_MININTERVAL", "10")  # seconds between the lines of a bar
        sys.stderr = _Lines(sys.stderr)
    # Blocks are built in several processes, each of which tokenizes with one thread.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if verb in _WITHOUT_MODEL or {"-h", "--help"} & set(rest):
        os.environ["CONDENSER_LAZY"] = "1"  # no torch, which takes seconds
    try:
        _run(verb, rest)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: what was stored is kept for the same command\n")
        return 130  # as shells do
    except (ValueError, OSError) as error:
        if os.environ.get("CONDENSER_DEBUG"):
            raise
        sys.stderr.write(f"error: {error}\n")
        return 2
    distributed = sys.modules.get("torch.distributed")
    if distributed and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()  # its threads can abort a process that exits
    return 0


def _parse(words: list[str] | None) -> tuple[str, list[str]]:
    """The verb, and the words behind it."""
    abouts = {verb: inspect.getdoc(function) or "" for verb, function in COMMANDS.items()}
    lines = [f"  {verb:<10}{about.splitlines()[0]}" for verb, about in abouts.items()]
    parser = argparse.ArgumentParser(
        prog="condenser",
        usage="condenser VERB [RECIPE.yaml] [WORD ...] [--field value ...]",
        description="Pre-train encoders for retrieval, fine-tune and publish them, search with "
        "them, and measure it all.",
        epilog="\n".join(["verbs:", *lines, "", "`condenser VERB --help` lists its fields."]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = f"condenser {importlib.metadata.version('condenser')}"
    parser.add_argument("--version", action="version", version=version)
    parser.add_argument("verb", metavar="VERB", help=argparse.SUPPRESS)
    parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    if arguments.verb not in COMMANDS:
        nearest = get_close_matches(arguments.verb, COMMANDS, n=1)
        hint = f" Did you mean {nearest[0]}?" if nearest else f" Verbs are {', '.join(COMMANDS)}."
        parser.error(f"There is no verb {arguments.verb!r}.{hint}")
    return arguments.verb, arguments.words


def _configure_logging() -> None:
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("modeling_condenser").setLevel(logging.INFO)
    logging.getLogger("huggingface_hub").propagate = False  # it has a handler of its own
    logging.getLogger("pdfminer").setLevel(logging.ERROR)  # its warnings do not name the file


def _run(verb: str, words: list[str]) -> None:
    from tqdm.contrib.logging import logging_redirect_tqdm  # tqdm reads the environment

    from .command_line import read_settings  # imports the package

    os.environ.pop("CONDENSER_LAZY", None)  # processes that the verb starts would read it
    function = COMMANDS[verb]
    # In a terminal, a message goes above a bar, not behind it.
    with logging_redirect_tqdm() if sys.stderr.isatty() else nullcontext():
        function(partial(read_settings, verb, words, about=inspect.getdoc(function)))


class _Lines:
    """A log file or pipe, in which each state of a progress bar is a line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(text.replace("\r", "\n").replace(_LINE_UP, ""))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


if __name__ == "__main__":
    sys.exit(main())
