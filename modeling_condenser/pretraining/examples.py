"""Make examples and batches from text, and prepare the model for the objective."""

import hashlib
import json
import logging
from array import array
from collections.abc import Mapping
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd
import torch
from datasets import Dataset
from torch import nn
from transformers import PreTrainedTokenizerBase

from modeling_condenser.encoder_parts import find_layers, find_tokenizer, n_positions
from modeling_condenser.encoding.retriever import warn_of_unknown
from modeling_condenser.modeling_condenser import CondenserForMaskedLM
from modeling_condenser.packing import use_packing, why_not_packed

from .arguments import CONTRASTIVE, CondenserTrainingArguments
from .batches import TokenBudgetBatches
from .collator import CondenserDataCollator, text_room
from .data import (
    BlockBuilder,
    Draw,
    EvaluationBlocks,
    KeyedBlocks,
    build_blocks,
    draw_query,
    draw_spans,
    fingerprint_blocks,
)
from .documents import select_text
from .survey import Survey, survey, with_two_parts

logger = logging.getLogger(__name__)


def as_rows(data: Any, *, name: str) -> Dataset | None:
    """Convert the data that a trainer is given to rows with the one column `text`.

    Returns None for no data, and for data sets of torch, which the collator reads as they are.

    Raises:
        ValueError: the data are empty or have another form; `name` is the argument that holds them.
    """
    if data is None or isinstance(data, torch.utils.data.Dataset):
        return None
    if isinstance(data, list | tuple) and all(isinstance(row, str | Mapping) for row in data):
        data = Dataset.from_list([{"text": row} if isinstance(row, str) else row for row in data])
    if not isinstance(data, Dataset):
        hint = f" Choose a split, such as {name}['train']." if isinstance(data, Mapping) else ""
        raise ValueError(
            f"{name} is a {type(data).__name__}, expected a list of strings, or a data set or a "
            f"list of rows with a column `text`.{hint}"
        )
    if not data.features:
        raise ValueError(f"{name} is empty.")
    advice = f'Rename the one that holds the text: {name}.rename_column(COLUMN, "text").'
    return select_text(data, "text", name=name, advice=advice)


def check_fit(tokenizer: PreTrainedTokenizerBase, model: Any, max_length: int) -> None:
    """Raise a ValueError if a tokenizer or a sequence length does not fit a model."""
    vocab_size = model.config.encoder_config.vocab_size
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


