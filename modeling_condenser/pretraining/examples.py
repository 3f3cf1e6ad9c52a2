"""Text becomes training examples and batches; the model is made ready for them."""

import logging
from collections.abc import Mapping
from functools import partial
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
    """Read what a trainer is given to train or evaluate on.

    Args:
        data: strings; rows with a column `text` or `input_ids`, as a list or a data set; or a data
            set of torch, whose rows are for the collator.
        name: of the argument, for errors.

    Returns:
        Rows with the one column `text` or `input_ids`. None for data that the collator takes as
        they are: those of torch, streams of token ids, and token ids with a `mask_key`.

    Raises:
        ValueError: the data are none of these, or empty.
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


def make_collator(
    model: CondenserForMaskedLM,
    tokenizer: PreTrainedTokenizerBase,
    arguments: CondenserTrainingArguments,
) -> CondenserDataCollator | DenoisingCollator:
    """Make a model ready for the objective, and make the collator of its batches."""
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
        model.lm_head.requires_grad_(False)  # only its tied weights are trained
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
) -> tuple[Any, TokenBudgetBatches | None, dict[str, Any]]:
    """Make the training examples of the objective from text or token ids (`as_rows`).

    Returns:
        Data set, batches if they have a token budget, and facts for the run's record.
    """
    arguments.streaming = isinstance(rows, IterableDataset)
    arguments.check_settings()
    seed = arguments.seed
    if isinstance(rows, IterableDataset):
        builder = _make_builder(tokenizer, arguments)
        # The stream has workers of its own.
        n_workers, arguments.dataloader_num_workers = arguments.dataloader_num_workers, 0
        return StreamedBlocks(rows, builder, seed=seed, num_proc=n_workers), None, {}
    blocks, sha256 = _make_blocks(rows, tokenizer, arguments)
    n_documents = len(rows)
    facts = {"blocks_sha256": sha256, "n_documents": n_documents, "n_blocks": len(blocks)}
    if arguments.objective in CONTRASTIVE:
        facts["n_documents_left_out"] = n_left_out = n_documents - len(blocks.unique("document"))
        if n_left_out:
            logger.warning(
                "%d of %d documents cannot be cut in two and are left out.", n_left_out, n_documents
            )
    batches = None
    if (budget := arguments.tokens_per_batch) is not None:
        lengths = pc.list_value_length(blocks.with_format("arrow")[:]["input_ids"]).to_numpy()
        n_special = arguments.max_length - text_room(tokenizer, arguments.max_length)
        lengths = (lengths.astype("int64") + n_special).clip(max=arguments.max_length)
        n_processes = arguments.world_size
        batches = TokenBudgetBatches(lengths, budget, seed=seed, n_processes=n_processes)
    draw = _choose_draw(tokenizer, arguments)
    return KeyedBlocks(blocks, seed=seed, draw=draw), batches, facts


def make_evaluation_examples(
    rows: Dataset | IterableDataset,
    tokenizer: PreTrainedTokenizerBase,
    arguments: CondenserTrainingArguments,
) -> EvaluationBlocks:
    """Make examples that are the same in each evaluation; a stream is read to its end, once."""
    if isinstance(rows, IterableDataset):
        rows = Dataset.from_list(list(rows))
    blocks, _ = _make_blocks(rows, tokenizer, arguments)
    draw = _choose_draw(tokenizer, arguments)
    return EvaluationBlocks(blocks, seed=arguments.seed, draw=draw)


def _make_blocks(
    rows: Dataset, tokenizer: PreTrainedTokenizerBase, arguments: CondenserTrainingArguments
) -> tuple[Dataset, str]:
    """Blocks of the objective, and their fingerprint."""
    # Of several processes the first builds what the others then find.
    with arguments.main_process_first(desc="preparing the text"):
        if "text" in rows.column_names:
            builder = _make_builder(tokenizer, arguments)
            rows = build_blocks(rows, builder, num_proc=arguments.preprocessing_workers)
        elif arguments.objective in CONTRASTIVE:
            raise ValueError(
                f"objective {arguments.objective} makes pairs from text, but the rows hold "
                "input_ids: give a column `text` instead."
            )
        return rows, fingerprint_blocks(rows)


def _make_builder(
    tokenizer: PreTrainedTokenizerBase, arguments: CondenserTrainingArguments
) -> BlockBuilder:
    kinds: dict[str, Any] = {"cocondenser": arguments.spans, "ict": "passages"}
    return BlockBuilder(
        tokenizer,
        max_length=arguments.span_length or arguments.max_length,
        short_block_probability=arguments.short_block_probability,
        seed=arguments.blocks_seed,
        kind=kinds.get(arguments.objective, "blocks"),
    )


def _choose_draw(
    tokenizer: PreTrainedTokenizerBase, arguments: CondenserTrainingArguments
) -> Draw | None:
    """How a pair is drawn from the parts of a text; None where examples are no pairs."""
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
