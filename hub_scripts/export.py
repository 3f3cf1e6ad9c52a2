"""Write the plain encoder of a pre-training run, checkpoint or Hub name to a folder.

condenser export runs/mine my-encoder
"""

from dataclasses import dataclass

from .command_line import CommandLine


@dataclass(frozen=True)
class ExportFields:
    """The fields of `condenser export`.

    Attributes:
        checkpoint: pre-training run folder, checkpoint, or Hub name.
        out: folder to write.
    """

    checkpoint: str
    out: str


def run(line: CommandLine) -> None:
    fields = line.fill(ExportFields, plain=("checkpoint", "out"))
    from modeling_condenser.hub.export import export_encoder

    print(f"encoder: {export_encoder(fields.checkpoint, fields.out)}")
