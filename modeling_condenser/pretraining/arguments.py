"""The settings of pre-training: for the trainer in Python, and as a recipe for the command."""

import logging
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import torch
from transformers import TrainingArguments

from modeling_condenser.files.settings import check_least, check_value

from .objectives import OBJECTIVES, check_objective

logger = logging.getLogger(__name__)


@dataclass
class CondenserTrainingArguments(TrainingArguments):
    """`TrainingArguments` with the objective, and how text becomes blocks and batches.

    Example:
        >>> arguments = CondenserTrainingArguments("runs/mine", max_length=128, bow_weight=1.0)
        >>> arguments.objective, arguments.max_length
        ('condenser', 128)

    Attributes:
        objective: what is trained: a name in `OBJECTIVES` (objectives.py), which the end of the
            command's help lists. In a contrast, batch sizes count pairs.
        max_length: longest sequence in tokens, with special tokens.
        short_block_probability: share of blocks of random shorter length; `seed` does not change
            which.
        mlm_probability: share of a block's tokens to mask.
        bow_weight: weight of bag-of-words prediction from the late CLS (Ma et al. 2024); 0 for
            none.
        preprocessing_workers: processes that build blocks.
        blocks_folder: folder that keeps the blocks of each text, for all runs; by default in the
            cache of `datasets`. Several nodes need one that all of them see.
        stream_lanes: parts in which a stream is read, for each worker of the data loader: a
            multiple of processes x gradient_accumulation_steps. The batches depend on it.
        stream_buffer: blocks of a stream that are shuffled together.
        packed: whether to omit padding, which changes no loss; by default wherever the encoder
            supports it. Without it, the attention back-end is the model's.
        tokens_per_batch: upper limit of tokens in a device's batch, with special tokens, in place
            of `per_device_train_batch_size`. With `torch_compile`, packed batches are then filled
            to one shape, so that it compiles once.
        similarity: of a contrast: "dot" as published, or "cosine"; by default that of the
            checkpoint that is continued, else "dot".
        temperature: divides similarities; 1 for dot and 0.05 for cosine by default.
        cache_chunk_size: texts whose activations are held at once (gradient cache); all by default.
        contrastive_weight: weight of the contrastive loss, added to the MLM losses.
        query_length: longest pseudo-query in tokens, with special tokens; at most `max_length`.
        removal_probability: share of contexts that their pseudo-query is removed from.
    """

    objective: str = "condenser"
    max_length: int = 512
    short_block_probability: float = 0.1
    mlm_probability: float = 0.15
    bow_weight: float = 0.0
    preprocessing_workers: int | None = None
    blocks_folder: str | None = None
    stream_lanes: int = 16
    stream_buffer: int = 8192
    packed: bool | None = None
    tokens_per_batch: int | None = None
    similarity: Literal["dot", "cosine"] | None = None
    temperature: float | None = None
    cache_chunk_size: int | None = None
    contrastive_weight: float = 1.0
    query_length: int = 64
    removal_probability: float = 0.9
    dataloader_pin_memory: bool = field(default_factory=torch.cuda.is_available)
    ddp_find_unused_parameters: bool | None = False  # all trained weights have a gradient
    ddp_broadcast_buffers: bool | None = False  # they are constants, such as positions

    def __post_init__(self) -> None:
        if not torch.accelerator.is_available():
            # Else transformers refuses bfloat16, and processes of torchrun train apart.
            self.use_cpu = True
        super().__post_init__()
        loading: Any = self.accelerator_config
        if loading.dispatch_batches:
            raise ValueError(
                "dispatch_batches is true, but accelerate would cut batches by rows, which ruins "
                "packed ones: leave it out; each process makes its own."
            )
        loading.dispatch_batches = False
        for name, hint in CondenserTrainingArguments.__annotations__.items():
            setattr(self, name, check_value(name, getattr(self, name), hint))
        check_objective(self)
        if OBJECTIVES[self.objective].is_contrastive:
            self.dataloader_drop_last = True  # a smaller batch would be another loss
        check_least(self, bow_weight=0, contrastive_weight=0)
        check_least(self, temperature=1e-6, cache_chunk_size=1, stream_lanes=1, stream_buffer=1)
        for name in ("removal_probability", "short_block_probability"):
            if not 0 <= (value := getattr(self, name)) <= 1:
                raise ValueError(f"{name} is {value}, expected 0 to 1.")
        if self.tokens_per_batch is not None and self.per_device_train_batch_size != 8:
            logger.warning(
                "per_device_train_batch_size (%d) has no effect: tokens_per_batch (%d) takes its "
                "place.",
                *(self.per_device_train_batch_size, self.tokens_per_batch),
            )

    @property
    def order_seed(self) -> int:
        """The seed of the order of blocks."""
        return self.seed if self.data_seed is None else self.data_seed


