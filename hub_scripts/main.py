"""The `condenser` command: finds the function of a verb and runs it."""

import argparse
import importlib.metadata
import inspect
import logging
import os
import sys
from contextlib import nullcontext
from difflib import get_close_matches
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
    about = {verb: inspect.getdoc(function) or "" for verb, function in COMMANDS.items()}
    verbs = "\n".join(f"  {verb:<18}{text.splitlines()[0]}" for verb, text in about.items())
    parser = argparse.ArgumentParser(
        prog="condenser",
        usage="condenser VERB [RECIPE.yaml] [--field value ...]",
        description="Better dense retrieval on your own documents: adapt, fine-tune or pre-train "
        "an encoder, and measure it.",
        epilog=f"verbs:\n{verbs}\n\n`condenser VERB --help` lists its fields.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = f"condenser {importlib.metadata.version('condenser')}"
    parser.add_argument("--version", action="version", version=version)
    parser.add_argument("verb", metavar="VERB", help=argparse.SUPPRESS)
    parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    if arguments.verb not in COMMANDS:
        near = get_close_matches(arguments.verb, COMMANDS, n=1)
        hint = f" Did you mean {near[0]}?" if near else f" Verbs are {', '.join(COMMANDS)}."
        parser.error(f"There is no verb {arguments.verb!r}.{hint}")
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("modeling_condenser").setLevel(logging.INFO)
    logging.getLogger("huggingface_hub").propagate = False  # it has a handler of its own
    logging.getLogger("pdfminer").setLevel(logging.ERROR)  # its warnings do not name the file
    # Blocks are built in several processes, each of which tokenizes with one thread.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if words is None and not sys.stderr.isatty():
        os.environ.setdefault("TQDM_MININTERVAL", "10")  # seconds between the lines of a bar
        sys.stderr = _Lines(sys.stderr)
    if arguments.verb in _WITHOUT_MODEL or {"-h", "--help"} & set(arguments.words):
        os.environ["CONDENSER_LAZY"] = "1"  # no torch and transformers, which take seconds
    try:
        from tqdm.contrib.logging import logging_redirect_tqdm  # tqdm reads the variable above

        from .command_line import CommandLine  # imports the package

        os.environ.pop("CONDENSER_LAZY", None)
        verb = arguments.verb
        # In a terminal, a message goes above a bar, not behind it.
        with logging_redirect_tqdm() if sys.stderr.isatty() else nullcontext():
            COMMANDS[verb](CommandLine(verb, arguments.words, about[verb]))
    except (ValueError, OSError, KeyboardInterrupt) as error:
        if os.environ.get("CONDENSER_DEBUG"):
            raise
        if isinstance(error, KeyboardInterrupt):
            sys.stderr.write("interrupted: what was stored is kept for the same command\n")
            return 130  # as shells do
        sys.stderr.write(f"error: {error}\n")
        return 2
    distributed = sys.modules.get("torch.distributed")
    if distributed and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()  # its threads can abort a process that exits
    return 0


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
