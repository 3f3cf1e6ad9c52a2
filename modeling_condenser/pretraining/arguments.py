"""The settings of pre-training, checked as far as they can be without opening anything."""

from dataclasses import dataclass
from typing import Literal

from transformers import TrainingArguments

from .contrast import DEFAULT_TEMPERATURE, Contrast, Similarity
from .ict import QUERY_LENGTH, REMOVAL_PROBABILITY
from .spans import SpanKind
from .token_budget import check_budget
from .tsdae import DELETION_PROBABILITY

Objective = Literal["condenser", "mlm", "cocondenser", "ict", "tsdae"]
CONTRASTIVE = ("cocondenser", "ict")  # objectives whose batch is the unit of contrast
_SINGLE = ("condenser", "mlm", "tsdae")  # objectives whose batch is only a number of tokens
_ONLY_FOR: dict[str, tuple[str, ...]] = {
    "similarity": CONTRASTIVE,
    "temperature": CONTRASTIVE,
    "cache_chunk_size": CONTRASTIVE,
    "contrastive_weight": ("cocondenser",),
    "spans": ("cocondenser",),
    "span_length": ("cocondenser",),
    "query_length": ("ict",),
    "removal_probability": ("ict",),
    "head_mlm_probability": ("condenser", "cocondenser"),
    "tokens_per_batch": _SINGLE,
    "deletion_probability": ("tsdae",),
}
_NOT_FOR_TSDAE = (
    "n_head_layers",
    "skip_from",
    "late_mlm",
    "new_head",
    "mlm_probability",
    "bow_weight",
    "packed",
)