def with_objective(arguments: TrainingArguments) -> CondenserTrainingArguments:
    """Plain `TrainingArguments` with the defaults of `CondenserTrainingArguments`."""
    if isinstance(arguments, CondenserTrainingArguments):
        return arguments
    if type(arguments) is not TrainingArguments:
        raise ValueError(
            f"args is a {type(arguments).__name__}: derive it from CondenserTrainingArguments."
        )
    values = {f.name: getattr(arguments, f.name) for f in fields(arguments) if f.init}
    stated = {name: value for name, value in values.items() if value is not None}
    return CondenserTrainingArguments(**stated)


@dataclass
class PretrainingRecipe:
    """A pre-training recipe, beside its training arguments: the model and the text.

    Attributes:
        encoder: Hub name or folder of the encoder to start from ("starter" for this package's own),
            or of a Condenser checkpoint or run to continue with its head and `skip_from`.
        encoder_config: in place of `encoder`, a new one with random weights, which follow from
            `seed`: the attributes of its transformers configuration, `model_type` among them, as a
            mapping or a JSON file. Size of the vocabulary and ids of special tokens are by default
            those of `tokenizer`.
        corpus: text to train on: Hub data set name or local path, or a mapping such as {path:
            NAME, split: train, text_column: body} (`Source`), or a list of these.
        tokenizer: Hub name or folder; the encoder's own by default.
        language: code of the text's language, such as fr, for the model card.
        n_head_layers: layers of the Condenser head; 2 by default.
        skip_from: backbone layer whose tokens the head reads; half of the layers by default.
        late_mlm: whether the late output is trained with MLM too; true by default.
        head_mlm_probability: the head reads the block masked a second time at this rate, as
            RetroMAE's does, instead of the early layer (`CondenserConfig`).
        pooling: "cls" or "mean", what the dense vector is that all parts read; by default that of
            a Condenser checkpoint, else "cls" as in the papers.
        new_head: start a new head, also if the checkpoint has one.
        from_retriever: accept a model of sentence-transformers as `encoder`, and take its
            transformer, without its prompts and normalisation.
        encoder_changes: attributes of the encoder's configuration to change, such as dropout.
        base_learning_rate: of an encoder of BERT base's size, from which that of another size
            follows if learning_rate is not set.
        prepare_only: cut the text into blocks for later runs with these settings, and end.
        readiness: measures readiness while training: a mapping of the fields that `condenser
            analyze --help` lists, and of `every`, the steps between two measurements.
    """

    encoder: str | None = field(default=None, kw_only=True)
    encoder_config: dict[str, Any] | str | None = field(default=None, kw_only=True)
    corpus: str | dict[str, Any] | list[str | dict[str, Any]]
    objective: str = "condenser"
    tokenizer: str | None = None
    language: str | None = None
    n_head_layers: int | None = None
    skip_from: int | None = None
    late_mlm: bool | None = None
    head_mlm_probability: float | None = None
    pooling: str | None = None
    new_head: bool = False
    from_retriever: bool = False
    encoder_changes: dict[str, Any] = field(default_factory=dict)
    base_learning_rate: float | None = None
    prepare_only: bool = False
    readiness: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        check_objective(self)
        check_least(self, base_learning_rate=0)
        if (self.encoder is None) == (self.encoder_config is None):
            raise ValueError(
                "Set encoder, to start from a trained one, or encoder_config, to start from random "
                "weights: not both, and not neither."
            )
        if self.encoder_config is None:
            return
        if self.tokenizer is None:
            raise ValueError("encoder_config needs a tokenizer: set it to a Hub name or folder.")
        if self.encoder_changes:
            raise ValueError("Set what encoder_changes holds in encoder_config, and leave it out.")
