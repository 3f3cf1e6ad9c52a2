"""The fields of a fine-tuning recipe."""

from dataclasses import dataclass, fields
from typing import Any, Literal

from modeling_condenser.files.contract import EncodingContract, Pooling, Similarity
from modeling_condenser.files.settings import check_least
from modeling_condenser.pretraining.arguments import check_objective

Objective = Literal["contrastive", "mse_cosine", "triplet", "margin_mse", "kl"]

# The similarities of an objective; the first is the default.
_SIMILARITIES: dict[Objective, tuple[Similarity, ...]] = {
    "contrastive": ("dot", "cosine"),
    "mse_cosine": ("cosine",),
    "triplet": ("euclidean", "cosine"),
    "margin_mse": ("dot", "cosine"),
    "kl": ("dot", "cosine"),
}
# Objectives -> the settings that only they have.
_ONLY_FOR: dict[tuple[str, ...], tuple[str, ...]] = {
    ("contrastive", "kl"): ("temperature",),
    ("contrastive",): ("mini_batch_size", "gather_across_devices"),
    ("mse_cosine", "triplet", "margin_mse", "kl"): ("order",),  # contrast chooses its batches
    ("triplet",): ("margin",),
    ("mse_cosine",): ("score_range",),
}
_OF_DATA = ("data_name", "data_revision", "columns", "first_rows")


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
        collection: its judgements are the training pairs: a folder in the layout of BEIR, MS MARCO
            or DPR, or a Hub data set.
        split: of the collection or of a Hub data set; "train" by default.
        negatives: file of hard negatives for the collection's pairs: JSON lines as `condenser mine`
            writes them, or lines of query id, tab, passage ids separated by commas.
        data: other training data: a file or pattern of .jsonl, .json, .tsv, .csv or .parquet (all
            but .parquet also compressed), a list of them, or a Hub data set. A file that exists is
            not taken for a pattern. Columns are query, positive and negative (or a list negatives,
            or negative_1, negative_2, ...); for distillation also a list scores, or positive_score
            and negative_score(s); for graded pairs sentence1, sentence2 and score. DPR's JSON is
            read as published.
        data_name: configuration of a Hub data set.
        data_revision: branch, tag or commit of a Hub data set.
        columns: our names -> the data's names, such as {query: question}; or, for a file without
            a header, the list of all its columns in their order.
        first_rows: read at most this many rows of the data.
        train_size: number of training examples to use, all by default.
        subset_seed: selects them; the subsets of one seed are nested.
        n_negatives: how many of a row's negatives to train with, drawn anew each epoch; 1 for
            triplets, else by default as many as every row has.
        order: "shuffled", or "sequential" for the order of the data.
        pooling: how token vectors become one vector; the contract's by default.
        similarity: of the objective and of the retriever: "dot" or "cosine" for contrastive,
            margin_mse and kl, "euclidean" or "cosine" for triplet, "cosine" for mse_cosine. By
            default that of the encoder's contract, or else the first of these.
        query_max_length: maximum tokens of a query; the contract's by default.
        passage_max_length: maximum tokens of a passage, or of a sentence of a graded pair; the
            contract's by default.
        title_separator: between title and text; the contract's by default.
        query_prompt: put before every query; the contract's by default.
        passage_prompt: put before every passage; the contract's by default.
        temperature: divides the similarity, and for kl also the cross-encoder's scores. 1 by
            default, as in the losses of DPR and Condenser (for the dot product), but 0.05 for
            contrastive by the cosine, as in pre-training.
        margin: of the triplet loss; 1 by default, as in Reimers & Gurevych 2019, section 3.
        score_range: lowest and highest score of graded pairs, which become 0 and 1; [0, 1] by
            default. That of the STS benchmark is [0, 5].
        mini_batch_size: number of texts to encode at once (gradient cache, Gao et al. 2021); the
            gradient is the same. Off by default.
        gather_across_devices: use the passages of all devices as negatives.
        matryoshka_dims: dimensions, such as [64, 128], to train truncated vectors too (Kusupati et
            al. 2022), so that `truncate_dim` loses less. The loss is the sum over these and the
            whole vector. For the similarity cosine only.
        base_learning_rate: of an encoder of BERT base's size, from which that of another size
            follows if learning_rate is not set.
    """

    encoder: str
    objective: Objective = "contrastive"
    collection: str | None = None
    split: str | None = None
    negatives: str | None = None
    data: str | list[str] | None = None
    data_name: str | None = None
    data_revision: str | None = None
    columns: dict[str, str] | list[str] | None = None
    first_rows: int | None = None
    train_size: int | None = None
    subset_seed: int = 0
    n_negatives: int | None = None
    order: Literal["shuffled", "sequential"] = "shuffled"
    pooling: Pooling | None = None
    similarity: Similarity | None = None
    query_max_length: int | None = None
    passage_max_length: int | None = None
    title_separator: str | None = None
    query_prompt: str | None = None
    passage_prompt: str | None = None
    temperature: float | None = None
    margin: float = 1.0
    score_range: list[int | float] | None = None
    mini_batch_size: int | None = None
    gather_across_devices: bool = False
    matryoshka_dims: list[int] | None = None
    base_learning_rate: float | None = None

    def __post_init__(self) -> None:
        """Check what can be checked without reading a file."""
        objective = self.objective
        check_least(self, train_size=1, first_rows=1, n_negatives=0, mini_batch_size=1)
        check_least(self, subset_seed=0, temperature=1e-6, base_learning_rate=0)
        scores = self.score_range
        if scores is not None and not (len(scores) == 2 and scores[0] < scores[1]):
            raise ValueError(f"score_range is {scores}, expected [lowest, highest].")
        for objectives, names in _ONLY_FOR.items():
            check_objective(self, objectives, names)
        self._check_source()
        if self.trained_similarity not in self.similarities:
            raise ValueError(
                f"similarity {self.similarity!r} is not supported for objective {objective}; "
                f"supported: {', '.join(self.similarities)}."
            )
        if self.matryoshka_dims is not None and self.trained_similarity != "cosine":
            raise ValueError(
                "matryoshka_dims is for similarity: cosine, because sentence-transformers compares"
                f" truncated vectors at length 1; got {self.trained_similarity}."
            )
        if objective == "triplet" and self.n_negatives not in (None, 1):
            raise ValueError("A triplet has one negative: remove n_negatives.")

    def _check_source(self) -> None:
        if (self.collection is None) == (self.data is None):
            raise ValueError(
                f"The recipe names {'neither' if self.data is None else 'both'} a collection and "
                "data: expected a collection, or data that holds the texts themselves."
            )
        if self.data is None and self.objective == "mse_cosine":
            raise ValueError("objective mse_cosine trains on graded pairs: set data.")
        if self.data is None and self.negatives is None and self.needs_negatives:
            raise ValueError(
                f"objective {self.objective} with n_negatives {self.n_negatives} needs negatives: "
                "set negatives to a file that `condenser mine` wrote, or set data."
            )
        for name in _OF_DATA if self.data is None else ("negatives",):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name} has no use for the source {self.data or self.collection}: remove it."
                )

    @property
    def needs_negatives(self) -> bool:
        """Whether an example without a negative cannot be used."""
        return self.objective in ("triplet", "margin_mse", "kl") or bool(self.n_negatives)

    @property
    def similarities(self) -> tuple[Similarity, ...]:
        """The similarities of the objective; the first is the default."""
        return _SIMILARITIES[self.objective]

    @property
    def trained_similarity(self) -> Similarity:
        """The similarity of the recipe."""
        return self.similarity or self.similarities[0]

    @property
    def trained_temperature(self) -> float:
        """The temperature of the recipe, for contrastive and kl."""
        is_sharp = self.objective == "contrastive" and self.trained_similarity == "cosine"
        return self.temperature or (0.05 if is_sharp else 1.0)

    @property
    def contract_changes(self) -> dict[str, Any]:
        """The fields of the encoder's contract that the recipe sets."""
        stated = {field.name: getattr(self, field.name, None) for field in fields(EncodingContract)}
        stated["similarity"] = self.trained_similarity
        return {name: value for name, value in stated.items() if value is not None}

    @property
    def is_distilled(self) -> bool:
        """Whether the objective learns from a cross-encoder's scores."""
        return self.objective in ("margin_mse", "kl")
