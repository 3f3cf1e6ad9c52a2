"""Text becomes training examples and batches; the model is made ready for them."""

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
from .data import BlockBuilder, KeyedBlocks, StreamedBlocks, build_blocks, fingerprint_blocks
from .pairs import TextCutter, TextPairs, cut_documents, draw_query, draw_spans
from .tsdae import DenoisingCollator, add_decoder
from .warm_start import check_fit


def as_documents(data: Any) -> Dataset | IterableDataset | None:
    """Data with a column `text`, such as a list of `{"text": ...}`; None for other data."""
    if isinstance(data, list) and data and isinstance(data[0], dict) and "text" in data[0]:
        return Dataset.from_list(data)
    if not isinstance(data, Dataset | IterableDataset):
        return None
    columns = data.column_names or list(next(iter(data), {}))
    return data if "text" in columns and "input_ids" not in columns else None


def find_tokenizer(model: Any) -> PreTrainedTokenizerBase:
    """The tokenizer of the checkpoint that a model was loaded from.

    Raises:
        ValueError: the model was not loaded from a checkpoint.
    """
    name = model.name_or_path or model.config.encoder_config.name_or_path
    if not name:
        raise ValueError(
            "The model was not loaded from a checkpoint, so its tokenizer is not known: pass "
            "processing_class=tokenizer."
        )
    return AutoTokenizer.from_pretrained(resolve_encoder_name(name))


def prepare_model(
    model: CondenserForMaskedLM,
    tokenizer: PreTrainedTokenizerBase,
    arguments: CondenserTrainingArguments,
) -> bool:
    """Make a model ready for the objective; return whether batches are to be packed."""
    objective = arguments.objective
    check_fit(tokenizer, model, arguments.max_length)
    if arguments.attn_implementation is not None:
        model.set_attn_implementation(arguments.attn_implementation)
    if objective == "tsdae":
        add_decoder(model, tokenizer)
    if objective in ("ict", "tsdae") and not arguments.bow_weight:
        model.lm_head.requires_grad_(False)  # only its tied weights are trained
        model.condenser.encoder.get_input_embeddings().requires_grad_(True)
    packed = arguments.packed
    if packed is None and arguments.attn_implementation is None:
        packed = why_not_packed(model.condenser.encoder) is None
    if not packed or objective == "tsdae":  # whose decoder takes padded batches
        return False
    use_packing(model)
    return True


def make_examples(
    documents: Dataset | IterableDataset,
    tokenizer: PreTrainedTokenizerBase,
    arguments: CondenserTrainingArguments,
    *,
    packed: bool = False,
    head_mlm_probability: float | None = None,
) -> tuple[Any, Any, TokenBudgetBatches | None, dict[str, Any]]:
    """Tokenize documents and cut them into the examples of the objective.

    Returns:
        Data set, collator, batches if they have a token budget, and facts for the run's record.
    """
    arguments.streaming = isinstance(documents, IterableDataset)
    arguments.check_settings()
    objective, seed = arguments.objective, arguments.seed
    collator: Any = CondenserDataCollator(
        tokenizer,
        max_length=arguments.max_length,
        mlm_probability=None if objective == "ict" else arguments.mlm_probability,
        head_mlm_probability=head_mlm_probability,
        bag_of_words=arguments.bow_weight > 0,
        seed=seed,
        packed=packed,
    )
    n_special = collator.n_special
    if objective == "tsdae":
        collator = DenoisingCollator(collator, deletion_probability=arguments.deletion_probability)
    builder = BlockBuilder(
        tokenizer,
        max_length=arguments.span_length or arguments.max_length,
        short_block_probability=arguments.short_block_probability,
        seed=arguments.blocks_seed,
    )
    if isinstance(documents, IterableDataset):
        # The stream has workers of its own.
        n_workers, arguments.dataloader_num_workers = arguments.dataloader_num_workers, 0
        stream = StreamedBlocks(documents, builder, seed=seed, num_proc=n_workers)
        return stream, collator, None, {}

    # Of several processes the first builds what the others then find.
    with arguments.main_process_first(desc="preparing the text"):
        if objective in CONTRASTIVE:
            pairs, facts = _make_pairs(documents, builder, arguments, n_special)
            return pairs, collator, None, facts
        blocks = build_blocks(documents, builder, num_proc=arguments.preprocessing_workers)
        sha256 = fingerprint_blocks(blocks)
    facts = {"blocks_sha256": sha256, "n_documents": len(documents), "n_blocks": len(blocks)}
    batches = None
    if arguments.tokens_per_batch is not None:
        lengths = pc.list_value_length(blocks.with_format("arrow")[:]["input_ids"]).to_numpy()
        batches = TokenBudgetBatches(
            (lengths.astype("int64") + n_special).clip(max=arguments.max_length),
            arguments.tokens_per_batch,
            seed=seed,
            n_processes=arguments.world_size,
        )
    return KeyedBlocks(blocks, seed=seed), collator, batches, facts


def _make_pairs(
    documents: Dataset, builder: BlockBuilder, arguments: CondenserTrainingArguments, n_special: int
) -> tuple[TextPairs, dict[str, Any]]:
    """Pairs of texts, and facts about them."""
    draw: Any = draw_spans
    if arguments.objective == "ict":
        length = min(arguments.query_length, arguments.max_length)
        draw = partial(
            draw_query,
            query_room=text_room(length, n_special, name="query_length"),
            removal_probability=arguments.removal_probability,
        )
    kind = "passages" if arguments.objective == "ict" else arguments.spans
    cutter = TextCutter(builder, kind)
    texts, facts = cut_documents(documents, cutter, num_proc=arguments.preprocessing_workers)
    return TextPairs(texts, seed=arguments.seed, draw=draw), facts
