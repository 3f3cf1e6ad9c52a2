"""The fields of the recipes of fine-tuning and mining."""

import json
from dataclasses import dataclass, fields
from typing import Any, Literal

from modeling_condenser.files.models import EncodingContract, Pooling, Similarity
from modeling_condenser.files.settings import check_least

FinetuningObjective = Literal["contrastive", "mse_cosine", "triplet", "margin_mse", "kl"]

# The similarities of an objective; the first is the default.
_SIMILARITIES: dict[FinetuningObjective, tuple[Similarity, ...]] = {
    "contrastive": ("dot", "cosine"),
    "mse_cosine": ("cosine",),
    "triplet": ("euclidean", "cosine"),
    "margin_mse": ("dot", "cosine"),
    "kl": ("dot", "cosine"),
}
RANKING_OBJECTIVES = ("contrastive", "margin_mse", "kl")


@dataclass(frozen=True)
class FinetuningRecipe:
    """Fields of a fine-tuning recipe, in addition to the trainer's arguments.

    Attributes:
        encoder: folder or Hub name of an export, a sentence-transformers model, or a plain encoder,
            which needs `pooling`; "starter" is a plain encoder that comes with this package.
        objective: "contrastive" (Condenser eq. 12: the positive against all other passages of the
            batch), "mse_cosine" (graded pairs: squared error of the cosine), "triplet" (the
            positive nearer than the negative by a margin; the thesis, eq. 3.1), "margin_mse" or
            "kl" (distillation of a cross-encoder's scores).
        collection: its judged queries are the training data, each with one of its positives, drawn
            anew in each epoch: a folder in the layout of BEIR, MS MARCO or DPR, or a Hub data set.
        split: of the collection or of a Hub data set; "train" by default.
        negatives: file of hard negatives of the collection's queries: JSON lines as
            `condenser mine` writes them, or lines of query id, tab and passage ids between commas.
        data: other training data: a file or pattern of .jsonl, .json, .csv, .tsv (without quoting)
            or .parquet, a list of them, or a Hub data set (owner/name or owner/name@revision).
            Columns are query, positive and negative (or a list negatives, or negative_1,
            negative_2, ...), for distillation also a list scores, the positive's first; for graded
            pairs sentence1, sentence2 and score. DPR's JSON is read as published.
        data_name: configuration of a Hub data set.
        columns: our names -> the data's names, such as {query: question}; or, for a file without
            a header, the list of all its columns in their order.
        train_size: number of training examples to use, all by default: judged queries of a
            collection (labels), or rows of `data`.
        subset_seed: selects them; the subsets of one seed are nested.
        n_negatives: how many of a row's negatives to train with, drawn anew each epoch; 1 for
            triplets, else by default as many as every row has.
        pooling: how token vectors become one vector; that of the encoder by default.
        similarity: of the objective and of the retriever: "dot" or "cosine" for contrastive,
            margin_mse and kl, "euclidean" or "cosine" for triplet, "cosine" for mse_cosine. By
            default that of the encoder, or else the first of these.
        query_max_length: maximum tokens of a query; that of the encoder by default.
        passage_max_length: maximum tokens of a passage, or of a sentence of a graded pair; that of
            the encoder by default.
        title_separator: between title and text; that of the encoder by default.
        query_prompt: put before every query; that of the encoder by default.
        passage_prompt: put before every passage; that of the encoder by default.
        temperature: divides the similarity in contrastive, margin_mse and kl. 1 by default, as in
            the losses of DPR and Condenser (for the dot product), but 0.05 for the cosine, as in
            pre-training.
        margin: of the triplet loss; 1 by default, as in Reimers & Gurevych 2019, section 3.
        score_range: lowest and highest score of graded pairs, which become 0 and 1; [0, 1] by
            default. That of the STS benchmark is [0, 5].
        mini_batch_size: for contrastive: number of texts to encode at once (gradient cache, Gao et
            al. 2021); the gradient is the same. Off by default.
        gather_across_devices: for contrastive: use the passages of all devices as negatives.
        matryoshka_dims: dimensions, such as [64, 128], to train truncated vectors too (Kusupati et
            al. 2022), so that `truncate_dim` loses less. The loss is the sum over these and the
            whole vector. For the similarity cosine only.
        base_learning_rate: of an encoder of BERT base's size, from which that of another size
            follows if learning_rate is not set.
    """

    encoder: str
    objective: FinetuningObjective = "contrastive"
    collection: str | None = None
    split: str | None = None
    negatives: str | None = None
    data: str | list[str] | None = None
    data_name: str | None = None
    columns: dict[str, str] | list[str] | None = None
    train_size: int | None = None
    subset_seed: int = 0
    n_negatives: int | None = None
    pooling: Pooling | None = None
    similarity: Similarity | None = None
    query_max_length: int | None = None
    passage_max_length: int | None = None
    title_separator: str | None = None
    query_prompt: str | None = None
    passage_prompt: str | None = None
    temperature: float | None = None
    margin: float = 1.0
    score_range: list[float] | None = None
    mini_batch_size: int | None = None
    gather_across_devices: bool = False
    matryoshka_dims: list[int] | None = None
    base_learning_rate: float | None = None

    def __post_init__(self) -> None:
        """Check what can be checked without reading a file."""
        check_least(self, train_size=1, n_negatives=0, mini_batch_size=1)
        check_least(self, subset_seed=0, temperature=1e-6, base_learning_rate=0)
        if (self.collection is None) == (self.data is None):
            raise ValueError(
                "The recipe needs either a collection, with judged queries, or data, "
                f"which holds the texts; collection is {self.collection}, data is {self.data}."
            )
        if self.data is not None and self.negatives is not None:
            raise ValueError(
                "negatives are of a collection's queries, but data is set: set collection, or add "
                "a column negatives to the rows of data."
            )
        if self.data is None and self.objective == "mse_cosine":
            raise ValueError("objective mse_cosine trains on graded pairs: set data.")
        if self.data is None and self.negatives is None and self.needs_negatives:
            raise ValueError(
                f"objective {self.objective} with n_negatives {self.n_negatives} needs negatives: "
                "set negatives to a file that `condenser mine` wrote, or set data."
            )
        if self.loss_similarity not in self.similarities:
            raise ValueError(
                f"similarity {self.similarity!r} is not supported for objective {self.objective}; "
                f"supported: {', '.join(self.similarities)}."
            )
        if self.matryoshka_dims is not None and self.similarity not in (None, "cosine"):
            raise ValueError(
                "matryoshka_dims is for similarity: cosine, because sentence-transformers compares"
                f" truncated vectors at length 1; got {self.similarity}."
            )
        if self.objective == "triplet" and self.n_negatives not in (None, 1):
            raise ValueError("A triplet has one negative: remove n_negatives.")
        has_effect = {
            **dict.fromkeys(("data_name", "columns"), self.data is not None),
            **dict.fromkeys(
                ("mini_batch_size", "gather_across_devices"), self.objective == "contrastive"
            ),
            "temperature": self.objective in RANKING_OBJECTIVES,
            "n_negatives": self.objective != "mse_cosine",
            "margin": self.objective == "triplet",
            "score_range": self.objective == "mse_cosine",
        }
        for field in fields(self):
            if not has_effect.get(field.name, True) and getattr(self, field.name) != field.default:
                source = "a collection" if self.data is None else "data"
                raise ValueError(
                    f"{field.name} has no effect on the objective {self.objective} with {source}: "
                    f"leave it out, or set it to {json.dumps(field.default)}."
                )

    @property
    def needs_negatives(self) -> bool:
        """Whether an example without a negative cannot be used."""
        return self.objective in ("triplet", "margin_mse", "kl") or bool(self.n_negatives)

    @property
    def is_distilled(self) -> bool:
        """Whether the objective learns from a cross-encoder's scores."""
        return self.objective in ("margin_mse", "kl")

    @property
    def similarities(self) -> tuple[Similarity, ...]:
        """The similarities of the objective; the first is the default."""
        return _SIMILARITIES[self.objective]

    @property
    def loss_similarity(self) -> Similarity:
        """The similarity, by default the first of the objective."""
        return self.similarity or self.similarities[0]

    @property
    def loss_temperature(self) -> float:
        """The temperature of contrastive, margin_mse and kl."""
        if self.temperature is not None:
            return self.temperature
        return 0.05 if self.loss_similarity == "cosine" else 1.0

    @property
    def contract_changes(self) -> dict[str, Any]:
        """The fields of the encoder's contract that the recipe sets."""
        names = [field.name for field in fields(EncodingContract) if hasattr(self, field.name)]
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class MiningRecipe:
    """Fields of a mining recipe, in addition to the settings of a dense search.

    Attributes:
        system: finds the candidates: bm25, an encoder, hybrid:ENCODER, or a TREC run file; settings
            follow after commas, or a mapping such as {"model": "my-encoder", "pooling": "mean"}.
        collection: folder or Hub name of a collection with judgements or answers. Without
            judgements, the first passage found that contains an answer is the positive, and
            passages with an answer are no negatives (Karpukhin et al. 2020, section 4.2).
        output_dir: the output folder.
        split: whose queries to mine negatives for.
        first_rank: the first rank to take candidates from; 1 is the top, and positives count.
        last_rank: the last rank to take candidates from, and the depth of the search.
        n_negatives: the maximum for a query; null for all that pass the filters.
        sampling: "random" candidates, or the "top" ones.
        seed: of the sampling, for each query independently.
        absolute_margin: drop candidates that score higher than the positive's score minus this. The
            lowest score of several positives counts; a positive that was not found leaves none.
        relative_margin: the same, as a share of the positive's score: 0.05 keeps candidates with at
            most 95 % (NV-Retriever's TopK-PercPos).
        answer_filter: drop candidates that contain an answer of the query.
        cross_encoder: folder or Hub name of a cross-encoder with one label; scores positives and
            negatives, for distillation.
        negative_below: drop candidates for which the cross-encoder's probability of relevance is
            at least this; 0.1 in RocketQA.
    """

    system: str | dict[str, Any]
    collection: str
    output_dir: str
    split: str = "train"
    first_rank: int = 1
    last_rank: int = 200
    n_negatives: int | None = 30
    sampling: Literal["random", "top"] = "random"
    seed: int = 0
    absolute_margin: float | None = None
    relative_margin: float | None = None
    answer_filter: bool = False
    cross_encoder: str | None = None
    negative_below: float | None = None

    def __post_init__(self) -> None:
        check_least(self, n_negatives=1, first_rank=1, last_rank=self.first_rank)
        if self.negative_below is not None and self.cross_encoder is None:
            raise ValueError("negative_below is a cross-encoder's probability: set cross_encoder.")
