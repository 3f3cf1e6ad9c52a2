"""Checks, before anything is written, that model, tokenizer and training arguments fit."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from .positions import n_positions


def check_objective(objective: str, model: Any, supported: Sequence[str]) -> None:
    """Check that a trainer trains an objective, and that it is the model's.

    Args:
        objective: of `CondenserTrainingArguments`.
        model: that is trained.
        supported: the trainer's objectives.

    Raises:
        ValueError: it does not, or it is not.
    """
    if objective not in supported:
        raise ValueError(
            f"objective is {objective!r}, but this trainer's are {', '.join(supported)}: use "
            "CondenserTrainer for condenser and mlm, ContrastiveTrainer for cocondenser and ict, "
            "and `condenser pretrain` for tsdae."
        )
    has_head, needs_head = hasattr(model, "run_head"), objective in ("condenser", "cocondenser")
    if has_head != needs_head:
        wanted = "CondenserForPreTraining" if needs_head else "CondenserForMaskedLM, without a head"
        raise ValueError(
            f"objective is {objective!r}, which trains a {wanted}, but the model is a "
            f"{type(model).__name__}: change the objective or the model."
        )


def check_reading(arguments: TrainingArguments) -> None:
    """Check that each process may take its own batches of a stream.

    By accelerate's default the first process reads for all, puts their batches together and deals
    out the rows: batches would need one width, and a packed one has no rows.

    Raises:
        ValueError: the arguments state that default.
    """
    config: Any = arguments.accelerator_config
    if config.dispatch_batches:
        raise ValueError(
            "accelerator_config states dispatch_batches: true, but batches of a streamed corpus "
            "differ in width and cannot be dealt out row by row: leave it out."
        )


def check_batch(arguments: TrainingArguments, cache_chunk_size: int | None) -> None:
    """Check that training arguments fit a loss over the whole batch.

    Raises:
        ValueError: they do not; the message says which and what to do.
    """
    n_documents = arguments.per_device_train_batch_size
    n_spans = 2 * n_documents
    if arguments.gradient_accumulation_steps > 1:
        raise ValueError(
            f"gradient_accumulation_steps is {arguments.gradient_accumulation_steps}, but a "
            "contrastive loss is over the whole batch, which accumulation cannot enlarge: set it "
            "to 1, per_device_train_batch_size to the batch that you want, and cache_chunk_size "
            "to what fits the memory."
        )
    if arguments.n_gpu > 1:
        raise ValueError(
            f"One process sees {arguments.n_gpu} GPUs, but a contrastive loss needs one process "
            "for each: start it with torchrun or accelerate launch."
        )
    if not arguments.dataloader_drop_last:
        raise ValueError(
            "dataloader_drop_last is false, but the loss of a smaller last batch has fewer "
            "negatives, or none: set it to true."
        )
    if n_documents * arguments.world_size < 2:
        raise ValueError(
            "The batch is one pair, in which nothing is a negative: set "
            "per_device_train_batch_size (pairs on a device) to 2 or more; the papers' is 1,024."
        )
    if cache_chunk_size is None:
        return
    if cache_chunk_size < 2 or cache_chunk_size % 2:
        raise ValueError(
            f"cache_chunk_size is {cache_chunk_size}, but texts come in pairs: choose an even "
            "number of at least 2."
        )
    if cache_chunk_size > n_spans:
        raise ValueError(
            f"cache_chunk_size is {cache_chunk_size}, but a device's batch is {n_spans} texts (two "
            f"for each of per_device_train_batch_size: {n_documents}): choose at most that, or "
            "leave it out."
        )


def check_enough(n_pairs: int, arguments: TrainingArguments) -> None:
    """Check that there is at least one whole batch.

    Raises:
        ValueError: there is none.
    """
    batch = arguments.per_device_train_batch_size * arguments.world_size
    if n_pairs < batch:
        raise ValueError(
            f"There are {n_pairs} pairs to train on, but a batch is {batch} of them (over all "
            "processes): lower per_device_train_batch_size, or add text."
        )


def check_fit(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, max_length: int) -> None:
    """Check that a tokenizer's tokens and a sequence length have a place in a model.

    The conventions of different models' special tokens must not be mixed: some encoders know
    padding by its token, and count positions from behind it.

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
    encoder: Any = model.base_model.encoder
    padding = encoder.get_input_embeddings().padding_idx
    if padding is not None and tokenizer.pad_token_id != padding:
        raise ValueError(
            f"The tokenizer pads with token {tokenizer.pad_token_id}, the model with {padding}: "
            "they do not belong together, and the model would take padding for text, or text for "
            "padding. Use the model's own tokenizer."
        )
    longest = n_positions(encoder)
    if longest is not None and max_length > longest:
        raise ValueError(
            f"max_length is {max_length}, but the encoder has positions for {longest} tokens only."
        )
