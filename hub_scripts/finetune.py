"""Train an encoder into a dense retriever, or into an encoder of sentences.

    condenser finetune finetune/contrastive --encoder my-encoder --collection my-collection \\
        --output_dir runs/retriever
"""

from typing import Any

from modeling_condenser.finetuning.recipe import FinetuningRecipe

from .command_line import TRAINER_HELP, CommandLine


def run(line: CommandLine) -> None:
    settings = line.read(FinetuningRecipe, further=TRAINER_HELP)
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
