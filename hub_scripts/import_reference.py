"""Convert a checkpoint of the papers' implementation (github.com/luyug/Condenser), with its head.

    condenser import-reference condenser-with-head my-condenser --skip_from 6
    condenser import-reference checkpoint-20000 my-condenser --skip_from 6 \\
        --tokenizer google-bert/bert-base-uncased

The folder holds config.json, pytorch_model.bin and model.pt, which is the head. The backbones on
the Hub come without it: use these as plain encoders.
"""

from dataclasses import dataclass

from .command_line import fill_settings


@dataclass(frozen=True)
class ImportFields:
    """The fields of `condenser import-reference`.

    Attributes:
        folder: local folder that the reference implementation saved.
        out: new or empty folder for the checkpoint.
        skip_from: backbone layer whose tokens the head reads, as in pre-training; required.
        late_mlm: whether to train on with the late MLM loss too.
        tokenizer: folder or Hub name; by default the one in the folder.
    """

    folder: str
    out: str
    skip_from: int | None = None
    late_mlm: bool = True
    tokenizer: str | None = None


def run(words: list[str]) -> None:
    fields = fill_settings(
        "import-reference", words, ImportFields, plain=("folder", "out"), about=__doc__
    )
    if fields.skip_from is None:
        raise ValueError(
            "--skip_from is not given, and no file states it: pass the number of the pre-training. "
            "The reference's own default is 2; the commands in its README (BERT base) set 6."
        )
    from modeling_condenser.hub.import_reference import import_reference

    out = import_reference(**vars(fields))
    print(f"checkpoint: {out}\nnext: condenser export {out} ENCODER")
