"""Make examples and batches from text, and prepare the model for the objective."""

import logging
from array import array
from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd
import torch
from datasets import Dataset
from torch import nn
from transformers import PreTrainedTokenizerBase

from modeling_condenser.cpu_kernels import use_fast_dropout
from modeling_condenser.encoder_parts import find_tokenizer
from modeling_condenser.encoding.unknown_tokens import warn_of_unknown
from modeling_condenser.modeling_condenser import CondenserForMaskedLM
from modeling_condenser.packing import use_packing, why_not_packed

from .arguments import CONTRASTIVE, CondenserTrainingArguments
from .collator import CondenserDataCollator, TokenBudgetBatches, text_room
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
from .survey import survey, with_two_parts
from .tsdae import DenoisingCollator, add_decoder
from .warm_start import check_fit

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


def _check_tokens(tokenizer: PreTrainedTokenizerBase, model: Any) -> None:
    """Raise a ValueError if a tokenizer gives other tokens to ids than the encoder's own one."""
    try:
        own = find_tokenizer(model)
    except (OSError, ValueError):  # the encoder has none
        return
    if len(own) <= len(own.all_special_tokens):  # its files are missing
        return
    given, ids = set(tokenizer.get_vocab().items()), set(tokenizer.get_vocab().values())
    for token, i in sorted(own.get_vocab().items(), key=itemgetter(1)):
        if i in ids and (token, i) not in given and not token.startswith("[unused"):
            raise ValueError(
                f"The encoder embeds the token {token!r} as {i}, where the tokenizer has "
                f"{tokenizer.convert_ids_to_tokens(i)!r}: use the encoder's own tokenizer. If the "
                "model was trained with this one, save both in one folder and start from that."
            )


def make_collator(
    model: CondenserForMaskedLM,
    tokenizer: PreTrainedTokenizerBase,
    arguments: CondenserTrainingArguments,
) -> CondenserDataCollator | DenoisingCollator:
    """Prepare a model for the objective, and make the collator of its batches."""
    objective, packed, config = arguments.objective, arguments.packed, model.config
    check_fit(tokenizer, model, arguments.max_length)
    _check_tokens(tokenizer, model)
    if arguments.attn_implementation is not None:
        model.set_attn_implementation(arguments.attn_implementation)
    elif packed is None:
        packed = why_not_packed(model.condenser.encoder) is None
    if objective == "tsdae":
        add_decoder(model, seed=arguments.seed)
        packed = False  # the decoder takes padded batches
    only_contrast = is_contrast_only(model, objective)
    if only_contrast and (objective == "cocondenser" or arguments.bow_weight):
        logger.warning(
            "The encoder has no LM head, so objective %s trains its contrast only: the losses of "
            "masked tokens and bags of words are left out.",
            objective,
        )
    if only_contrast or (objective == "ict" and not arguments.bow_weight):
        for name in ("lm_head", "head", "head_norm"):
            getattr(model, name, nn.Identity()).requires_grad_(False)
        # Of the LM head only the tied weights are trained.
        model.condenser.encoder.get_input_embeddings().requires_grad_(True)
    else:
        config.lm_head_is_new = False
    use_fast_dropout(model)
    if packed:
        use_packing(model)
    is_masked = objective != "ict" and not only_contrast
    has_head = hasattr(model, "run_head") and not only_contrast
    collator = CondenserDataCollator(
        tokenizer,
        max_length=arguments.max_length,
        mlm_probability=arguments.mlm_probability if is_masked else None,
        head_mlm_probability=config.head_mlm_probability if has_head else None,
        bag_of_words=arguments.bow_weight > 0 and not only_contrast,
        prompts=prompts_of(model, objective),
        # The chunks of a gradient cache are packed when the batch is split.
        packed=bool(packed) and arguments.cache_chunk_size is None,
    )
    if objective == "tsdae":
        return DenoisingCollator(collator, deletion_probability=arguments.deletion_probability)
    return collator


def is_contrast_only(model: Any, objective: str) -> bool:
    """Whether an objective leaves out the losses that need the LM head, because it is new."""
    return objective in CONTRASTIVE and model.config.lm_head_is_new


def prompts_of(model: Any, objective: str) -> tuple[str, ...]:
    """The prompts of the model for passages, and before them for queries in the ICT's pairs."""
    encoding = model.config.encoding
    kinds = ("query", "passage") if objective == "ict" else ("passage",)
    return tuple(encoding.get(f"{kind}_prompt", "") for kind in kinds)


def make_examples(
    rows: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    arguments: CondenserTrainingArguments,
    *,
    prompts: Sequence[str] = ("",),
    for_evaluation: bool = False,
) -> tuple[Any, TokenBudgetBatches | None, dict[str, Any]]:
    """Make the examples of the objective from text (`as_rows`).

    `prompts` are those of the collator. Examples for evaluation have the same masks and pairs each
    time.

    Returns:
        Data set, batches if they have a token budget, and facts for the run's record.
    """
    objective, seed = arguments.objective, arguments.seed
    kinds: dict[str, Any] = {"cocondenser": arguments.spans, "ict": "passages"}
    builder = BlockBuilder(
        tokenizer,
        max_length=arguments.span_length or arguments.max_length,
        short_block_probability=arguments.short_block_probability,
        seed=arguments.blocks_seed,
        prompt=prompts[-1],
        kind=kinds.get(objective, "blocks"),
    )
    # The first process builds the blocks, and the others read them from the cache.
    with arguments.main_process_first(desc="preparing the text"):
        if objective in CONTRASTIVE:
            rows = drop_copies(rows, "text")
        texts = build_blocks(rows, builder, num_proc=arguments.preprocessing_workers)
        found = survey(texts, tokenizer)
        blocks, left_out = texts, dict[str, int]()
        if objective in CONTRASTIVE:
            blocks, left_out = with_two_parts(texts, found, len(rows))
            blocks = drop_copies(blocks, "input_ids")
    facts = {"n_documents": len(rows), "n_blocks": len(blocks), **left_out}
    n_tokens, n_texts = found.lengths.sum(), len(found.lengths)
    warn_of_unknown(tokenizer, n_unknown=found.n_unknown, n_tokens=n_tokens, n_texts=n_texts)
    share = np.minimum(found.lengths, 2 * builder.room).sum() / found.lengths.sum()
    if objective == "cocondenser" and share < 0.99:
        logger.warning(
            "An epoch reads at most %.1f %% of the %d tokens: two spans of each document.",
            *(100 * share, found.lengths.sum()),
        )
    batches = None
    if (budget := arguments.tokens_per_batch) is not None and not for_evaluation:
        n_special = builder.max_length - builder.room
        lengths = (found.lengths + n_special).clip(max=arguments.max_length)
        n_processes = arguments.world_size
        batches = TokenBudgetBatches(lengths, budget, seed=seed, n_processes=n_processes)
    kind = EvaluationBlocks if for_evaluation else KeyedBlocks
    draw: Draw | None = draw_spans if objective == "cocondenser" else None
    if objective == "ict":
        length = min(arguments.query_length, arguments.max_length)
        room = text_room(tokenizer, length, name="query_length", prompt=prompts[0])
        share = arguments.removal_probability
        draw = partial(draw_query, query_room=room, removal_probability=share)
    return kind(blocks, seed=seed, draw=draw), batches, facts


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
