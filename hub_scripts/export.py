"""condenser export CHECKPOINT OUT: a plain encoder's repository folder."""

import argparse


def run(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="condenser export", description=__doc__)
    parser.add_argument("checkpoint", help="pre-training run folder, checkpoint, or Hub name")
    parser.add_argument("out", help="folder to write")
    arguments = parser.parse_args(words)
    from modeling_condenser.publishing.export import export_encoder

    print(f"encoder: {export_encoder(arguments.checkpoint, arguments.out)}")
