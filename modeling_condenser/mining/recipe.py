"""The fields of a mining recipe."""

from dataclasses import dataclass
from typing import Literal

from modeling_condenser.files.settings import check_least


@dataclass(frozen=True)
class MiningRecipe:
    """Fields of a mining recipe, in addition to the settings of a dense search.

    Attributes:
        system: finds the candidates: bm25, an encoder, hybrid:ENCODER, or a TREC run file; settings
            follow after commas.
        collection: folder or Hub name.
        output_dir: the output folder.
        split: whose queries to mine negatives for.
        first_rank: the first rank to take candidates from; 1 is the top, and positives count.
        last_rank: the last rank to take candidates from, and the depth of the search.
        n_negatives: the maximum for a query; null for all that pass the filters.
        sampling: "random" candidates, or the "top" ones.
        seed: of the sampling, for each query independently.
        positives: "judgements": passages judged relevant; "answers", for collections without
            judgements: the first passage found with an answer (Karpukhin et al. 2020, 4.2).
        relative_margin: drop candidates that score higher than this below the positive's score, as
            a share of it: 0.05 keeps candidates with at most 95 % (NV-Retriever's TopK-PercPos).
            The lowest score of several positives counts.
        answer_filter: drop candidates that contain an answer of the query.
        cross_encoder: folder or Hub name; scores positives and negatives.
        negative_below: drop candidates for which the cross-encoder's probability of relevance is
            at least this; 0.1 in RocketQA.
        positive_above: use candidates with a higher probability as positives; 0.9 in RocketQA.
        with_text: also write the texts, one line per query and positive.
    """

    system: str
    collection: str
    output_dir: str
    split: str = "train"
    first_rank: int = 1
    last_rank: int = 200
    n_negatives: int | None = 30
    sampling: Literal["random", "top"] = "random"
    seed: int = 0
    positives: Literal["judgements", "answers"] = "judgements"
    relative_margin: float | None = None
    answer_filter: bool = False
    cross_encoder: str | None = None
    negative_below: float | None = None
    positive_above: float | None = None
    with_text: bool = False

    def __post_init__(self) -> None:
        check_least(self, n_negatives=1)
        n_ranks, least = self.last_rank - self.first_rank + 1, self.n_negatives or 1
        if self.first_rank < 1 or n_ranks < least:
            raise ValueError(
                f"first_rank {self.first_rank} and last_rank {self.last_rank} leave {n_ranks} "
                f"candidates; expected ranks from 1, and at least {least} candidates (n_negatives)."
            )
        for name in ("negative_below", "positive_above"):
            value = getattr(self, name)
            if value is not None and (self.cross_encoder is None or not 0 < value <= 1):
                raise ValueError(
                    f"{name} is {value} and cross_encoder {self.cross_encoder}; expected the name "
                    "of a cross-encoder, and a probability above 0."
                )

    @property
    def needs_answers(self) -> bool:
        return self.answer_filter or self.positives == "answers"
