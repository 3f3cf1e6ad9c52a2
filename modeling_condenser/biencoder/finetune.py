"""The fine-tuning stage: a recipe in, a run folder with a retriever out."""

import dataclasses
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Normalize
from sentence_transformers.util import cos_sim, dot_score
from transformers import set_seed

from modeling_condenser.collection.beir import load_collection
from modeling_condenser.pretraining.checkpoints import write_json
from modeling_condenser.pretraining.pretrain import LOG_FILE, MODEL_FOLDER
from modeling_condenser.pretraining.recipe import fill
from modeling_condenser.pretraining.run_folder import claim_run_folder, record_run, whole_folder
from modeling_condenser.publishing.contract import EncodingContract
from modeling_condenser.publishing.export import write_repository
from modeling_condenser.publishing.provenance import read_provenance, read_stage

from .pairs import training_pairs

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FinetuningRecipe:
    """What a fine-tuning recipe says beside the trainer's arguments.

    Attributes:
        encoder: folder of an export, with its encoding contract.
        collection: BEIR folder with labelled pairs.
        split: whose judgements to train on.
        train_size: number of labelled pairs to use, all by default.
        subset_seed: decides which; the subsets of one seed are nested.
        query_max_length: longest query in tokens; the contract's by default.
        passage_max_length: longest passage in tokens; the contract's by default.
        similarity: dot product as in the papers, or cosine.
        temperature: the similarity is divided by it; 1 is DPR's and Condenser's loss.
    """

    encoder: str
    collection: str
    split: str = "train"
    train_size: int | None = None
    subset_seed: int = 0
    query_max_length: int | None = None
    passage_max_length: int | None = None
    similarity: Literal["dot", "cosine"] = "dot"
    temperature: float = 1.0


def finetune(settings: Mapping[str, Any]) -> Path:
    """Run a fine-tuning recipe: contrastive loss with in-batch negatives (Condenser eq. 12).

    Args:
        settings: fields of `FinetuningRecipe` and of `SentenceTransformerTrainingArguments`.

    Returns:
        The folder of the retriever, within the run folder.

    Raises:
        ValueError: a setting does not fit; the message says which and what to do.
        FileNotFoundError: the encoder has no contract, or the collection does not exist.
    """
    if "output_dir" not in settings:
        raise ValueError("The recipe names no output_dir: add it, or pass --output_dir FOLDER.")
    defaults = {
        "batch_sampler": "no_duplicates",
        "dataloader_pin_memory": torch.cuda.is_available(),
        "report_to": "none",
        "save_strategy": "no",
    }
    recipe, arguments = fill(
        {**defaults, **settings}, FinetuningRecipe, SentenceTransformerTrainingArguments
    )
    run_folder = Path(arguments.output_dir)
    contract = _contract(recipe)
    pairs = training_pairs(
        load_collection(recipe.collection, split=recipe.split),
        contract,
        train_size=recipe.train_size,
        subset_seed=recipe.subset_seed,
    )
    claim_run_folder(run_folder, settings)
    model_folder = run_folder / MODEL_FOLDER
    if model_folder.is_dir():
        logger.info("%s is finished.", run_folder)
        return model_folder

    set_seed(arguments.seed)
    model = _open_model(recipe.encoder)
    model.max_seq_length = contract.passage_max_length
    loss = MultipleNegativesRankingLoss(
        model,
        scale=1.0 / recipe.temperature,
        similarity_fct=dot_score if recipe.similarity == "dot" else cos_sim,
    )
    trainer = SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=pairs, loss=loss
    )
    started = time.perf_counter()
    trainer.train()
    write_json(run_folder / LOG_FILE, trainer.state.log_history)
    record_run(
        run_folder,
        {
            "seed": arguments.seed,
            "n_pairs": len(pairs),
            "steps": trainer.state.global_step,
            "mean_loss": trainer.state.log_history[-1].get("train_loss"),
            "session_seconds": round(time.perf_counter() - started, 1),
        },
    )
    stage = read_stage(run_folder, "Fine-tuning")
    stages = [*read_provenance(Path(recipe.encoder)), *([stage] if stage else [])]
    encoder: Any = model[0]
    with whole_folder(model_folder) as partial:
        write_repository(partial, encoder.model, model.tokenizer, contract, stages)
    return model_folder


def _open_model(encoder: str) -> SentenceTransformer:
    """The encoder and its pooling; the loss normalises where the recipe says cosine."""
    model = SentenceTransformer(encoder)
    return SentenceTransformer(modules=[m for m in model if not isinstance(m, Normalize)])


def _contract(recipe: FinetuningRecipe) -> EncodingContract:
    """The encoder's contract with the recipe's changes."""
    contract = EncodingContract.load(Path(recipe.encoder))
    return dataclasses.replace(
        contract,
        similarity=recipe.similarity,
        query_max_length=recipe.query_max_length or contract.query_max_length,
        passage_max_length=recipe.passage_max_length or contract.passage_max_length,
    )
