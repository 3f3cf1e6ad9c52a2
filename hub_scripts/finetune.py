"""condenser finetune RECIPE [--field value ...]: make an encoder a retriever (or of sentences)."""

from typing import Any

from hub_scripts.recipe_command import read_settings


def run(words: list[str]) -> None:
    from sentence_transformers import SentenceTransformerTrainingArguments

    from modeling_condenser.biencoder.finetune import FinetuningRecipe, finetune

    settings = read_settings(
        "finetune", words, FinetuningRecipe, SentenceTransformerTrainingArguments
    )
    folder = finetune(settings)
    print(f"retriever: {folder}")
    print(f"next: condenser evaluate {folder} {evaluated_on(settings)}")


def evaluated_on(settings: dict[str, Any]) -> str:
    """What the result of a recipe is evaluated on, as words of the evaluation's command."""
    if settings.get("objective") == "mse_cosine":
        return "TEST_PAIRS.csv --task graded_pairs"
    if settings.get("collection"):
        return str(settings["collection"])
    if settings.get("objective") == "triplet" and settings.get("similarity") != "cosine":
        return "TEST_TRIPLETS.csv --task triplets"
    return "COLLECTION"
