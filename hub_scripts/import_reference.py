"""Convert a checkpoint of the papers' implementation (github.com/luyug/Condenser), with its head.

    condenser import-reference condenser-with-head my-condenser --skip_from 6
    condenser import-reference checkpoint-20000 my-condenser --skip_from 6 \\
        --tokenizer google-bert/bert-base-uncased

The folder holds config.json, pytorch_model.bin and model.pt, which is the head. The backbones on
the Hub come without it: use these as plain encoders.
"""

from modeling_condenser.hub.import_reference import import_reference

from .command_line import CommandLine, fields_of


def run(line: CommandLine) -> None:
    fields = line.fill(fields_of(import_reference), plain=("folder", "out"))
    out = import_reference(**vars(fields))
    print(f"checkpoint: {out}\nnext: condenser export {out} ENCODER")
