"""Text becomes training examples and batches; the model is made ready for them."""

from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, IterableDataset
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from modeling_condenser.cpu_kernels import use_cheap_dropout
from modeling_condenser.hub.model_folder import resolve_encoder_name
from modeling_condenser.modeling_condenser import CondenserForMaskedLM
from modeling_condenser.packing import use_packing, why_not_packed
from modeling_condenser.positions import n_positions

from .arguments import CONTRASTIVE, CondenserTrainingArguments
from .blocks import BlockBuilder, KeyedBlocks, StreamedBlocks, build_blocks, fingerprint_blocks
from .collator import CondenserDataCollator
from .packed_batches import TokenBudgetBatches
from .pairs import ClozePairs, SpanPairs, TextCutter, cut_documents
from .tsdae import DenoisingCollator, add_decoder


class Examples(NamedTuple):
    """What a trainer is given."""

    dataset: Any
    collator: Any
    batches: TokenBudgetBatches | None  # None for a fixed number of examples
    facts: dict[str, Any]  # for the run's record


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


def check_fit(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, max_length: int) -> None:
    """Check that a tokenizer and a sequence length fit a model.

    Raises:
        ValueError: the tokenizer has more tokens than the model, or another padding token, which
            some encoders recognise and count positions from; or the encoder has fewer positions.
    """
    vocab_size = model.config.encoder_config.vocab_size
    if len(tokenizer) > vocab_size:
        raise ValueError(
            f"The tokenizer has {len(tokenizer)} tokens, but the model embeds only {vocab_size}: "
            "they do not belong together, or the model lacks added tokens (call "
            "model.resize_token_embeddings(len(tokenizer)) and save it)."
        )
    encoder: Any = model.base_model.encoder
    padding = encoder.get_input_embeddings().padding_idx
    if padding is not None and tokenizer.pad_token_id != padding:
        raise ValueError(
            f"The tokenizer pads with token {tokenizer.pad_token_id}, the model with {padding}: "
            "they do not belong together. Use the model's own tokenizer."
        )
    longest = n_positions(encoder)
    if longest is not None and max_length > longest:
        raise ValueError(
            f"max_length is {max_length}, but the encoder has positions for {longest} tokens only."
        )


def prepare_model(
    model: CondenserForMaskedLM,
    tokenizer: PreTrainedTokenizerBase,
    arguments: CondenserTrainingArguments,
) -> bool:
    """Make a model ready for the objective, and for packed batches where the encoder takes them.

    Returns:
        Whether batches are to be packed.

    Raises:
        ValueError: the arguments do not fit the model.
    """
    check_fit(tokenizer, model, arguments.max_length)
    if arguments.attn_implementation is not None:
        model.set_attn_implementation(arguments.attn_implementation)
    if arguments.objective == "tsdae":
        add_decoder(model, tokenizer)
    if arguments.objective in ("ict", "tsdae") and not arguments.bow_weight:
        _freeze_lm_head(model)
    use_cheap_dropout(model)
    packed = arguments.packed
    if packed is None:
        packed = arguments.attn_implementation is None and not why_not_packed(
            model.condenser.encoder
        )
    if not packed or arguments.objective == "tsdae":  # whose decoder takes padded batches
        return False
    use_packing(model)
    return True


def _freeze_lm_head(model: CondenserForMaskedLM) -> None:
    """Take the weights of the LM head that the encoder does not share out of training."""
    shared = {id(parameter) for parameter in model.condenser.parameters()}
    for parameter in model.lm_head.parameters():
        if id(parameter) not in shared:
            parameter.requires_grad_(False)


def make_examples(
    documents: Dataset | IterableDataset,
    tokenizer: PreTrainedTokenizerBase,
    arguments: CondenserTrainingArguments,
    *,
    packed: bool = False,
    head_mlm_probability: float | None = None,
) -> Examples:
    """Tokenize documents and cut them into what the objective trains on.

    A streamed corpus takes over the data loader's workers.

    Raises:
        ValueError: no document can be used, or the arguments do not fit.
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
    builder = BlockBuilder(
        tokenizer,
        max_length=arguments.span_length or arguments.max_length,
        short_block_probability=arguments.short_block_probability,
        seed=arguments.blocks_seed,
    )
    if objective == "tsdae":
        collator = DenoisingCollator(collator, deletion_probability=arguments.deletion_probability)
    if isinstance(documents, IterableDataset):
        n_workers, arguments.dataloader_num_workers = arguments.dataloader_num_workers, 0
        stream = StreamedBlocks(documents, builder, seed=seed, num_proc=n_workers)
        return Examples(stream, collator, None, {})

    # Of several processes the first builds what the others then find.
    with arguments.main_process_first(desc="preparing the text"):
        if objective in CONTRASTIVE:
            pairs, facts = _make_pairs(documents, builder, arguments, collator.n_special)
            return Examples(pairs, collator, None, facts)
        blocks = build_blocks(documents, builder, num_proc=arguments.preprocessing_workers)
        facts = {"n_documents": len(documents), "n_blocks": len(blocks)}
        sha256 = fingerprint_blocks(blocks)
    batches = None
    if arguments.tokens_per_batch is not None:
        batches = TokenBudgetBatches(
            count_block_tokens(blocks, collator.n_special, arguments.max_length),
            arguments.tokens_per_batch,
            seed=seed,
            n_processes=arguments.world_size,
        )
    facts = {"blocks_sha256": sha256, **facts}
    return Examples(KeyedBlocks(blocks, seed=seed), collator, batches, facts)


def _make_pairs(
    documents: Dataset, builder: BlockBuilder, arguments: CondenserTrainingArguments, n_special: int
) -> tuple[Any, dict[str, Any]]:
    """Pairs of texts, and facts about them."""
    seed, num_proc = arguments.seed, arguments.preprocessing_workers
    if arguments.objective == "cocondenser":
        cutter = TextCutter(builder, arguments.spans)
        rows, facts = cut_documents(documents, cutter, num_proc=num_proc)
        return SpanPairs(rows, seed=seed), facts
    query_room = min(arguments.query_length, arguments.max_length) - n_special
    if query_room < 1:
        raise ValueError(
            f"query_length is {arguments.query_length}, which leaves no room for text."
        )
    rows, facts = cut_documents(documents, TextCutter(builder, "passages"), num_proc=num_proc)
    removed = arguments.removal_probability
    pairs = ClozePairs(rows, seed=seed, query_room=query_room, removal_probability=removed)
    return pairs, facts


def count_block_tokens(blocks: Dataset, n_special: int, max_length: int) -> np.ndarray:
    """(N,) int64 tokens of each block as it is trained on: with special tokens, and cut."""
    columns = (batch["input_ids"] for batch in blocks.with_format("arrow").iter(50_000))
    lengths = [pc.list_value_length(column).to_numpy() for column in columns]
    return np.minimum(np.concatenate(lengths).astype(np.int64) + n_special, max_length)
