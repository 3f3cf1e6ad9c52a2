"""Text becomes training examples and batches; the model is made ready for them."""

import logging
from functools import partial
from typing import Any

import pyarrow.compute as pc
from datasets import Dataset, IterableDataset
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from modeling_condenser.hub.model_folder import resolve_encoder_name
from modeling_condenser.modeling_condenser import CondenserForMaskedLM
from modeling_condenser.packing import use_packing, why_not_packed

from .arguments import CONTRASTIVE, CondenserTrainingArguments
from .collator import CondenserDataCollator, TokenBudgetBatches, text_room
from .data import (
    BlockBuilder,
    KeyedBlocks,
    StreamedBlocks,
    build_blocks,
    draw_query,
    draw_spans,
    fingerprint_blocks,
)
from .tsdae import DenoisingCollator, add_decoder
from .warm_start import check_fit

logger = logging.getLogger(__name__)


def as_documents(data: Any) -> Dataset | IterableDataset | None:
    """Data with a column `text`, such as a list of `{"text": ...}`; None for tokenized data.

    Raises:
        ValueError: a data set has neither `text` nor `input_ids`.
    """
    if isinstance(data, list) and data and isinstance(data[0], dict) and "text" in data[0]:
        return Dataset.from_list(data)
    if not isinstance(data, Dataset | IterableDataset):
        return None
    columns = data.column_names or list(next(iter(data), {}))
    if columns and not {"text", "input_ids"} & set(columns):
        raise ValueError(
            f"train_dataset has no column 'text': its columns are {', '.join(columns)}. Rename the"
            " column of your texts, as in train_dataset.rename_column('body', 'text')."
        )
    return data if "text" in columns and "input_ids" not in columns else None


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
    documents: Dataset | IterableDataset,
    tokenizer: PreTrainedTokenizerBase,
    arguments: CondenserTrainingArguments,
) -> tuple[Any, TokenBudgetBatches | None, dict[str, Any]]:
    """Tokenize documents, and cut them into the examples of the objective.

    Returns:
        Data set, batches if they have a token budget, and facts for the run's record.
    """
    arguments.streaming = isinstance(documents, IterableDataset)
    arguments.check_settings()
    objective, seed = arguments.objective, arguments.seed
    kinds: dict[str, Any] = {"cocondenser": arguments.spans, "ict": "passages"}
    builder = BlockBuilder(
        tokenizer,
        max_length=arguments.span_length or arguments.max_length,
        short_block_probability=arguments.short_block_probability,
        seed=arguments.blocks_seed,
        kind=kinds.get(objective, "blocks"),
    )
    if isinstance(documents, IterableDataset):
        # The stream has workers of its own.
        n_workers, arguments.dataloader_num_workers = arguments.dataloader_num_workers, 0
        return StreamedBlocks(documents, builder, seed=seed, num_proc=n_workers), None, {}
    # Of several processes the first builds what the others then find.
    with arguments.main_process_first(desc="preparing the text"):
        blocks = build_blocks(documents, builder, num_proc=arguments.preprocessing_workers)
        sha256, n_documents = fingerprint_blocks(blocks), len(documents)
    facts = {"blocks_sha256": sha256, "n_documents": n_documents, "n_blocks": len(blocks)}
    if objective in CONTRASTIVE:
        facts["n_documents_left_out"] = n_left_out = n_documents - len(blocks.unique("document"))
        if n_left_out:
            logger.warning(
                "%d of %d documents cannot be cut in two and are left out.", n_left_out, n_documents
            )
        draw: Any = draw_spans
        if objective == "ict":
            length = min(arguments.query_length, arguments.max_length)
            room = text_room(tokenizer, length, name="query_length")
            share = arguments.removal_probability
            draw = partial(draw_query, query_room=room, removal_probability=share)
        return KeyedBlocks(blocks, seed=seed, draw=draw), None, facts
    batches = None
    if (budget := arguments.tokens_per_batch) is not None:
        lengths = pc.list_value_length(blocks.with_format("arrow")[:]["input_ids"]).to_numpy()
        n_special = builder.max_length - builder.room
        lengths = (lengths.astype("int64") + n_special).clip(max=arguments.max_length)
        n_processes = arguments.world_size
        batches = TokenBudgetBatches(lengths, budget, seed=seed, n_processes=n_processes)
    return KeyedBlocks(blocks, seed=seed), batches, facts
