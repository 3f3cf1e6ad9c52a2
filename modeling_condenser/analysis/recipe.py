"""The settings of readiness: what is measured, and on what."""

from dataclasses import dataclass
from typing import Any

from modeling_condenser.files.settings import check_least


@dataclass(frozen=True)
class AnalysisRecipe:
    """What to analyse.

    Attributes:
        models: folders or Hub names of checkpoints, exports, retrievers or encoders. The folder of
            a pre-training run stands for its complete checkpoints and its final model.
        out: folder to write.
        corpus: text that the sample is taken from, as for pre-training; by default that of the
            first pre-training run among the models, or the collection's passages.
    """

    models: list[str]
    out: str
    corpus: str | dict[str, Any] | list[str | dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError("models is empty: name at least one.")


@dataclass(frozen=True)
class Measuring:
    """What readiness is measured on.

    Attributes:
        texts: number of texts in the sample, at least 2; Figure 2 of the Condenser paper has 1,000.
        max_length: longest text in tokens.
        collection: folder or Hub name. Its judged pairs are the matching texts, and a small part of
            it is searched. By default, matching texts are halves of the sample's texts.
        split: split of the queries; by default dev, or test where there is no dev.
        queries: number of queries.
        passages: number of passages to search: those judged for the queries, and others.
        sample_seed: seed of the choice of texts, masks, queries and passages.
    """

    texts: int = 64
    max_length: int = 128
    collection: str | None = None
    split: str | None = None
    queries: int = 50
    passages: int = 1000
    sample_seed: int = 0

    def __post_init__(self) -> None:
        check_least(self, texts=2, max_length=4, queries=1, passages=2)
