"""What is measured, and how often: settings of readiness, checked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from modeling_condenser.runs.recipe import fill

_LEAST = {
    "texts": 2,
    "max_length": 4,
    "queries": 1,
    "passages": 2,
    "labels": 0,
    "sample_seed": 0,
}


@dataclass(frozen=True)
class Measuring:
    """What readiness is measured on.

    Attributes:
        texts: in the fixed sample; at least 2, so that vectors can be exchanged.
        max_length: longest text in tokens; what is beyond is cut.
        collection: folder or Hub name of a collection. Its judged pairs are the texts that belong
            together, and retrieval is measured on a small part of it; without one the pairs are
            halves of the sample's texts, and retrieval is not measured.
        split: whose queries are judged; to decide when to stop, one that no result is told of.
        queries: of that split, in the small part.
        passages: in the small part: those judged for its queries, and others.
        labels: training pairs of the collection's split "train" for few-shot retrieval; 0 for none.
        finetuning: settings of few-shot retrieval that differ from `finetune/contrastive`.
        sample_seed: decides texts, masks, pairs, queries and passages.
    """

    texts: int = 64
    max_length: int = 128
    collection: str | None = None
    split: str = "test"
    queries: int = 50
    passages: int = 1000
    labels: int = 0
    finetuning: dict[str, Any] = field(default_factory=dict)
    sample_seed: int = 0

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}, expected at least {least}.")
        if self.labels and self.collection is None:
            raise ValueError(
                f"labels is {self.labels}, but there is no collection that they could be of: name "
                "one, or leave labels out."
            )
        if self.finetuning and not self.labels:
            raise ValueError(
                "finetuning is set, but labels is 0, so nothing is fine-tuned: set labels, or "
                "leave finetuning out."
            )


@dataclass(frozen=True)
class Rhythm:
    """When readiness is measured while training: at the start, every so many steps, at the end.

    Attributes:
        every: steps between two measurements.
    """

    every: int = 500

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every is {self.every}, expected at least 1 step.")


def read_wanted(readiness: Any) -> tuple[Measuring, Rhythm]:
    """The field `readiness` of a pre-training recipe.

    Raises:
        ValueError: it is no mapping, or a setting in it does not fit.
    """
    if not isinstance(readiness, Mapping):
        raise ValueError(
            f"readiness is {readiness!r}, expected a mapping, such as {{every: 500, texts: 64}}."
        )
    measuring, rhythm = fill(readiness, Measuring, Rhythm)
    return measuring, rhythm
