"""Run a fine-tuning recipe: the output folder holds the retriever, its log and its record."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import torch
from sentence_transformers import SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling as PoolingModule

from modeling_condenser.encoder_parts import settle_pooler
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.hub.contract import Pooling
from modeling_condenser.hub.model_folder import find_model_folder, is_checkpoint
from modeling_condenser.runs.training import run_training

from .data import load_training_data
from .recipe import FinetuningRecipe
from .trainer import RetrieverTrainer


def finetune(settings: Mapping[str, Any]) -> Path:
    """Run a fine-tuning recipe, or resume it from its last complete checkpoint.

    Encoder and data are opened and checked before the output folder is created. A finished folder
    is left unchanged.

    Args:
        settings: fields of `FinetuningRecipe` and of `SentenceTransformerTrainingArguments`.

    Returns:
        The folder of the retriever, within the output folder.

    Raises:
        ValueError: a setting or the data does not fit.
        FileNotFoundError: the encoder, the collection or a file does not exist.
    """

    def make_trainer(recipe: FinetuningRecipe, arguments: Any) -> RetrieverTrainer:
        encoder = open_encoder(recipe.encoder, recipe.contract_changes)
        data = load_training_data(recipe, encoder.contract, seed=arguments.seed)
        return RetrieverTrainer(recipe, encoder, data, arguments)

    return run_training(
        settings,
        make_trainer,
        FinetuningRecipe,
        SentenceTransformerTrainingArguments,
        dataloader_pin_memory=torch.cuda.is_available(),
        report_to="none",
        # A recipe that sets save_steps wants checkpoints.
        save_strategy="steps" if "save_steps" in settings else "no",
    )


def open_encoder(name: str, changes: Mapping[str, Any]) -> Retriever:
    """Load an encoder to fine-tune, in float32; `changes` are fields of `EncodingContract`.

    Its model has two modules, the transformer and the pooling. It does not normalise its vectors;
    the loss does, where the similarity is cosine.
    """
    folder = find_model_folder(name)
    if is_checkpoint(folder):
        raise ValueError(
            f"{folder} is a Condenser checkpoint: use `condenser export` first, and fine-tune that."
        )
    opened = Retriever(folder, **changes)
    modules: list[Any] = list(opened.model)
    kinds, pooling = [type(module) for module in modules], opened.contract.pooling
    is_plain = kinds[:2] == [Transformer, PoolingModule] and kinds[2:] in ([], [Normalize])
    if not is_plain or pooling not in get_args(Pooling):
        raise ValueError(
            f"{folder} has the modules {', '.join(kind.__name__ for kind in kinds)} and the "
            f"pooling {pooling!r}; expected Transformer, Pooling ({', '.join(get_args(Pooling))}) "
            "and possibly Normalize: state another pooling, or use sentence-transformers itself."
        )
    settle_pooler(modules[0].model)
    del opened.model[2:]
    return opened
