"""The fields of a fine-tuning recipe, and which of them fit which objective and data."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from modeling_condenser.hub.contract import Pooling, Similarity

Format = Literal[
    "pairs", "triples", "negatives", "graded_pairs", "scored", "id_triples", "dpr", "stsb"
]


class _Allowed(NamedTuple):
    """What an objective can be used with; the first similarity is the default."""

    similarities: tuple[Similarity, ...]
    formats: tuple[Format, ...]
    settings: tuple[str, ...] = ()


_OBJECTIVES = {
    "contrastive": _Allowed(
        ("dot", "cosine"),
        ("pairs", "triples", "negatives", "id_triples", "dpr"),
        ("temperature", "mini_batch_size", "gather_across_devices"),
    ),
    "mse_cosine": _Allowed(("cosine",), ("graded_pairs", "stsb"), ("score_range",)),
    "triplet": _Allowed(
        ("euclidean", "cosine"), ("triples", "negatives", "id_triples", "dpr"), ("margin",)
    ),
    "margin_mse": _Allowed(("dot", "cosine"), ("scored",)),
    "kl": _Allowed(("dot", "cosine"), ("scored",), ("temperature",)),
}
_OF_ONE_OBJECTIVE = sorted({name for allowed in _OBJECTIVES.values() for name in allowed.settings})
_OF_DATA = ("data_name", "data_revision", "format", "columns", "first_rows")
_WITH_NEGATIVES = ("negatives", "scored", "dpr")  # formats whose rows have any number of them
_CONTRACT_FIELDS = (
    *("pooling", "query_max_length", "passage_max_length"),
    *("title_separator", "query_prompt", "passage_prompt"),
)


@dataclass(frozen=True)
class FinetuningRecipe:
    """Fields of a fine-tuning recipe, in addition to the trainer's arguments.

    Attributes:
        encoder: folder or Hub name of an export, of a sentence-transformers model, or of any plain
            encoder, for which `pooling` must be given; "starter" is a plain encoder that comes with
            this package.
        objective: "contrastive" (Condenser eq. 12: the positive against all other passages of the
            batch), "mse_cosine" (graded pairs: squared error of the cosine), "triplet" (the
            positive nearer than the negative by a margin; the thesis, eq. 3.1), "margin_mse" or
            "kl" (distillation of a cross-encoder's scores).
        collection: a collection whose judgements are the training pairs: a folder in the layout of
            BEIR, MS MARCO or DPR, or a Hub data set.
        split: whose judgements to train on, or the split of a Hub data set; "train" by default.
        negatives: file of hard negatives for the collection's pairs: JSON lines as `condenser mine`
            writes them, or lines of query id, tab, passage ids separated by commas.
        data: other training data: a file or pattern of .jsonl, .json, .tsv, .csv or .parquet (all
            but .parquet also with .gz), a list of them, or a Hub data set.
        data_name: configuration of a Hub data set.
        data_revision: branch, tag or commit of a Hub data set.
        format: what a row of `data` contains: "pairs" (query, positive), "triples" (and negative),
            "negatives" (and negative_1, negative_2, ... or a list negatives), "graded_pairs"
            (sentence1, sentence2, score), "scored" (as negatives, with positive_score and
            negative_score(s), a list scores, or margin), "id_triples" (query_id, positive_id,
            negative_id of `collection`), "dpr" (DPR's JSON), "stsb" (the STS benchmark's files).
        columns: our names -> the data's names, such as {query: question}; or, for a file without
            a header, the list of all its columns in their order.
        first_rows: read at most this many rows of the data.
        train_size: number of training examples to use, all by default.
        subset_seed: decides which; the subsets of one seed are nested.
        n_negatives: how many of a row's negatives to train with, drawn anew each epoch; by default
            1 for DPR's data and for triplets, else as many as every row has.
        order: "shuffled", or "sequential" for the order of the data.
        pooling: how token vectors become one vector; the contract's by default.
        similarity: what the objective compares by, and what the retriever is used with: "dot" or
            "cosine" for contrastive, margin_mse and kl, "euclidean" or "cosine" for triplet; the
            first of them by default. "cosine" for mse_cosine.
        query_max_length: maximum tokens of a query; the contract's by default.
        passage_max_length: maximum tokens of a passage, or of a sentence of a graded pair; the
            contract's by default.
        title_separator: between title and text; the contract's by default.
        query_prompt: put before every query; the contract's by default.
        passage_prompt: put before every passage; the contract's by default.
        temperature: divides the similarity; 1 by default, which for the dot product is DPR's and
            Condenser's loss. For kl it also divides the cross-encoder's scores.
        margin: of the triplet loss; 1 by default, as in Reimers & Gurevych 2019, section 3.
        score_range: lowest and highest score of graded pairs, which become 0 and 1; [0, 1] by
            default, [0, 5] for the format stsb.
        mini_batch_size: number of texts to encode at once: gradient cache (Gao et al. 2021), with
            the same gradient as the whole batch at once. Off by default.
        gather_across_devices: use the passages of all devices as negatives.
    """

    encoder: str
    objective: Literal["contrastive", "mse_cosine", "triplet", "margin_mse", "kl"] = "contrastive"
    collection: str | None = None
    split: str | None = None
    negatives: str | None = None
    data: Any = None
    data_name: str | None = None
    data_revision: str | None = None
    format: Format | None = None
    columns: dict | list | None = None
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
    margin: float | None = None
    score_range: list | None = None
    mini_batch_size: int | None = None
    gather_across_devices: bool = False

    def __post_init__(self) -> None:
        """Check the settings that can be checked without reading a file."""
        _check_objective(self)
        _check_source(self)
        _check_negatives(self)

    @property
    def trained_similarity(self) -> Similarity:
        """What the objective compares by."""
        return self.similarity or _OBJECTIVES[self.objective].similarities[0]

    @property
    def contract_changes(self) -> dict[str, Any]:
        """The fields of the encoder's contract that the recipe sets."""
        changes = {name: getattr(self, name) for name in _CONTRACT_FIELDS}
        changes["similarity"] = self.trained_similarity
        return {name: value for name, value in changes.items() if value is not None}

    @property
    def is_distilled(self) -> bool:
        """Whether the objective learns from a cross-encoder's scores."""
        return self.objective in ("margin_mse", "kl")


def _check_objective(recipe: FinetuningRecipe) -> None:
    allowed = _OBJECTIVES[recipe.objective]
    for name in _OF_ONE_OBJECTIVE:
        if getattr(recipe, name) not in (None, False) and name not in allowed.settings:
            raise ValueError(f"{name} is not for objective {recipe.objective}: remove it.")
    if recipe.trained_similarity not in allowed.similarities:
        raise ValueError(
            f"similarity {recipe.similarity!r} is not supported for objective {recipe.objective}; "
            f"supported: {', '.join(allowed.similarities)}."
        )
    if recipe.order == "sequential" and recipe.objective == "contrastive":
        raise ValueError(
            "order: sequential is not supported for objective contrastive, whose batches must not "
            "contain a text twice: remove it."
        )


def _check_source(recipe: FinetuningRecipe) -> None:
    """Check that the recipe has one source of examples, and that it fits the objective."""
    formats = _OBJECTIVES[recipe.objective].formats
    if recipe.data is None:
        if recipe.collection is None:
            raise ValueError(
                "The recipe has no training data: add collection (a folder or Hub name), or data "
                "(files or a Hub data set) and its format."
            )
        for name in _OF_DATA:
            if getattr(recipe, name) is not None:
                raise ValueError(f"{name} is for data, which the recipe does not have: remove it.")
        if recipe.objective == "mse_cosine":
            raise ValueError(f"objective mse_cosine needs data of format {' or '.join(formats)}.")
    elif recipe.format not in formats:
        raise ValueError(
            f"format is {recipe.format!r}, but objective {recipe.objective} trains on data of "
            f"format {', '.join(formats)}: set format to what the data has."
        )
    elif (recipe.format == "id_triples") != (recipe.collection is not None):
        raise ValueError(
            f"format is {recipe.format} and collection is {recipe.collection!r}: format id_triples "
            "needs the collection that has the texts; with other formats, name either data or a "
            "collection."
        )


def _check_negatives(recipe: FinetuningRecipe) -> None:
    if recipe.negatives is not None and recipe.data is not None:
        raise ValueError("negatives is for the judged pairs of a collection: remove data.")
    needs_file = recipe.objective == "triplet" or recipe.is_distilled
    if recipe.data is None and recipe.negatives is None and needs_file:
        scores = " with a cross-encoder's scores" if recipe.is_distilled else ""
        raise ValueError(
            f"objective {recipe.objective} needs negatives{scores}: set negatives to a file that "
            "`condenser mine` wrote."
        )
    n = recipe.n_negatives
    if n is not None and recipe.negatives is None and recipe.format not in _WITH_NEGATIVES:
        raise ValueError(
            "n_negatives is for a file of negatives, or for data of format "
            f"{', '.join(_WITH_NEGATIVES)}: remove it."
        )
    if recipe.objective == "triplet" and n not in (None, 1):
        raise ValueError("A triplet has one negative: remove n_negatives.")
    if recipe.is_distilled and n == 0:
        raise ValueError(f"n_negatives is 0, but objective {recipe.objective} needs at least 1.")
