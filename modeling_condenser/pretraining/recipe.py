"""What a pre-training recipe says: the model to start from, the text, and how it is trained."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from modeling_condenser.runs.recipe import fill

from .arguments import PretrainingSettings
from .collator import check_probability
from .corpus import Source


@dataclass
class PretrainingRecipe(PretrainingSettings):
    """A pre-training recipe: `PretrainingSettings`, the model to start from, and the text.

    Attributes:
        encoder: Hub name or folder of the encoder to start from, or of a Condenser checkpoint to
            continue, whose head and split are then kept; "starter" for the encoder that comes with
            this package.
        corpus: what to train on: Hub data set name or local path, or a mapping of `Source`'s
            fields, or a list of these.
        tokenizer: Hub name or folder; the encoder's own by default.
        n_head_layers: layers of the Condenser head; 2 by default.
        skip_from: backbone layer whose tokens the head reads; half of the layers by default.
        late_mlm: whether the late output is trained with MLM too; true by default.
        head_mlm_probability: makes the head a decoder in the style of RetroMAE, which reads the
            block masked a second time at this rate instead of the early layer (`CondenserConfig`).
        new_head: accept a Condenser checkpoint without a head, and start a new one.
        encoder_changes: attributes of the encoder's configuration to change, such as dropout.
        attn_implementation: attention back-end of padded batches ("eager", "sdpa", ...); the
            library's choice by default.

    Raises:
        ValueError: a field does not fit the objective.
    """

    encoder: str
    corpus: Any
    tokenizer: str | None = None
    n_head_layers: int | None = None
    skip_from: int | None = None
    late_mlm: bool | None = None
    head_mlm_probability: float | None = None
    new_head: bool = False
    encoder_changes: dict[str, Any] = field(default_factory=dict)
    attn_implementation: str | None = None

    def __post_init__(self) -> None:
        self.check_settings()
        if self.head_mlm_probability is not None:
            check_probability("head_mlm_probability", self.head_mlm_probability)
        if self.packed and self.attn_implementation is not None:
            raise ValueError(
                f"attn_implementation is {self.attn_implementation}, but packed batches have an "
                "attention back-end of their own: leave one of the two out."
            )

    @property
    def sources(self) -> list[Source]:
        """The parts of the corpus.

        Raises:
            ValueError: a part has an unknown field.
        """
        parts = self.corpus if isinstance(self.corpus, list) else [self.corpus]
        return [
            fill(part, Source)[0] if isinstance(part, Mapping) else Source(str(part))
            for part in parts
        ]
