"""Run a pre-training recipe; the result is a run folder with a checkpoint."""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, IterableDataset
from datasets.fingerprint import Hasher
from transformers import AutoTokenizer, PreTrainedModel, TrainerCallback

from modeling_condenser.files.models import find_model_folder, is_checkpoint, read_config
from modeling_condenser.files.run_folder import folder_lock
from modeling_condenser.files.settings import parse_settings
from modeling_condenser.modeling_condenser import CondenserForMaskedLM, CondenserForPreTraining
from modeling_condenser.training.run import run_training, scale_learning_rate
from modeling_condenser.training.trainer import check_one_device
from modeling_condenser.warm_start import find_start, new_encoder, open_config, read_config_file

from .arguments import CondenserTrainingArguments, PretrainingRecipe
from .contrastive_trainer import ContrastiveTrainer
from .corpus import load_documents, open_stream, read_sources
from .examples import make_builder
from .objectives import HEAD_SETTINGS, OBJECTIVES
from .prepared import default_folder, prepare
from .rows import as_rows
from .trainer import CondenserTrainer

logger = logging.getLogger(__name__)

_POWER = 0.7  # of the size: 5e-5 for BERT base becomes 5e-4 for `starter`, the best that we tried


def pretrain(
    *, callbacks: Sequence[Callable[[CondenserTrainer], TrainerCallback]] = (), **settings: Any
) -> Path:
    """Run a pre-training recipe, from its start or from its last complete checkpoint.

    For errors, and runs that are finished, see `run_training`.

    Args:
        callbacks: functions that each make a callback for the trainer that they are given, such as
            those of `analysis.callback.readiness_callbacks`, which `readiness` needs.
        **settings: fields of `PretrainingRecipe` and `CondenserTrainingArguments`.

    Returns:
        The folder of the trained model, within the run folder; with `prepare_only`, that of the
        blocks (`prepare_blocks`).
    """
    if settings.pop("prepare_only", False):
        return prepare_blocks(**settings, prepare_only=True)
    if settings.get("readiness") is not None and not callbacks:
        raise ValueError(
            "readiness needs callbacks: pass callbacks=readiness_callbacks(settings), too, of "
            "modeling_condenser.analysis.callback."
        )
    if settings.get("eval_strategy", "no") != "no" or settings.get("load_best_model_at_end"):
        raise ValueError(
            "A recipe has no text to evaluate on: set readiness, or train in Python with an "
            "eval_dataset; leave eval_strategy and load_best_model_at_end out."
        )
    if isinstance(file := settings.get("encoder_config"), str | Path):
        settings["encoder_config"] = read_config_file(file)  # for the run's record

    def make_trainer(recipe: PretrainingRecipe, arguments: Any) -> CondenserTrainer:
        check_one_device(arguments)  # before model and text are read
        tokenizer = None  # that of the encoder
        if recipe.tokenizer is not None:
            tokenizer = AutoTokenizer.from_pretrained(find_model_folder(recipe.tokenizer))
        model: Any = open_model(recipe, tokenizer)
        if recipe.base_learning_rate is not None and "learning_rate" not in settings:
            if recipe.encoder_config is not None:
                raise ValueError(
                    "base_learning_rate is for a trained encoder, but encoder_config starts from "
                    "random weights: set learning_rate (docs/from-nothing.md has published ones)."
                )
            arguments.learning_rate = scale_learning_rate(
                recipe.base_learning_rate, model.condenser.encoder, power=_POWER
            )
        documents = _read_corpus(recipe)
        is_contrastive = OBJECTIVES[recipe.objective].is_contrastive
        kind = ContrastiveTrainer if is_contrastive else CondenserTrainer
        trainer = kind(model, arguments, train_dataset=documents, processing_class=tokenizer)
        for make_callback in callbacks:
            trainer.add_callback(make_callback(trainer))
        return trainer

    return run_training(settings, make_trainer, PretrainingRecipe, CondenserTrainingArguments)


def _read_corpus(recipe: PretrainingRecipe) -> Dataset | IterableDataset:
    """The corpus as rows, which the first process that comes stores, or as a stream."""
    sources = read_sources(recipe.corpus)
    if any(source.streaming for source in sources):
        if len(sources) > 1 or recipe.prepare_only:
            raise ValueError("A corpus with streaming is one source, and cannot be prepared.")
        return open_stream(sources[0])
    with folder_lock(default_folder() / Hasher.hash(recipe.corpus)):
        return load_documents(recipe.corpus)


def prepare_blocks(**settings: Any) -> Path:
    """Read and cut the corpus of a recipe for later runs: `pretrain` with `prepare_only`.

    Runs with the same text, tokenizer, objective and lengths use the blocks, in any process or node
    that sees the folder, which is returned, and the cache of `datasets`.
    """
    # The machine that cuts the text needs no GPU, which this setting is of.
    settings = {name: value for name, value in settings.items() if name != "tf32"}
    recipe, arguments = parse_settings(settings, PretrainingRecipe, CondenserTrainingArguments)
    folder = find_model_folder(recipe.tokenizer or recipe.encoder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows: Any = as_rows(_read_corpus(recipe), name="corpus")
    started = time.perf_counter()
    prepared = prepare(
        rows,
        make_builder(tokenizer, arguments, rows),
        folder=arguments.blocks_folder,
        num_proc=arguments.preprocessing_workers,
    )
    seconds = time.perf_counter() - started
    logger.info(
        "%d documents and %d blocks in %.0f s: %s.",
        *(prepared.counts["n_documents"], prepared.counts["n_blocks"], seconds, prepared.folder),
    )
    assert prepared.folder is not None
    return prepared.folder


def open_model(recipe: PretrainingRecipe, tokenizer: Any = None) -> PreTrainedModel:
    """The model that a recipe trains: a new one from an encoder, or a checkpoint to continue.

    A new encoder (`encoder_config`) needs its tokenizer.
    """
    head: dict[str, Any] = {}
    for name in HEAD_SETTINGS:
        if (value := getattr(recipe, name)) is not None:
            head[name] = value
    has_head = OBJECTIVES[recipe.objective].has_head
    model_class: Any = CondenserForPreTraining if has_head else CondenserForMaskedLM
    if recipe.encoder is None:
        encoder_config: Any = recipe.encoder_config
        encoder = new_encoder(encoder_config, tokenizer)
        return model_class.from_encoder(encoder, pooling=recipe.pooling, **head)
    folder = find_start(recipe.encoder, from_retriever=recipe.from_retriever)
    lacks_head = read_config(folder).get("architectures") == ["CondenserForMaskedLM"]
    if not has_head or recipe.new_head or lacks_head or not is_checkpoint(folder):
        return model_class.from_encoder(
            recipe.encoder,
            pooling=recipe.pooling,
            config_changes=recipe.encoder_changes,
            from_retriever=recipe.from_retriever,
            **head,
        )
    config = open_config(folder, recipe.encoder_changes)
    for name, value in {"pooling": recipe.pooling, **head}.items():
        if value not in (None, getattr(config, name)):
            raise ValueError(
                f"The recipe says {name}: {value}, but the checkpoint {recipe.encoder} has "
                f"{getattr(config, name)}. Leave it out, or set new_head: true to start a new head."
            )
    return CondenserForPreTraining.from_pretrained(folder, config=config, dtype=torch.float32)
