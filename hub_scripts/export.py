"""Write the plain encoder of a pre-training run, checkpoint or Hub name to a folder.

condenser export runs/mine my-encoder
"""

from dataclasses import dataclass

from .command_line import fill_settings


@dataclass(frozen=True)
class ExportFields:
    """The fields of `condenser export`.

    Attributes:
        checkpoint: pre-training run folder, checkpoint, or Hub name.
        out: folder to write.
    """

    checkpoint: str
    out: str


def run(words: list[str]) -> None:
    fields = fill_settings(
        "export", words, ExportFields, plain=("checkpoint", "out"), about=__doc__
    )
    from modeling_condenser.hub.export import export_encoder

    print(f"encoder: {export_encoder(fields.checkpoint, fields.out)}")
