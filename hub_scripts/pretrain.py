"""Condense an encoder on your text; the same command continues an interrupted run.

    condenser pretrain pretrain/own-text --encoder google-bert/bert-base-uncased \\
        --corpus my-documents.jsonl --output_dir runs/mine
"""

import dataclasses

from modeling_condenser.analysis.sample import MeasuringWhileTraining
from modeling_condenser.pretraining.arguments import PretrainingRecipe

from .command_line import TRAINER_HELP, CommandLine


def run(line: CommandLine) -> None:
    inner = ", ".join(field.name for field in dataclasses.fields(MeasuringWhileTraining))
    readiness = f"--readiness takes a mapping of {inner} (condenser analyze --help)."
    settings = line.read(PretrainingRecipe, further=f"{readiness}\n{TRAINER_HELP}")
    from modeling_condenser.analysis.callback import pretrain_and_measure

    folder = pretrain_and_measure(settings)
    print(f"checkpoint: {folder}")
    print(f"next: condenser export {folder.parent} ENCODER_FOLDER")
