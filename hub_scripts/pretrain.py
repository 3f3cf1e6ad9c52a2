"""condenser pretrain RECIPE [--field value ...]: condense an encoder; resumes by itself."""

from hub_scripts.recipe_command import read_settings


def run(words: list[str]) -> None:
    from transformers import TrainingArguments

    from modeling_condenser.analysis.callback import pretrain_and_measure
    from modeling_condenser.analysis.sample import Measuring, Rhythm
    from modeling_condenser.pretraining.pretrain import READINESS, PretrainingRecipe

    settings = read_settings(
        "pretrain",
        words,
        PretrainingRecipe,
        TrainingArguments,
        nested={READINESS: (Measuring, Rhythm)},
    )
    folder = pretrain_and_measure(settings)
    print(f"checkpoint: {folder}")
    print(f"next: condenser export {folder.parent} ENCODER_FOLDER")
