"""Make examples and batches from text, and prepare the model for the objective."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from datasets import Dataset, Features, IterableDataset, List, Value
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from modeling_condenser.hub.model_folder import resolve_encoder_name
from modeling_condenser.modeling_condenser import CondenserForMaskedLM
from modeling_condenser.packing import use_packing, why_not_packed

from .arguments import CONTRASTIVE, CondenserTrainingArguments
from .collator import (
    CondenserDataCollator,
    TokenBudgetBatches,
    read_text,
    special_frame,
    text_room,
)
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
from .survey import report_share, survey, warn_of_unknown, with_two_parts
from .tsdae import DenoisingCollator, add_decoder
from .warm_start import check_fit


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
    return data.select_columns([n for n in ("input_ids", "attention_mask") if n in features])


def find_tokenizer(model: Any) -> PreTrainedTokenizerBase:
    """The tokenizer of the checkpoint that a model was loaded from."""
    name = model.name_or_path or model.config.encoder_config.name_or_path
    if not name:
        raise ValueError(
            "The model was not loaded from a checkpoint: pass its tokenizer as processing_class."
        )
    return AutoTokenizer.from_pretrained(resolve_encoder_name(name))


def make_collator(
    model: CondenserForMaskedLM,
    tokenizer: PreTrainedTokenizerBase,
    arguments: CondenserTrainingArguments,
) -> CondenserDataCollator | DenoisingCollator:
    """Prepare a model for the objective, and make the collator of its batches."""
    objective, packed = arguments.objective, arguments.packed
    check_fit(tokenizer, model, arguments.max_length)
    if arguments.attn_implementation is not None:
        model.set_attn_implementation(arguments.attn_implementation)
    elif packed is None:
        packed = why_not_packed(model.condenser.encoder) is None
    if objective == "tsdae":
        add_decoder(model, tokenizer)
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
        if "text" in rows.column_names:
            texts = build_blocks(rows, builder, num_proc=arguments.preprocessing_workers)
        elif objective in CONTRASTIVE:
            raise ValueError(
                f"objective {objective} makes pairs from text, but the data have only input_ids: "
                "give a column `text` instead."
            )
        else:
            texts = _without_padding(rows, tokenizer)
        room, reading = text_room(tokenizer, arguments.max_length), _reading(tokenizer, arguments)
        found = survey(texts, tokenizer, room=room, **reading)
        blocks, left_out = texts, dict[str, int]()
        if objective in CONTRASTIVE:
            blocks, left_out = with_two_parts(texts, found, len(rows))
        sha256 = fingerprint_blocks(blocks)
    facts = {"blocks_sha256": sha256, "n_documents": len(rows), "n_blocks": len(blocks), **left_out}
    warn_of_unknown(tokenizer, found.n_unknown, found.lengths.sum())
    report_share(found, len(blocks), arguments)
    batches = None
    if (budget := arguments.tokens_per_batch) is not None and not for_evaluation:
        n_special = builder.max_length - builder.room
        lengths = (found.lengths + n_special).clip(max=arguments.max_length)
        n_processes = arguments.world_size
        batches = TokenBudgetBatches(lengths, budget, seed=seed, n_processes=n_processes)
    kind = EvaluationBlocks if for_evaluation else KeyedBlocks
    draws: dict[str, Draw] = {"cocondenser": draw_spans, "ict": partial(draw_query, **reading)}
    return kind(blocks, seed=seed, draw=draws.get(objective)), batches, facts


def _without_padding(rows: Dataset, tokenizer: PreTrainedTokenizerBase) -> Dataset:
    """Blocks of token ids that may be padded and have special tokens around them."""
    frame, pad_token_id = special_frame(tokenizer), tokenizer.pad_token_id

    def read(columns: dict[str, list]) -> dict[str, list]:
        rows = zip(*columns.values(), strict=True)
        examples = (dict(zip(columns, row, strict=True)) for row in rows)
        blocks = (read_text(example, frame, pad_token_id) for example in examples)
        return {"input_ids": [ids for ids in blocks if len(ids)]}

    names, features = rows.column_names, Features({"input_ids": List(Value("int32"))})
    return rows.map(
        read, batched=True, remove_columns=names, features=features, desc="Reading token ids"
    )


def _reading(
    tokenizer: PreTrainedTokenizerBase, arguments: CondenserTrainingArguments
) -> dict[str, Any]:
    """How a pseudo-query is drawn, if the objective needs one."""
    if arguments.objective != "ict":
        return {}
    length = min(arguments.query_length, arguments.max_length)
    return {
        "query_room": text_room(tokenizer, length, name="query_length"),
        "removal_probability": arguments.removal_probability,
    }
