"""Text in, training examples and their collator out, as an objective needs them."""

from dataclasses import dataclass
from typing import Any

from datasets import Dataset, IterableDataset
from transformers import AutoTokenizer, PreTrainedTokenizerBase, TrainingArguments

from modeling_condenser.cpu_kernels import use_cheap_dropout
from modeling_condenser.hub.model_folder import resolve_encoder_name
from modeling_condenser.packing import use_packing, why_not_packed

from .arguments import CONTRASTIVE, CondenserTrainingArguments, PretrainingSettings
from .blocks import BlockBuilder, KeyedBlocks, StreamedBlocks, build_blocks, fingerprint_blocks
from .checks import check_batch, check_enough, check_fit, check_reading
from .collator import CondenserDataCollator
from .ict import ClozeCollator, ClozePairs, PassageBuilder
from .spans import SpanBuilder, SpanPairCollator, SpanPairs, build_cut_texts, count_parts
from .token_budget import TokenBudgetBatches, count_block_tokens
from .tsdae import DenoisingCollator


@dataclass(frozen=True)
class Examples:
    """How text becomes batches; checked, before anything is built.

    Attributes:
        settings: that say it.
        arguments: of the Trainer; a streamed corpus takes over its workers.
        blocks: cuts documents into blocks, of which spans and passages are kinds.
        collator: makes batches.
    """

    settings: PretrainingSettings
    arguments: TrainingArguments
    blocks: BlockBuilder
    collator: Any

    @classmethod
    def of(
        cls,
        settings: PretrainingSettings,
        arguments: TrainingArguments,
        tokenizer: PreTrainedTokenizerBase,
        *,
        packed: bool = False,
        head_mlm_probability: float | None = None,
    ) -> "Examples":
        """Check settings, arguments and tokenizer.

        Args:
            settings: see the class.
            arguments: see the class.
            tokenizer: of the model.
            packed: what `packs` says of the model.
            head_mlm_probability: of the model's configuration.

        Raises:
            ValueError: they do not fit together.
        """
        if settings.objective in CONTRASTIVE:
            check_batch(arguments, settings.cache_chunk_size)
        if settings.streaming:
            check_reading(arguments)
        collator: Any = CondenserDataCollator(
            tokenizer,
            max_length=settings.max_length,
            mlm_probability=settings.masked_share,
            head_mlm_probability=head_mlm_probability,
            bag_of_words=settings.predicts_bag,
            seed=arguments.seed,
            packed=packed,
        )
        if settings.objective == "cocondenser":
            collator = SpanPairCollator(collator)
        elif settings.objective == "ict":
            collator = ClozeCollator(collator, query_length=settings.pseudo_query_length)
        elif settings.objective == "tsdae":
            collator = DenoisingCollator(collator, deletion_probability=settings.deleted_share)
        length = settings.max_length if settings.span_length is None else settings.span_length
        blocks = BlockBuilder(
            tokenizer,
            max_length=length,
            short_block_probability=settings.short_block_probability,
            seed=settings.blocks_seed,
        )
        return cls(settings, arguments, blocks, collator)

    def build(self, documents: Dataset | IterableDataset) -> tuple[Any, dict[str, Any]]:
        """Build the training data.

        Returns:
            A data set of examples, and facts about it for the run's record.

        Raises:
            ValueError: no document can be used, or too few for a batch.
        """
        if isinstance(documents, IterableDataset):
            n_workers = self.arguments.dataloader_num_workers
            self.arguments.dataloader_num_workers = 0
            seed = self.arguments.seed
            return StreamedBlocks(documents, self.blocks, seed=seed, num_proc=n_workers), {}
        if self.settings.objective in CONTRASTIVE:
            return self._build_pairs(documents)
        return self._build_blocks(documents)

    def _build_blocks(self, documents: Dataset) -> tuple[KeyedBlocks, dict[str, Any]]:
        blocks = build_blocks(documents, self.blocks, num_proc=self.settings.preprocessing_workers)
        facts = {
            "blocks_sha256": fingerprint_blocks(blocks),
            "n_documents": len(documents),
            "n_blocks": len(blocks),
        }
        return KeyedBlocks(blocks, seed=self.arguments.seed), facts

    def _build_pairs(self, documents: Dataset) -> tuple[KeyedBlocks, dict[str, Any]]:
        is_cloze = isinstance(self.collator, ClozeCollator)
        cutter: Any = (
            PassageBuilder(self.blocks)
            if is_cloze
            else SpanBuilder(self.blocks, kind=self.settings.spans or "sentences")
        )
        rows, facts = build_cut_texts(
            documents, cutter, num_proc=self.settings.preprocessing_workers
        )
        check_enough(len(rows), self.arguments)
        seed = self.arguments.seed
        if not is_cloze:
            return SpanPairs(rows, seed=seed), {**facts, "n_spans": count_parts(rows)}
        pairs = ClozePairs(
            rows,
            seed=seed,
            query_room=self.collator.query_room,
            removal_probability=self.settings.removed_share,
        )
        return pairs, {**facts, "n_passages": len(rows)}


