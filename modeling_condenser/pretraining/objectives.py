"""The objectives: which model is trained, on which examples, by which trainer."""

from dataclasses import dataclass
from typing import Any

from datasets import Dataset, IterableDataset
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from modeling_condenser.dropout import use_cheap_dropout
from modeling_condenser.hub.model_folder import resolve_encoder_name
from modeling_condenser.modeling_condenser import CondenserForMaskedLM, CondenserForPreTraining
from modeling_condenser.packing import use_packing, why_not_packed

from .blocks import BlockBuilder, KeyedBlocks, StreamedBlocks, build_blocks, fingerprint_blocks
from .collator import CondenserDataCollator
from .contrastive_trainer import ContrastiveTrainer, check_batch, check_enough
from .ict import ClozeCollator, ClozePairs, PassageBuilder
from .recipe import CONTRASTIVE, PretrainingRecipe
from .spans import SpanBuilder, SpanPairCollator, SpanPairs, build_cut_texts, count_parts
from .token_budget import TokenBudgetBatches, count_block_tokens
from .trainer import CondenserTrainer, check_reading
from .tsdae import DenoisingCollator, DenoisingTrainer, add_decoder
from .warm_start import condenser_from_encoder, masked_lm_from_encoder


def open_model(recipe: PretrainingRecipe) -> PreTrainedModel:
    """The model that a recipe trains: started from an encoder, or a checkpoint continued.

    Raises:
        ValueError: the checkpoint has no head, or another split than the recipe states; or the
            recipe wants packed batches or a decoder, and the encoder does not allow it.
    """
    model: Any = _open_padded(recipe)
    use_cheap_dropout(model)
    if packs(recipe, model):
        use_packing(model)
    return model


def packs(recipe: PretrainingRecipe, model: Any) -> bool:
    """Whether a recipe's batches are packed: as it says, or else wherever that can be done.

    TSDAE's are not: sentence-transformers' decoder takes padded ones.

    Raises:
        ValueError: it says so, but the model's encoder cannot take packed batches.
    """
    if recipe.packed is False or recipe.objective == "tsdae":
        return False
    if recipe.packed is None and recipe.attn_implementation is not None:
        return False
    reason = why_not_packed(model.condenser.encoder)
    if recipe.packed and reason is not None:
        raise ValueError(f"The recipe says packed: true, but {reason}. Leave it out.")
    return reason is None


def _open_padded(recipe: PretrainingRecipe) -> PreTrainedModel:
    if recipe.objective == "mlm":
        return masked_lm_from_encoder(recipe.encoder, config_changes=recipe.encoder_changes)
    if recipe.objective in ("ict", "tsdae"):
        backbone = masked_lm_from_encoder(recipe.encoder, config_changes=recipe.encoder_changes)
        if recipe.objective == "tsdae":
            add_decoder(backbone, recipe.tokenizer or recipe.encoder)
        if not recipe.predicts_bag:
            _freeze_lm_head(backbone)
        return backbone
    stated = {
        name: value
        for name in ("n_head_layers", "skip_from", "late_mlm", "head_mlm_probability")
        if (value := getattr(recipe, name)) is not None
    }
    config: Any = AutoConfig.from_pretrained(resolve_encoder_name(recipe.encoder))
    if config.model_type != "condenser" or recipe.new_head:
        return condenser_from_encoder(
            recipe.encoder, config_changes=recipe.encoder_changes, **stated
        )
    for name, value in recipe.encoder_changes.items():
        setattr(config.encoder_config, name, value)
    model = CondenserForPreTraining.from_pretrained(recipe.encoder, config=config)
    for name, value in stated.items():
        if getattr(config, name) != value:
            raise ValueError(
                f"The recipe says {name}: {value}, but the checkpoint {recipe.encoder} has "
                f"{getattr(config, name)}. Leave it out to continue the checkpoint, or set "
                "new_head: true to start a new head."
            )
    return model


def _freeze_lm_head(model: CondenserForMaskedLM) -> None:
    """Take out of training what of the LM head is not the encoder's own, and is in no loss."""
    shared = {id(parameter) for parameter in model.condenser.parameters()}
    for parameter in model.lm_head.parameters():
        if id(parameter) not in shared:
            parameter.requires_grad_(False)


