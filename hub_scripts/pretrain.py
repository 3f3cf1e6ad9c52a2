"""Condense an encoder on your text; the same command continues an interrupted run.

    condenser pretrain pretrain/own-text --encoder google-bert/bert-base-uncased \\
        --corpus my-documents.jsonl --output_dir runs/mine
"""

import dataclasses

from .command_line import RECIPE, TRAINER_HELP, read_settings


def run(words: list[str]) -> None:
    from modeling_condenser.analysis.sample import MeasuringWhileTraining
    from modeling_condenser.pretraining.arguments import PretrainingRecipe

    inner = [field.name for field in dataclasses.fields(MeasuringWhileTraining)]
    settings = read_settings(
        "pretrain",
        words,
        PretrainingRecipe,
        plain=(RECIPE,),
        about=__doc__,
        further=f"--readiness takes a mapping of {', '.join(inner)} (condenser analyze --help).\n"
        f"{TRAINER_HELP}",
    )
    from modeling_condenser.analysis.callback import pretrain_and_measure

    folder = pretrain_and_measure(settings)
    print(f"checkpoint: {folder}")
    print(f"next: condenser export {folder.parent} ENCODER_FOLDER")