@dataclass(frozen=True)
class PreparedText:
    """What a trainer needs of a text.

    Attributes:
        tokenizer: of the model.
        collator: makes batches.
        examples: data set of the examples.
        facts: about them, for the run's record.
        batches: which examples share a batch; None for a fixed number of them.
    """

    tokenizer: PreTrainedTokenizerBase
    collator: Any
    examples: Any
    facts: dict[str, Any]
    batches: TokenBudgetBatches | None

    @classmethod
    def of(
        cls,
        documents: Dataset | IterableDataset,
        model: Any,
        arguments: CondenserTrainingArguments,
        tokenizer: PreTrainedTokenizerBase | None,
    ) -> "PreparedText":
        """Tokenize documents, cut them into blocks, and make the model take packed batches.

        Args:
            documents: with a column `text`.
            model: that is trained; packed where its encoder allows it.
            arguments: of the trainer.
            tokenizer: by default, that of the checkpoint that the model was loaded from.

        Raises:
            ValueError: they do not fit together.
        """
        arguments.streaming = isinstance(documents, IterableDataset)
        arguments.check_settings()
        tokenizer = tokenizer or find_tokenizer(model)
        check_fit(tokenizer, model, arguments.max_length)
        use_cheap_dropout(model)
        if packed := packs(arguments, model):
            use_packing(model)
        rate = model.config.head_mlm_probability
        made = Examples.of(
            arguments, arguments, tokenizer, packed=packed, head_mlm_probability=rate
        )
        # Of several processes the first builds what the others then find.
        with arguments.main_process_first(desc="preparing the text"):
            examples, facts = made.build(documents)
        batches = budget_batches(arguments, arguments, examples, made.collator)
        return cls(tokenizer, made.collator, examples, facts, batches)


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
        ValueError: the model was loaded from nowhere.
    """
    name = model.name_or_path or model.config.encoder_config.name_or_path
    if not name:
        raise ValueError(
            "The model was not loaded from a checkpoint, so its tokenizer is not known: pass "
            "processing_class=tokenizer."
        )
    return AutoTokenizer.from_pretrained(resolve_encoder_name(name))


def packs(settings: PretrainingSettings, model: Any) -> bool:
    """Whether batches are packed: as the settings say, or else wherever that can be done.

    TSDAE's are not: sentence-transformers' decoder takes padded ones.

    Raises:
        ValueError: they say so, but the model's encoder cannot take packed batches.
    """
    if settings.packed is False or settings.objective == "tsdae":
        return False
    if settings.packed is None and getattr(settings, "attn_implementation", None) is not None:
        return False
    reason = why_not_packed(model.condenser.encoder)
    if settings.packed and reason is not None:
        raise ValueError(f"packed is true, but {reason}. Leave packed out.")
    return reason is None


def budget_batches(
    settings: PretrainingSettings,
    arguments: TrainingArguments,
    blocks: Any,
    collator: CondenserDataCollator | DenoisingCollator,
) -> TokenBudgetBatches | None:
    """The batches of settings with `tokens_per_batch`; None where blocks are counted."""
    if settings.tokens_per_batch is None:
        return None
    lengths = count_block_tokens(
        blocks.blocks, n_special=collator.n_special, max_length=settings.max_length
    )
    return TokenBudgetBatches(
        lengths, settings.tokens_per_batch, seed=arguments.seed, n_processes=arguments.world_size
    )
