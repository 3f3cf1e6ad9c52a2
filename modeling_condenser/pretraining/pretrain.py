"""The pre-training stage: a recipe in, a run folder with a checkpoint out."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import (
    AutoConfig,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
    set_seed,
)

from modeling_condenser.modeling_condenser import CondenserForMaskedLM, CondenserForPreTraining
from modeling_condenser.repository.provenance import Stage, read_pretraining
from modeling_condenser.runs.recipe import fill
from modeling_condenser.runs.run_folder import (
    LOG_FILE,
    MODEL_FOLDER,
    claim_run_folder,
    record_run,
    whole_folder,
)
from modeling_condenser.runs.whole_files import write_json

from .blocks import (
    BlockBuilder,
    KeyedBlocks,
    StreamedBlocks,
    build_blocks,
    fingerprint_blocks,
)
from .collator import CondenserDataCollator
from .corpus import Source, load_documents
from .repository import complete_repository, train_seconds
from .trainer import CondenserTrainer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PretrainingRecipe:
    """What a pre-training recipe says beside the Trainer's arguments.

    Attributes:
        encoder: Hub name or folder of the encoder to start from, or of a Condenser checkpoint to
            continue, whose head and split are then kept.
        corpus: what to train on: Hub data set name or local path, or a mapping of `Source`'s
            fields, or a list of these.
        objective: "condenser", or "mlm" for plain masked language modelling, its control.
        tokenizer: Hub name or folder; the encoder's own by default.
        n_head_layers: layers of the Condenser head; 2 by default.
        skip_from: backbone layer whose tokens the head reads; half of the layers by default.
        late_mlm: whether the late output is trained with MLM too; true by default.
        new_head: accept a Condenser checkpoint without a head, and start a new one.
        streaming: read the corpus as needed instead of preparing it on disk; needs `max_steps`.
        max_length: longest sequence in tokens, with special tokens.
        short_block_probability: share of blocks of random shorter length.
        mlm_probability: share of a block's tokens to mask.
        blocks_seed: decides which blocks are short; apart from the run's seed, so that runs of
            other seeds read the same prepared blocks.
        preprocessing_workers: processes that build blocks.
        encoder_changes: attributes of the encoder's configuration to change, such as dropout.
        attn_implementation: attention back-end ("eager", "sdpa", "flash_attention_2", ...); the
            library's choice by default.
    """

    encoder: str
    corpus: Any
    objective: Literal["condenser", "mlm"] = "condenser"
    tokenizer: str | None = None
    n_head_layers: int | None = None
    skip_from: int | None = None
    late_mlm: bool | None = None
    new_head: bool = False
    streaming: bool = False
    max_length: int = 512
    short_block_probability: float = 0.1
    mlm_probability: float = 0.15
    blocks_seed: int = 0
    preprocessing_workers: int | None = None
    encoder_changes: dict[str, Any] = field(default_factory=dict)
    attn_implementation: str | None = None

    @property
    def sources(self) -> list[Source]:
        """The parts of the corpus.

        Raises:
            ValueError: a part has an unknown field.
        """
        parts = self.corpus if isinstance(self.corpus, list) else [self.corpus]
        return [
            fill(part, Source)[0] if isinstance(part, Mapping) else Source(str(part))
            for part in parts
        ]


def pretrain(settings: Mapping[str, Any]) -> Path:
    """Run a pre-training recipe, from its start or from its last whole checkpoint.

    Everything is opened and checked before the run folder is touched. A finished run is left as
    it is.

    Args:
        settings: fields of `PretrainingRecipe` and of `transformers.TrainingArguments`.

    Returns:
        The folder of the trained model, within the run folder.

    Raises:
        ValueError: a setting does not fit; the message says which and what to do.
        FileNotFoundError: a local file of the corpus does not exist.
    """
    recipe, arguments = _read(settings)
    run_folder = Path(str(arguments.output_dir))
    model_folder = run_folder / MODEL_FOLDER

    set_seed(arguments.seed)
    tokenizer = AutoTokenizer.from_pretrained(recipe.tokenizer or recipe.encoder)
    model = open_model(recipe)
    if recipe.attn_implementation is not None:
        model.set_attn_implementation(recipe.attn_implementation)
    check_fit(tokenizer, model, recipe.max_length)
    collator = CondenserDataCollator(
        tokenizer,
        max_length=recipe.max_length,
        mlm_probability=recipe.mlm_probability,
        seed=arguments.seed,
    )
    builder = BlockBuilder(
        tokenizer,
        max_length=recipe.max_length,
        short_block_probability=recipe.short_block_probability,
        seed=recipe.blocks_seed,
    )
    documents = load_documents(recipe.sources, streaming=recipe.streaming)

    claim_run_folder(run_folder, settings)
    if model_folder.is_dir():
        logger.info("%s is finished.", run_folder)
        return model_folder
    facts: dict[str, Any] = {"seed": arguments.seed, "objective": recipe.objective}
    if recipe.streaming:
        dataset: Any = StreamedBlocks(
            documents, builder, seed=arguments.seed, num_proc=arguments.dataloader_num_workers
        )
        arguments.dataloader_num_workers = 0
    else:
        blocks = build_blocks(documents, builder, num_proc=recipe.preprocessing_workers)
        dataset = KeyedBlocks(blocks, seed=arguments.seed)
        facts |= {
            "blocks_sha256": fingerprint_blocks(blocks),
            "n_documents": len(documents),
            "n_blocks": len(blocks),
        }
    trainer = CondenserTrainer(
        model=model,
        args=arguments,
        train_dataset=dataset,
        data_collator=collator,
        processing_class=tokenizer,
        facts=facts,
    )
    started = time.perf_counter()
    trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
    facts |= {
        "session_seconds": round(time.perf_counter() - started, 1),
        "train_seconds": round(train_seconds(trainer.state.log_history), 1),
        "steps": trainer.state.global_step,
        "tokens_seen": int(trainer.state.num_input_tokens_seen),
        "n_parameters": sum(p.numel() for p in model.parameters()),
    }
    if trainer.is_world_process_zero():
        write_json(run_folder / LOG_FILE, trainer.state.log_history)
        record_run(run_folder, facts)
        model = trainer.accelerator.unwrap_model(trainer.model)
        save_model(model, tokenizer, model_folder, stages=read_pretraining(run_folder))
    trainer.accelerator.wait_for_everyone()
    if arguments.push_to_hub:
        trainer.push_to_hub()
    return model_folder


def save_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    stages: Sequence[Stage] = (),
) -> None:
    """Save model and tokenizer with provenance and card, whole or not at all."""
    with whole_folder(folder) as partial:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        complete_repository(partial, stages)


def _read(settings: Mapping[str, Any]) -> tuple[PretrainingRecipe, TrainingArguments]:
    if "output_dir" not in settings:
        raise ValueError("The recipe names no output_dir: add it, or pass --output_dir FOLDER.")
    defaults = {
        "dataloader_pin_memory": torch.cuda.is_available(),
        "include_num_input_tokens_seen": "non_padding",
        "remove_unused_columns": False,
        "report_to": "none",
    }
    recipe, arguments = fill({**defaults, **settings}, PretrainingRecipe, TrainingArguments)
    if recipe.streaming and arguments.max_steps < 1:
        raise ValueError(
            "A streamed corpus has no known length: set max_steps, the number of optimiser steps."
        )
    return recipe, arguments


def open_model(recipe: PretrainingRecipe) -> PreTrainedModel:
    """The model that a recipe trains: started from an encoder, or a checkpoint continued.

    Raises:
        ValueError: the checkpoint has no head, or another split than the recipe states.
    """
    if recipe.objective == "mlm":
        return CondenserForMaskedLM.from_encoder(
            recipe.encoder, config_changes=recipe.encoder_changes
        )
    stated = {
        name: value
        for name in ("n_head_layers", "skip_from", "late_mlm")
        if (value := getattr(recipe, name)) is not None
    }
    config: Any = AutoConfig.from_pretrained(recipe.encoder)
    if config.model_type != "condenser" or recipe.new_head:
        return CondenserForPreTraining.from_encoder(
            recipe.encoder, config_changes=recipe.encoder_changes, **stated
        )
    for name, value in recipe.encoder_changes.items():
        setattr(config.encoder_config, name, value)
    model = CondenserForPreTraining.from_pretrained(recipe.encoder, config=config)
    for name, value in stated.items():
        if getattr(config, name) != value:
            raise ValueError(
                f"The recipe says {name}: {value}, but the checkpoint {recipe.encoder} has "
                f"{getattr(config, name)}. Leave it out to continue the checkpoint, or set "
                "new_head: true to start a new head."
            )
    return model


def longest_sequence(encoder_config: Any) -> int:
    """How many tokens an encoder has positions for."""
    # RoBERTa and its kin count positions from behind the padding token's.
    is_bert = encoder_config.model_type == "bert"
    first = 0 if is_bert else (encoder_config.pad_token_id or 0) + 1
    return encoder_config.max_position_embeddings - first


def check_fit(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, max_length: int) -> None:
    """Check that a tokenizer's tokens and a sequence length have a place in a model.

    Raises:
        ValueError: they have not.
    """
    config = model.config.encoder_config
    if len(tokenizer) > config.vocab_size:
        raise ValueError(
            f"The tokenizer has {len(tokenizer)} tokens, but the model embeds only "
            f"{config.vocab_size}: they do not belong together, or the model lacks added tokens "
            "(call model.resize_token_embeddings(len(tokenizer)) and save it)."
        )
    longest = longest_sequence(config)
    if max_length > longest:
        raise ValueError(
            f"max_length is {max_length}, but the encoder has positions for {longest} tokens only."
        )