def make_collator(
    model: CondenserForMaskedLM,
    tokenizer: PreTrainedTokenizerBase,
    arguments: CondenserTrainingArguments,
) -> CondenserDataCollator:
    """Prepare a model for the objective, and make the collator of its batches."""
    packed, has_bags = arguments.packed, arguments.bow_weight > 0
    check_fit(tokenizer, model, arguments.max_length)
    if arguments.attn_implementation is not None:
        model.set_attn_implementation(arguments.attn_implementation)
    elif packed is None:
        packed = why_not_packed(model.condenser.encoder) is None
    is_masked = arguments.objective != "ict"
    if not is_masked and not has_bags:
        # Of the LM head only weights that it shares with the encoder are trained, if these are.
        shared = set(model.condenser.encoder.parameters())
        for weight in set(model.lm_head.parameters()) - shared:
            weight.requires_grad_(False)
    if packed:
        use_packing(model)
    has_head = hasattr(model, "run_head")
    return CondenserDataCollator(
        tokenizer,
        max_length=arguments.max_length,
        mlm_probability=arguments.mlm_probability if is_masked else None,
        head_mlm_probability=model.config.head_mlm_probability if has_head else None,
        bag_of_words=has_bags,
        # The chunks of a gradient cache are packed when the batch is split.
        packed=bool(packed) and arguments.cache_chunk_size is None,
    )


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
        Data set, batches if they have a token budget, and facts for the run's record.
    """
    objective, seed = arguments.objective, arguments.seed
    kinds: dict[str, Any] = {"cocondenser": "spans", "ict": "passages"}
    builder = BlockBuilder(
        tokenizer,
        max_length=arguments.max_length,
        short_block_probability=arguments.short_block_probability,
        seed=arguments.blocks_seed,
        kind=kinds.get(objective, "blocks"),
    )
    left_out: dict[str, int] = {}
    # The first process builds the blocks, and the others read them from the cache.
    with arguments.main_process_first(desc="preparing the text"):
        if objective in CONTRASTIVE:
            rows = drop_copies(rows, "text")
        blocks = build_blocks(rows, builder, num_proc=arguments.preprocessing_workers)
        counts = survey(blocks, tokenizer)
        if objective in CONTRASTIVE:
            blocks, left_out = with_two_parts(blocks, counts, len(rows))
            blocks = drop_copies(blocks, "input_ids")
    facts = {"n_documents": len(rows), "n_blocks": len(blocks), **left_out}
    warn_of_unknown(
        tokenizer,
        n_unknown=counts.n_unknown,
        n_tokens=counts.lengths.sum(),
        n_texts=len(counts.lengths),
    )
    batches = None
    if arguments.tokens_per_batch is not None and not for_evaluation:
        n_special = builder.max_length - builder.room
        batches = TokenBudgetBatches(
            (counts.lengths + n_special).clip(max=arguments.max_length),
            arguments.tokens_per_batch,
            seed=seed,
            n_processes=arguments.world_size,
        )
    if objective == "cocondenser":
        _warn_of_unread(counts, 2 * builder.room)
    draw = _choose_draw(tokenizer, arguments)
    kind = EvaluationBlocks if for_evaluation else KeyedBlocks
    return kind(blocks, seed=seed, draw=draw), batches, facts


def _warn_of_unread(counts: Survey, n_read: int) -> None:
    n_tokens = counts.lengths.sum()
    share = np.minimum(counts.lengths, n_read).sum() / n_tokens
    if share < 0.99:
        logger.warning(
            "An epoch reads at most %.1f %% of the %d tokens: two spans of each document.",
            *(100 * share, n_tokens),
        )


def _choose_draw(
    tokenizer: PreTrainedTokenizerBase, arguments: CondenserTrainingArguments
) -> Draw | None:
    """How a pair is drawn from a text; None for objectives without pairs."""
    if arguments.objective == "cocondenser":
        return draw_spans
    if arguments.objective != "ict":
        return None
    length = min(arguments.query_length, arguments.max_length)
    return partial(
        draw_query,
        query_room=text_room(tokenizer, length, name="query_length"),
        removal_probability=arguments.removal_probability,
    )


def drop_copies(rows: Dataset, column: str) -> Dataset:
    """Keep the first of equal texts or blocks, because a contrast would part a text from its copy.

    Blanks around a text do not count. Blank texts are kept, and give no blocks.
    """
    hashes = array("q")
    for batch in rows.select_columns(column).with_format("arrow").iter(batch_size=1000):
        for number, value in enumerate(batch[column].to_pylist(), start=len(hashes)):
            content = (value or "").strip() if column == "text" else tuple(value)
            hashes.append(hash(content or number))
    is_copy = pd.Series(hashes).duplicated()
    if not is_copy.any():
        return rows
    what = "documents" if column == "text" else "passages"
    logger.warning("%d of %d %s are copies and are left out.", is_copy.sum(), len(rows), what)
    return rows.select((~is_copy).to_numpy().nonzero()[0])


def fingerprint_examples(examples: Any) -> dict[str, str]:
    """Fingerprints of training data, for the run's record; a data set of torch has none."""
    blocks = examples.blocks if isinstance(examples, KeyedBlocks) else examples
    if isinstance(blocks, Dataset) and "input_ids" in blocks.column_names:
        return {"blocks_sha256": fingerprint_blocks(blocks)}
    return {}


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
