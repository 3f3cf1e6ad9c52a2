"""Make examples and batches from text, and prepare the model for the objective."""

import hashlib
import json
from operator import itemgetter
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow.compute as pc
import torch
from datasets import Dataset, IterableDataset
from torch import nn
from transformers import PreTrainedTokenizerBase

from modeling_condenser.encoder_files import find_tokenizer
from modeling_condenser.encoder_parts import find_layers, n_positions
from modeling_condenser.modeling_condenser import CondenserForMaskedLM
from modeling_condenser.packing import is_packing, use_packing, why_not_packed

from .arguments import CondenserTrainingArguments
from .batches import TokenBudgetBatches
from .collator import CondenserDataCollator
from .data import BlockBuilder, EvaluationBlocks, KeyedBlocks
from .objectives import OBJECTIVES
from .prepared import prepare

# Model -> the weights that its last trainer did not train.
_frozen: WeakKeyDictionary[Any, list[torch.nn.Parameter]] = WeakKeyDictionary()


def check_fit(tokenizer: PreTrainedTokenizerBase, model: Any, max_length: int) -> None:
    """Raise a ValueError if a tokenizer or a sequence length does not fit a model."""
    vocab_size = model.config.encoder_config.vocab_size
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise ValueError(
            f"{tokenizer.name_or_path} has no tokenizer files: save the tokenizer there, or pass "
            "it as processing_class (in a recipe: tokenizer)."
        )
    if len(tokenizer) > vocab_size:
        raise ValueError(
            f"The tokenizer has {len(tokenizer)} tokens, but the model embeds {vocab_size}: use "
            "the model's own, or call model.resize_token_embeddings(len(tokenizer)) and save it."
        )
    encoder: Any = model.base_model.encoder
    padding = encoder.get_input_embeddings().padding_idx
    # RoBERTa and similar encoders count positions from the padding token's id.
    if padding is not None and tokenizer.pad_token_id != padding:
        raise ValueError(
            f"The tokenizer pads with token {tokenizer.pad_token_id}, the model with {padding}: "
            "use the model's own tokenizer."
        )
    longest = n_positions(encoder)
    if longest is not None and max_length > longest:
        raise ValueError(
            f"max_length is {max_length}, but the encoder has positions for {longest} tokens only."
        )
    _check_tokens(tokenizer, model)


def _check_tokens(tokenizer: PreTrainedTokenizerBase, model: Any) -> None:
    """Raise a ValueError if a tokenizer gives other tokens to ids than the encoder's own one."""
    try:
        encoders_own = find_tokenizer(model)
    except (OSError, ValueError):  # the encoder has none
        return
    if len(encoders_own) <= len(encoders_own.all_special_tokens):  # its files are missing
        return
    tokens = set(tokenizer.get_vocab().items())
    ids = set(tokenizer.get_vocab().values())
    for token, i in sorted(encoders_own.get_vocab().items(), key=itemgetter(1)):
        if i in ids and (token, i) not in tokens and not token.startswith("[unused"):
            raise ValueError(
                f"The encoder embeds the token {token!r} as {i}, where the tokenizer has "
                f"{tokenizer.convert_ids_to_tokens(i)!r}: use the encoder's own tokenizer. If the "
                "model was trained with this one, save both in one folder and start from that."
            )


def prepare_model(
    model: CondenserForMaskedLM,
    tokenizer: PreTrainedTokenizerBase,
    arguments: CondenserTrainingArguments,
) -> None:
    """Check that tokenizer and model fit, and set packing and what is trained."""
    check_fit(tokenizer, model, arguments.max_length)
    model.trained_tokenizer = tokenizer
    for weight in _frozen.pop(model, ()):
        weight.requires_grad_(True)
    if not OBJECTIVES[arguments.objective].is_masked and not arguments.bow_weight:
        # Of the LM head only weights that it shares with the encoder are trained, if these are.
        shared = set(model.condenser.encoder.parameters())
        own = [weight for weight in model.lm_head.parameters() if weight.requires_grad]
        _frozen[model] = [weight.requires_grad_(False) for weight in own if weight not in shared]
    can_pack = why_not_packed(model.condenser.encoder) is None
    can_pack &= arguments.device.type in ("cpu", "cuda")  # others have no such attention
    if arguments.packed or (arguments.packed is None and can_pack):
        use_packing(model)
    elif arguments.tokens_per_batch is not None:
        raise ValueError(
            "tokens_per_batch limits the tokens of packed batches, and these would be padded: set "
            "per_device_train_batch_size, and tokens_per_batch to null."
        )


