"""Make examples and batches from text, and prepare the model for the objective."""

import logging
from collections.abc import Mapping
from functools import partial
from operator import itemgetter
from typing import Any

import pyarrow.compute as pc
import torch
from datasets import Dataset, IterableDataset
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from modeling_condenser.hub.model_folder import resolve_encoder_name
from modeling_condenser.modeling_condenser import CondenserForMaskedLM
from modeling_condenser.packing import use_packing, why_not_packed

from .arguments import CONTRASTIVE, CondenserTrainingArguments
from .collator import CondenserDataCollator, TokenBudgetBatches, text_room
from .data import (
    BlockBuilder,
    Draw,
    EvaluationBlocks,
    KeyedBlocks,
    StreamedBlocks,
    build_blocks,
    draw_query,
    draw_spans,
    features_of,
    fingerprint_blocks,
    select_text,
)
from .tsdae import DenoisingCollator, add_decoder
from .warm_start import check_fit

logger = logging.getLogger(__name__)


def as_rows(data: Any, *, name: str) -> Dataset | IterableDataset | None:
    """Convert the data that a trainer is given to rows with the one column `text` or `input_ids`.

    Returns None for data that the collator reads as they are: data sets of torch, token ids with a
    `mask_key`, and streams of token ids.

    Raises:
        ValueError: the data are empty or have another form; `name` is the argument that holds them.
    """
    if isinstance(data, list | tuple) and all(isinstance(row, str | Mapping) for row in data):
        data = Dataset.from_list([{"text": row} if isinstance(row, str) else row for row in data])
    if not isinstance(data, Dataset | IterableDataset):
        if isinstance(data, torch.utils.data.Dataset):
            return None
        hint = f" Choose a split, such as {name}['train']." if isinstance(data, Mapping) else ""
        raise ValueError(
            f"{name} is a {type(data).__name__}, expected a list of strings, or a data set or a "
            f"list of rows with a column `text` (or `input_ids`).{hint}"
        )
    features = features_of(data)
    if not features:
        raise ValueError(f"{name} is empty.")
    if "input_ids" not in features:
        advice = f'Rename the one that holds the text: {name}.rename_column(COLUMN, "text").'
        return select_text(data, "text", name=name, advice=advice)
    if "mask_key" in features or isinstance(data, IterableDataset):
        return None
    return data.select_columns("input_ids")


def find_tokenizer(model: Any) -> PreTrainedTokenizerBase:
    """The tokenizer of the checkpoint that a model was loaded from."""
    name = model.name_or_path or model.config.encoder_config.name_or_path
    if not name:
        raise ValueError(
            "The model was not loaded from a checkpoint: pass its tokenizer as processing_class."
        )
    return AutoTokenizer.from_pretrained(resolve_encoder_name(name))


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
    objective, packed = arguments.objective, arguments.packed
    check_fit(tokenizer, model, arguments.max_length)
    _check_tokens(tokenizer, model)
    if arguments.attn_implementation is not None:
        model.set_attn_implementation(arguments.attn_implementation)
    elif packed is None:
        packed = why_not_packed(model.condenser.encoder) is None
    if objective == "tsdae":
        add_decoder(model, tokenizer, seed=arguments.seed)
        packed = False  # the decoder takes padded batches
    if objective in ("ict", "tsdae") and not arguments.bow_weight:
        model.lm_head.requires_grad_(False)  # of which only the tied weights are trained
        model.condenser.encoder.get_input_embeddings().requires_grad_(True)
    if packed:
        use_packing(model)
    collator = CondenserDataCollator(
        tokenizer,
        max_length=arguments.max_length,
        mlm_probability=None if objective == "ict" else arguments.mlm_probability,
        head_mlm_probability=model.config.head_mlm_probability,
        bag_of_words=arguments.bow_weight > 0,
    )
    if objective == "tsdae":
        return DenoisingCollator(collator, deletion_probability=arguments.deletion_probability)
    return collator


def make_examples(
    rows: Dataset | IterableDataset,
    tokenizer: PreTrainedTokenizerBase,
    arguments: CondenserTrainingArguments,
    *,
    for_evaluation: bool = False,
) -> tuple[Any, TokenBudgetBatches | None, dict[str, Any]]:
    """Make the examples of the objective from text or token ids (`as_rows`).

    Examples for evaluation have the same masks and pairs each time, and a stream of them is read to
    its end.

    Returns:
        Data set, batches if they have a token budget, and facts for the run's record.
    """
    if not for_evaluation:
        arguments.streaming = isinstance(rows, IterableDataset)
        arguments.check_settings()
    elif isinstance(rows, IterableDataset):
        rows = Dataset.from_list(list(rows))
    objective, seed = arguments.objective, arguments.seed
    kinds: dict[str, Any] = {"cocondenser": arguments.spans, "ict": "passages"}
    builder = BlockBuilder(
        tokenizer,
        max_length=arguments.span_length or arguments.max_length,
        short_block_probability=arguments.short_block_probability,
        seed=arguments.blocks_seed,
        kind=kinds.get(objective, "blocks"),
    )
    if isinstance(rows, IterableDataset):
        # The stream has its own workers.
        n_workers, arguments.dataloader_num_workers = arguments.dataloader_num_workers, 0
        return StreamedBlocks(rows, builder, seed=seed, num_proc=n_workers), None, {}
    # The first process builds the blocks, and the others read them from the cache.
    with arguments.main_process_first(desc="preparing the text"):
        blocks = rows
        if "text" in rows.column_names:
            blocks = build_blocks(rows, builder, num_proc=arguments.preprocessing_workers)
        elif objective in CONTRASTIVE:
            raise ValueError(
                f"objective {objective} makes pairs from text, but the data have only input_ids: "
                "give a column `text` instead."
            )
        sha256, n_documents = fingerprint_blocks(blocks), len(rows)
    facts = {"blocks_sha256": sha256, "n_documents": n_documents, "n_blocks": len(blocks)}
    if objective in CONTRASTIVE:
        facts["n_documents_left_out"] = n_left_out = n_documents - len(blocks.unique("document"))
        if n_left_out:
            logger.warning(
                "%d of %d documents cannot be cut in two and are left out.", n_left_out, n_documents
            )
    batches = None
    if (budget := arguments.tokens_per_batch) is not None and not for_evaluation:
        lengths = pc.list_value_length(blocks.with_format("arrow")[:]["input_ids"]).to_numpy()
        n_special = builder.max_length - builder.room
        lengths = (lengths.astype("int64") + n_special).clip(max=arguments.max_length)
        n_processes = arguments.world_size
        batches = TokenBudgetBatches(lengths, budget, seed=seed, n_processes=n_processes)
    kind = EvaluationBlocks if for_evaluation else KeyedBlocks
    return kind(blocks, seed=seed, draw=_choose_draw(tokenizer, arguments)), batches, facts


def _choose_draw(
    tokenizer: PreTrainedTokenizerBase, arguments: CondenserTrainingArguments
) -> Draw | None:
    """The function that draws a pair from a text, if the objective needs pairs."""
    if arguments.objective != "ict":
        return draw_spans if arguments.objective == "cocondenser" else None
    length = min(arguments.query_length, arguments.max_length)
    return partial(
        draw_query,
        query_room=text_room(tokenizer, length, name="query_length"),
        removal_probability=arguments.removal_probability,
    )
