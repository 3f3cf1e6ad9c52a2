"""Train an encoder into a dense retriever, or into an encoder of sentences.

    condenser finetune finetune/contrastive --encoder my-encoder --collection my-collection \\
        --output_dir runs/retriever
"""

from typing import Any

from .command_line import RECIPE, TRAINER_HELP, read_settings


def run(words: list[str]) -> None:
    from modeling_condenser.finetuning.recipe import FinetuningRecipe

    settings = read_settings(
        "finetune", words, FinetuningRecipe, plain=(RECIPE,), about=__doc__, further=TRAINER_HELP
    )
    from modeling_condenser.finetuning.finetune import finetune

    folder = finetune(settings)
    print(f"retriever: {folder}")
    print(f"next: condenser evaluate {folder} {evaluated_on(settings)}")


def evaluated_on(settings: dict[str, Any]) -> str:
    """The words of `condenser evaluate` that fit what a recipe trained."""
    if settings.get("objective") == "mse_cosine":
        return "TEST_PAIRS.csv --task graded_pairs"
    if settings.get("collection"):
        return str(settings["collection"])
    if settings.get("objective") == "triplet" and settings.get("similarity") != "cosine":
        return "TEST_TRIPLETS.csv --task triplets"
    return "COLLECTION"
