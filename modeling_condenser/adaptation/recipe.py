"""The fields of an adaptation recipe."""

from dataclasses import dataclass, field
from typing import Literal

from modeling_condenser.encoding.embeddings import Dtype
from modeling_condenser.files.settings import check_least
from modeling_condenser.retrieval.runs import FEWEST_QUERIES

Use = Literal["hybrid", "alone"]
Sides = Literal["query", "both"]


@dataclass(frozen=True)
class AdaptationRecipe:
    """Fields of an adaptation recipe.

    Attributes:
        model: folder or Hub name of a sentence-transformers model or an export that compares by the
            cosine.
        collection: with judged queries: a folder in the layout of BEIR or MS MARCO,
            such as `condenser collect --labels` makes, a Hub data set, or "health".
        output_dir: folder for model, verdicts and embeddings.
        use: how the model will be used: with BM25 (hybrid), or alone. The map is learned for it,
            and kept if it is better in it.
        sides: which vectors the map moves: those of queries, or those of passages, too. Then all
            passages must be encoded again.
        splits: of the collection, whose judged queries are learned from. A split dev that is not
            named judges beside the cross-validation.
        train_size: number of judged queries to learn from, at least 20, all by default; `seed`
            chooses them.
        embeddings: folder of the model's embeddings of these passages; written if it is new. By
            default those that `condenser evaluate` or `search` keep in runs/evaluation. A copy for
            the written model, whose passages have the same vectors (sides: query), is in
            `output_dir`.
        dtype: of the weights while encoding: "float32", or "bfloat16", which is faster on
            accelerators and some CPUs.
        seed: of folds and chosen queries.
    """

    model: str
    collection: str
    output_dir: str
    use: Use = "hybrid"
    sides: Sides = "query"
    splits: list[str] = field(default_factory=lambda: ["train"])
    train_size: int | None = None
    embeddings: str | None = None
    dtype: Dtype = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        check_least(self, train_size=FEWEST_QUERIES)