@dataclass(frozen=True)
class Examples:
    """How a recipe's text becomes batches; checked, before anything is built.

    Attributes:
        recipe: that says it.
        arguments: of the Trainer; a streamed corpus takes over its workers.
        blocks: cuts documents into blocks, of which spans and passages are kinds.
        collator: makes batches.
    """

    recipe: PretrainingRecipe
    arguments: TrainingArguments
    blocks: BlockBuilder
    collator: Any

    @classmethod
    def of(
        cls,
        recipe: PretrainingRecipe,
        arguments: TrainingArguments,
        tokenizer: PreTrainedTokenizerBase,
        *,
        packed: bool = False,
        head_mlm_probability: float | None = None,
    ) -> "Examples":
        """Check recipe, arguments and tokenizer.

        Args:
            recipe: see the class.
            arguments: see the class.
            tokenizer: of the model.
            packed: what `packs` says of the model.
            head_mlm_probability: of the model's configuration.

        Raises:
            ValueError: they do not fit together.
        """
        if recipe.objective in CONTRASTIVE:
            check_batch(arguments, recipe.cache_chunk_size)
        if recipe.streaming:
            check_reading(arguments)
        collator: Any = CondenserDataCollator(
            tokenizer,
            max_length=recipe.max_length,
            mlm_probability=recipe.masked_share,
            head_mlm_probability=head_mlm_probability,
            bag_of_words=recipe.predicts_bag,
            seed=arguments.seed,
            packed=packed,
        )
        if recipe.objective == "cocondenser":
            collator = SpanPairCollator(collator)
        elif recipe.objective == "ict":
            collator = ClozeCollator(collator, query_length=recipe.pseudo_query_length)
        elif recipe.objective == "tsdae":
            collator = DenoisingCollator(collator, deletion_probability=recipe.deleted_share)
        length = recipe.max_length if recipe.span_length is None else recipe.span_length
        blocks = BlockBuilder(
            tokenizer,
            max_length=length,
            short_block_probability=recipe.short_block_probability,
            seed=recipe.blocks_seed,
        )
        return cls(recipe, arguments, blocks, collator)

    def build(self, documents: Dataset | IterableDataset) -> tuple[Any, dict[str, Any]]:
        """Build the training data.

        Returns:
            A data set of examples, and facts about it for the run's record.

        Raises:
            ValueError: no document can be used, or too few for a batch.
        """
        if self.recipe.streaming:
            n_workers = self.arguments.dataloader_num_workers
            self.arguments.dataloader_num_workers = 0
            seed = self.arguments.seed
            return StreamedBlocks(documents, self.blocks, seed=seed, num_proc=n_workers), {}
        if self.recipe.objective in CONTRASTIVE:
            return self._build_pairs(documents)
        return self._build_blocks(documents)

    def _build_blocks(self, documents: Dataset) -> tuple[KeyedBlocks, dict[str, Any]]:
        blocks = build_blocks(documents, self.blocks, num_proc=self.recipe.preprocessing_workers)
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
            else SpanBuilder(self.blocks, kind=self.recipe.spans or "sentences")
        )
        rows, facts = build_cut_texts(documents, cutter, num_proc=self.recipe.preprocessing_workers)
        check_enough(len(rows), self.arguments)
        seed = self.arguments.seed
        if not is_cloze:
            return SpanPairs(rows, seed=seed), {**facts, "n_spans": count_parts(rows)}
        pairs = ClozePairs(
            rows,
            seed=seed,
            query_room=self.collator.query_room,
            removal_probability=self.recipe.removed_share,
        )
        return pairs, {**facts, "n_passages": len(rows)}


def make_trainer(recipe: PretrainingRecipe, **kwargs: Any) -> CondenserTrainer:
    """The trainer of a recipe's objective.

    Args:
        recipe: that says it.
        **kwargs: as for `CondenserTrainer`, by name: `model` of `open_model`, `data_collator` and
            `train_dataset` of `Examples`, and what else there is.
    """
    kwargs |= {"bow_weight": recipe.bow_weight, "bow_weight_end": recipe.bow_weight_end}
    if recipe.objective not in CONTRASTIVE:
        batches = _budget_batches(
            recipe, kwargs["args"], kwargs["train_dataset"], kwargs["data_collator"]
        )
        trainer = DenoisingTrainer if recipe.objective == "tsdae" else CondenserTrainer
        return trainer(batches=batches, **kwargs)
    weight = 1.0 if recipe.contrastive_weight is None else recipe.contrastive_weight
    return ContrastiveTrainer(
        contrast=recipe.contrast,
        weight=weight,
        cache_chunk_size=recipe.cache_chunk_size,
        masks=recipe.objective != "ict",
        **kwargs,
    )


def _budget_batches(
    recipe: PretrainingRecipe,
    arguments: TrainingArguments,
    blocks: Any,
    collator: CondenserDataCollator | DenoisingCollator,
) -> TokenBudgetBatches | None:
    if recipe.tokens_per_batch is None:
        return None
    lengths = count_block_tokens(
        blocks.blocks, n_special=collator.n_special, max_length=recipe.max_length
    )
    return TokenBudgetBatches(
        lengths, recipe.tokens_per_batch, seed=arguments.seed, n_processes=arguments.world_size
    )
