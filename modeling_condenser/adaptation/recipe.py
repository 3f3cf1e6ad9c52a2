"""The fields of an adaptation recipe."""

from dataclasses import dataclass, field
from typing import Literal

from modeling_condenser.files.settings import check_least

from .queries import KINDS


@dataclass(frozen=True)
class MapSettings:
    """How a map is trained.

    Attributes:
        bm25_weight: weight of BM25 in the teacher, from 0 to 1; the rest is the retriever's.
        whitening: power of the whitening, from 0 (none) to 1 (whole).
        scales: of what is learned. The first is used, unless another is significantly better on the
            queries of the verdict.
        teacher_temperature, temperature: divide the scores of teacher and student.
        contrast_weight: of InfoNCE.
        judged_share: of a batch, for judged queries (`labels`), if there are any.
        judged_weight: of the judged passage in the target of its query; the rest is the teacher's.
        n_candidates: hard candidates of a query, drawn from the teacher's first 16.
        steps, batch_size, learning_rate: of AdamW, with linear decay.
    """

    bm25_weight: float = 0.5
    whitening: float = 0.5
    scales: list[float] = field(default_factory=lambda: [1.0, 0.5, 2.0])
    teacher_temperature: float = 0.3
    temperature: float = 0.05
    contrast_weight: float = 0.1
    judged_share: float = 0.25
    judged_weight: float = 0.8
    n_candidates: int = 7
    steps: int = 300
    batch_size: int = 128
    learning_rate: float = 3e-4

    def __post_init__(self) -> None:
        check_least(self, whitening=0, contrast_weight=0, learning_rate=0)
        check_least(self, n_candidates=0, steps=1, batch_size=2)
        check_least(self, teacher_temperature=1e-6, temperature=1e-6)
        check_least(self, bm25_weight=0, judged_share=0, judged_weight=0)


@dataclass(frozen=True)
class AdaptationRecipe:
    """Fields of an adaptation recipe, beside those of `MapSettings`.

    Attributes:
        model: folder or Hub name of a sentence-transformers model or an export that compares by the
            cosine.
        corpus: a collection: a folder in the layout of BEIR, MS MARCO or DPR, such as `condenser
            collect` makes of files, a Hub data set, or "health".
        output_dir: folder for embeddings, model and verdict.
        queries: JSON lines of queries that a person or a language model wrote for passages, with
            the fields `query` and `passage_id`.
        labels: also train on the judgements of the collection's split train.
        train_size: number of these judgements, all by default; `seed` chooses them.
        kinds: of queries to make from the passages: title, heading, sentence, span, keywords.
        n_queries: of each kind.
        keep_adapted: write the adapted model whatever the verdict is.
        embeddings: folder of the start's embeddings of these passages, such as one that
            `condenser search` wrote; written if it is new. By default it is in `output_dir`.
        dtype: of the weights while encoding: "float32", or "bfloat16", which is faster on
            accelerators and some CPUs.
        seed: of queries, map and training.
    """

    model: str
    corpus: str
    output_dir: str
    queries: str | None = None
    labels: bool = False
    train_size: int | None = None
    kinds: list[str] = field(default_factory=lambda: list(KINDS))
    n_queries: int = 2000
    keep_adapted: bool = False
    embeddings: str | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        check_least(self, n_queries=1, train_size=1)
        if unknown := set(self.kinds) - set(KINDS):
            raise ValueError(
                f"kinds names {', '.join(sorted(unknown))}, expected some of {', '.join(KINDS)}."
            )
