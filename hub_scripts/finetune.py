"""condenser finetune RECIPE [--field value ...]: make an encoder a dense retriever."""

from hub_scripts.recipe_command import read_settings


def run(words: list[str]) -> None:
    from sentence_transformers import SentenceTransformerTrainingArguments

    from modeling_condenser.biencoder.finetune import FinetuningRecipe, finetune

    settings = read_settings(
        "finetune", words, FinetuningRecipe, SentenceTransformerTrainingArguments
    )
    folder = finetune(settings)
    print(f"retriever: {folder}")
    print(f"next: condenser evaluate {folder} {settings['collection']}")