def make_collator(
    model: CondenserForMaskedLM,
    tokenizer: PreTrainedTokenizerBase,
    arguments: CondenserTrainingArguments,
) -> CondenserDataCollator:
    """Make the collator of an objective's batches, for a model after `prepare_model`."""
    has_head, is_masked = hasattr(model, "run_head"), OBJECTIVES[arguments.objective].is_masked
    return CondenserDataCollator(
        tokenizer,
        max_length=arguments.max_length,
        mlm_probability=arguments.mlm_probability if is_masked else None,
        head_mlm_probability=model.config.head_mlm_probability if has_head else None,
        bag_of_words=arguments.bow_weight > 0,
        # The chunks of a gradient cache are packed when the batch is split.
        packed=packs(model, arguments) and arguments.cache_chunk_size is None,
    )


def packs(model: CondenserForMaskedLM, arguments: CondenserTrainingArguments) -> bool:
    """Whether batches are packed; a model that can take them also takes padded ones."""
    return is_packing(model) and arguments.packed is not False


def make_examples(
    rows: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    arguments: CondenserTrainingArguments,
    *,
    for_evaluation: bool = False,
) -> tuple[Any, TokenBudgetBatches | None, dict[str, Any]]:
    """Make the examples of the objective from text (`as_rows`).

    Examples for evaluation have the same masks and pairs each time.

    Returns:
        Data set, batches if they have a token budget, and counts for the run's record.
    """
    builder = make_builder(tokenizer, arguments, rows)
    prepared = prepare(
        rows, builder, folder=arguments.blocks_folder, num_proc=arguments.preprocessing_workers
    )
    batches = None
    if arguments.tokens_per_batch is not None and not for_evaluation:
        n_special = builder.max_length - builder.text_length
        lengths = pc.list_value_length(prepared.blocks.data.column("input_ids")).to_numpy()
        batches = TokenBudgetBatches(
            (lengths + n_special).clip(max=arguments.max_length),
            arguments.tokens_per_batch,
            seed=arguments.order_seed,
            n_processes=arguments.world_size,
        )
    kind = EvaluationBlocks if for_evaluation else KeyedBlocks
    examples = kind(prepared.blocks, seed=arguments.seed, make_pair=builder.make_pair)
    return examples, batches, prepared.counts


def make_builder(
    tokenizer: PreTrainedTokenizerBase,
    arguments: CondenserTrainingArguments,
    rows: Dataset | IterableDataset,
) -> BlockBuilder:
    """What cuts the documents of an objective, and makes pairs of them."""
    objective = OBJECTIVES[arguments.objective]
    if objective.reads != "blocks" and "text" not in (rows.column_names or ["text"]):
        raise ValueError(
            f"objective {objective.name!r} cuts text at its sentences, but the rows hold "
            "input_ids: give the text itself, in a column `text`."
        )
    make_pair = None
    if objective.choose_pairs is not None:
        make_pair = objective.choose_pairs(tokenizer, arguments)
    return BlockBuilder(
        tokenizer,
        max_length=arguments.max_length,
        short_block_probability=arguments.short_block_probability,
        kind=objective.reads,
        make_pair=make_pair,
    )


def fingerprint_start(model: Any) -> str:
    """SHA-256 of the backbone's configuration and layers, from which a training starts.

    Embeddings are left out, because new tokens have random ones; so is a new head.
    """
    encoder: nn.Module = model.condenser.encoder
    config = {
        name: value
        for name, value in model.config.encoder_config.to_diff_dict().items()
        if name not in ("transformers_version", "architectures") and not name.startswith("_")
    }
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for layer in find_layers(encoder):
        for name, weights in layer.state_dict().items():
            digest.update(name.encode())
            digest.update(weights.cpu().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