@dataclass(kw_only=True)
class PretrainingSettings:
    """What is trained, on which blocks and batches.

    Attributes:
        objective: "condenser"; "mlm" for plain masked language modelling, its control;
            "cocondenser" for the Condenser's losses on two spans of each document and a contrast
            of their vectors; "ict" for the Inverse Cloze Task, without any MLM. In these two,
            `per_device_train_batch_size` counts documents (passages), of two texts each. "tsdae"
            for a decoder that reconstructs blocks from the vectors of noisy copies.
        streaming: read the corpus as needed instead of preparing it on disk; needs `max_steps`. Of
            several processes each reads and tokenizes all of it, and takes its own batches.
        max_length: longest sequence in tokens, with special tokens.
        short_block_probability: share of blocks of random shorter length.
        mlm_probability: share of a block's tokens to mask; 0.15 by default.
        bow_weight: of bag-of-words prediction from the late CLS beside the objective's own loss
            (Ma et al. 2024); 0 leaves it out.
        bow_weight_end: the weight at the last step, reached on a cosine; `bow_weight` by default.
            The paper's are 1.0 and 0.1.
        blocks_seed: decides which blocks are short; apart from the run's seed, so that runs of
            other seeds read the same prepared blocks.
        preprocessing_workers: processes that build blocks.
        packed: whether batches are without padding (`modeling_condenser.packing`): losses and
            gradients are the same, and padding costs nothing. By default, wherever the encoder can
            and no `attn_implementation` is stated.
        tokens_per_batch: of a device, at most, special ones included; batches hold as many blocks
            as fit, and `per_device_train_batch_size` is unused. By default that rules, a number of
            blocks.
        similarity: what vectors are contrasted by; "dot" by default, as published.
        temperature: what similarities are divided by; 1 for dot and 0.05 for cosine by default.
        cache_chunk_size: texts whose activations are held at once (`gradient_cache`); by default
            the whole batch's.
        contrastive_weight: of the contrastive loss beside the MLM losses; 1 by default.
        spans: "sentences" (by default) for spans of whole sentences, "windows" for equal windows.
        span_length: longest span in tokens, with special tokens; `max_length` by default.
        query_length: longest pseudo-query in tokens, with special tokens; by default 64, or
            `max_length` if that is shorter.
        removal_probability: share of contexts without their pseudo-query; 0.9 by default.
        deletion_probability: of each word in the copies that TSDAE's encoder reads; 0.6 by default.

    Raises:
        ValueError: a setting does not fit the objective.
    """

    objective: Objective = "condenser"
    streaming: bool = False
    max_length: int = 512
    short_block_probability: float = 0.1
    mlm_probability: float | None = None
    bow_weight: float = 0.0
    bow_weight_end: float | None = None
    blocks_seed: int = 0
    preprocessing_workers: int | None = None
    packed: bool | None = None
    tokens_per_batch: int | None = None
    similarity: Similarity | None = None
    temperature: float | None = None
    cache_chunk_size: int | None = None
    contrastive_weight: float | None = None
    spans: SpanKind | None = None
    span_length: int | None = None
    query_length: int | None = None
    removal_probability: float | None = None
    deletion_probability: float | None = None

    def check_settings(self) -> None:
        """Check that the settings fit each other.

        Raises:
            ValueError: they do not; the message says which and what to do.
        """
        for name, objectives in _ONLY_FOR.items():
            if getattr(self, name, None) is not None and self.objective not in objectives:
                raise ValueError(
                    f"{name} is only for objective {' and '.join(objectives)}, but it is "
                    f"{self.objective}: leave {name} out."
                )
        self._check_bag_of_words()
        for name in _NOT_FOR_TSDAE if self.objective == "tsdae" else ():
            if getattr(self, name, None) != getattr(type(self), name, None):  # not the default
                raise ValueError(f"{name} has no effect on objective tsdae: leave it out.")
        if not 0.0 <= self.deleted_share <= 1.0:
            raise ValueError(
                f"deletion_probability is {self.deletion_probability}, but must lie between 0 and "
                "1."
            )
        if self.tokens_per_batch is not None:
            if self.streaming:
                raise ValueError(
                    "tokens_per_batch is not for a streamed corpus, whose blocks' lengths are not "
                    "known beforehand: set per_device_train_batch_size instead."
                )
            check_budget(self.tokens_per_batch, self.max_length)
        if self.objective not in CONTRASTIVE:
            return
        if self.streaming:
            raise ValueError(
                f"streaming is not for objective {self.objective}, which draws from documents that "
                "are cut and kept on disk: leave it out."
            )
        if self.span_length is not None and self.span_length > self.max_length:
            raise ValueError(
                f"span_length is {self.span_length}, but max_length is {self.max_length}: choose "
                "at most that."
            )
        if self.contrastive_weight is not None and not self.contrastive_weight > 0:
            raise ValueError(
                f"contrastive_weight is {self.contrastive_weight}, but must be above 0; without "
                "the contrast it is objective condenser."
            )
        if not 0.0 <= self.removed_share <= 1.0:
            raise ValueError(
                f"removal_probability is {self.removal_probability}, but must lie between 0 and 1."
            )
        _ = self.contrast  # checks the temperature

    def _check_bag_of_words(self) -> None:
        for name in ("bow_weight", "bow_weight_end"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} is {value}, but must not be negative; 0 leaves it out.")
        if self.bow_weight_end is not None and not self.predicts_bag:
            raise ValueError(
                "bow_weight_end is stated, but bow_weight is 0, so there is no bag-of-words "
                "prediction: set bow_weight, too (the paper's are 1.0 and 0.1)."
            )

    @property
    def predicts_bag(self) -> bool:
        """Whether the late CLS predicts the bag of words of its block."""
        return self.bow_weight > 0

    @property
    def contrast(self) -> Contrast:
        """How the vectors of a batch are contrasted."""
        similarity: Similarity = self.similarity or "dot"
        usual = DEFAULT_TEMPERATURE[similarity]
        temperature = usual if self.temperature is None else self.temperature
        return Contrast(similarity, temperature, one_way=self.objective == "ict")

    @property
    def contrast_weight(self) -> float:
        return 1.0 if self.contrastive_weight is None else self.contrastive_weight

    @property
    def pseudo_query_length(self) -> int:
        usual = min(QUERY_LENGTH, self.max_length)
        return usual if self.query_length is None else self.query_length

    @property
    def removed_share(self) -> float:
        usual = REMOVAL_PROBABILITY
        return usual if self.removal_probability is None else self.removal_probability

    @property
    def masked_share(self) -> float:
        return 0.15 if self.mlm_probability is None else self.mlm_probability

    @property
    def deleted_share(self) -> float:
        usual = DELETION_PROBABILITY
        return usual if self.deletion_probability is None else self.deletion_probability


@dataclass
class CondenserTrainingArguments(PretrainingSettings, TrainingArguments):
    """`TrainingArguments` with the settings of pre-training, for `CondenserTrainer`.

    `PretrainingSettings` has the meaning of each. Of the library's own arguments, tokens are
    counted without padding, nothing is reported, and no column of the data is removed by default.

    Raises:
        ValueError: a setting does not fit the objective.

    Example:
        >>> arguments = CondenserTrainingArguments("runs/mine", max_length=128, bow_weight=1.0)
        >>> arguments.objective, arguments.max_length, arguments.remove_unused_columns
        ('condenser', 128, False)
    """

    include_num_input_tokens_seen: str | bool = "non_padding"
    remove_unused_columns: bool = False
    report_to: str | list[str] | None = "none"

    def __post_init__(self) -> None:
        super().__post_init__()  # of TrainingArguments
        self.check_settings()
        if self.objective in CONTRASTIVE:
            self.dataloader_drop_last = True  # a smaller batch would be another loss
