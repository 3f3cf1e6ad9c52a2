"""The `condenser` command: finds the file of a subcommand and runs it.

Only the subcommand that is asked for is imported, so that help is instant.
"""

import argparse
import importlib
import logging
import os
import sys

COMMANDS = {
    "demo": "condense, fine-tune and evaluate on the built-in collection, on a CPU, in minutes",
    "pretrain": "run a pre-training recipe: condense an encoder on your text",
    "import-reference": "turn a checkpoint of the reference implementation into one of ours",
    "export": "turn a pre-training checkpoint into a plain encoder's repository folder",
    "finetune": "run a fine-tuning recipe: make an encoder a dense retriever",
    "encode": "make the vectors of a collection; killed anywhere, it goes on where it ended",
    "mine": "find hard negatives for fine-tuning, with BM25 or any retriever",
    "evaluate": "search a collection with a retriever or BM25 and measure the ranking",
    "search": "search a collection for a query",
    "analyze": "measure whether models are ready to be fine-tuned, and when to stop training",
    "study": "compare several ways of pre-training from one encoder in one table",
    "push": "publish an encoder, a retriever or a checkpoint on the Hugging Face Hub",
    "collection": "write the built-in collection as a BEIR folder",
}


def main(words: list[str] | None = None) -> int:
    """Run a subcommand.

    Args:
        words: the command line behind `condenser`; the process's own by default.

    Returns:
        The exit status: 0, or 2 after a message about what to mend.
    """
    parser = argparse.ArgumentParser(
        prog="condenser",
        description="Condense an encoder on your text, fine-tune it into a retriever, measure it.",
        epilog="commands:\n"
        + "\n".join(f"  {name:<18}{text}" for name, text in COMMANDS.items())
        + "\n\n`condenser COMMAND --help` says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    _set_up_process()
    command = importlib.import_module(f"hub_scripts.{arguments.command.replace('-', '_')}")
    try:
        command.run(arguments.words)
    except (ValueError, OSError) as error:
        if os.environ.get("CONDENSER_DEBUG"):
            raise
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def _set_up_process() -> None:
    """Say what is done, and keep what the libraries say to what matters."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    for package in ("modeling_condenser", "hub_scripts"):
        logging.getLogger(package).setLevel(logging.INFO)
    # Blocks are built in processes of their own, each of which tokenizes with one thread.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


if __name__ == "__main__":
    sys.exit(main())
