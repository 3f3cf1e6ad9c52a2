"""condenser collection OUT: the built-in collection as a BEIR folder."""

import argparse
from pathlib import Path


def run(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="condenser collection", description=__doc__)
    parser.add_argument("out", type=Path, help="folder to write")
    arguments = parser.parse_args(words)
    from modeling_condenser.collection.builtin import build_builtin_collection

    print(f"collection: {build_builtin_collection(arguments.out)}")
