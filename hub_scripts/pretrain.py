"""condenser pretrain RECIPE [--field value ...]: condense an encoder; resumes by itself."""

from hub_scripts.recipe_command import read_settings


def run(words: list[str]) -> None:
    from transformers import TrainingArguments

    from modeling_condenser.pretraining.pretrain import PretrainingRecipe, pretrain

    settings = read_settings("pretrain", words, PretrainingRecipe, TrainingArguments)
    folder = pretrain(settings)
    print(f"checkpoint: {folder}")
    print(f"next: condenser export {folder.parent} ENCODER_FOLDER")
