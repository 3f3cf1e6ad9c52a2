"""The fields of a fine-tuning recipe, and which of them fit which objective and data."""

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

from modeling_condenser.repository.contract import Pooling, Similarity

Objective = Literal["contrastive", "mse_cosine", "triplet", "margin_mse", "kl"]
Format = Literal[
    "pairs", "triples", "negatives", "graded_pairs", "scored", "id_triples", "dpr", "stsb"
]

# The first one is the default.
_SIMILARITIES: dict[str, tuple[Similarity, ...]] = {
    "contrastive": ("dot", "cosine"),
    "mse_cosine": ("cosine",),
    "triplet": ("euclidean", "cosine"),
    "margin_mse": ("dot", "cosine"),
    "kl": ("dot", "cosine"),
}
_FORMATS: dict[str, tuple[str, ...]] = {
    "contrastive": ("pairs", "triples", "negatives", "id_triples", "dpr"),
    "mse_cosine": ("graded_pairs", "stsb"),
    "triplet": ("triples", "negatives", "id_triples", "dpr"),
    "margin_mse": ("scored",),
    "kl": ("scored",),
}
_ONLY_FOR: dict[str, tuple[str, ...]] = {
    "temperature": ("contrastive", "kl"),
    "mini_batch_size": ("contrastive",),
    "gather_across_devices": ("contrastive",),
    "margin": ("triplet",),
    "score_range": ("mse_cosine",),
}
# The columns that a format reads; negatives may also be one column each.
_COLUMNS: dict[str, tuple[str, ...]] = {
    "pairs": ("query", "positive"),
    "triples": ("query", "positive", "negative"),
    "negatives": ("query", "positive", "negatives", "negative", "negative_1"),
    "graded_pairs": ("sentence1", "sentence2", "score"),
    "scored": (
        *("query", "positive", "negatives", "negative", "negative_1"),
        *("scores", "positive_score", "negative_scores", "negative_score", "negative_score_1"),
        "margin",
    ),
    "id_triples": ("query_id", "positive_id", "negative_id"),
}
_NUMBERED = re.compile(r"(negative(?:_score)?)_[1-9]\d*")
_WITH_NEGATIVES = ("negatives", "scored", "dpr")  # formats whose rows have any number of them
_CONTRACT_FIELDS = (
    *("pooling", "query_max_length", "passage_max_length"),
    *("title_separator", "query_prompt", "passage_prompt"),
)
# The smallest allowed values.
_LEAST = {
    "train_size": 1,
    "first_rows": 1,
    "n_negatives": 0,
    "mini_batch_size": 1,
    "subset_seed": 0,
    "margin": 0,
    "query_max_length": 1,
    "passage_max_length": 1,
}


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
    objective: Objective = "contrastive"
    collection: str | None = None
    split: str | None = None
    negatives: str | None = None
    data: Any = None
    data_name: str | None = None
    data_revision: str | None = None
    format: Format | None = None
    columns: Any = None
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
    score_range: Any = None
    mini_batch_size: int | None = None
    gather_across_devices: bool = False

    def __post_init__(self) -> None:
        """Check the settings that can be checked without reading a file.

        Raises:
            ValueError: a setting does not fit the objective or the data, or has a wrong value.
        """
        _check_numbers(self)
        _check_objective(self)
        _check_source(self)
        _check_negatives(self)
        _check_columns(self)

    @property
    def trained_similarity(self) -> Similarity:
        """What the objective compares by."""
        return self.similarity or _SIMILARITIES[self.objective][0]

    @property
    def contract_changes(self) -> dict[str, Any]:
        """The fields of the encoder's contract that the recipe sets."""
        set_by_recipe = {name: getattr(self, name) for name in _CONTRACT_FIELDS}
        changes = {name: value for name, value in set_by_recipe.items() if value is not None}
        return {**changes, "similarity": self.trained_similarity}

    @property
    def is_distilled(self) -> bool:
        """Whether the objective learns from a cross-encoder's scores."""
        return self.objective in ("margin_mse", "kl")


def _check_numbers(recipe: FinetuningRecipe) -> None:
    for name, least in _LEAST.items():
        value = getattr(recipe, name)
        if value is not None and value < least:
            raise ValueError(f"{name} is {value}, expected at least {least}.")
    if recipe.temperature is not None and not recipe.temperature > 0:
        raise ValueError(f"temperature is {recipe.temperature}, expected a number above 0.")
    bounds = recipe.score_range
    if bounds is not None:
        is_pair = isinstance(bounds, list | tuple) and len(bounds) == 2
        is_pair = is_pair and all(type(bound) in (int, float) for bound in bounds)
        if not is_pair or not bounds[0] < bounds[1]:
            raise ValueError(
                f"score_range is {bounds!r}, expected the lowest and the highest score, as [0, 5]."
            )


def _check_objective(recipe: FinetuningRecipe) -> None:
    for name, objectives in _ONLY_FOR.items():
        if getattr(recipe, name) not in (None, False) and recipe.objective not in objectives:
            raise ValueError(
                f"{name} is for objective {' or '.join(objectives)}, but the objective is "
                f"{recipe.objective}: remove it."
            )
    if recipe.trained_similarity not in _SIMILARITIES[recipe.objective]:
        raise ValueError(
            f"similarity {recipe.similarity!r} is not supported for objective {recipe.objective}; "
            f"supported: {', '.join(_SIMILARITIES[recipe.objective])}."
        )
    if recipe.order == "sequential" and recipe.objective == "contrastive":
        raise ValueError(
            "order: sequential is not supported for objective contrastive, whose batches must not "
            "contain a text twice: remove it."
        )


def _check_source(recipe: FinetuningRecipe) -> None:
    """Check that there is one source of training examples, which the objective can use."""
    if recipe.data is None:
        if recipe.collection is None:
            raise ValueError(
                "The recipe has no training data: add collection (a collection's folder or name), "
                "or data (files or a Hub data set) and its format."
            )
        for name in ("data_name", "data_revision", "format", "columns", "first_rows"):
            if getattr(recipe, name) is not None:
                raise ValueError(f"{name} is for data, which the recipe does not have: remove it.")
        if recipe.objective == "mse_cosine":
            raise ValueError(
                "objective mse_cosine needs graded pairs, which a collection does not have: use "
                "data of format graded_pairs or stsb."
            )
        return
    allowed = _FORMATS[recipe.objective]
    if recipe.format not in allowed:
        raise ValueError(
            f"format is {recipe.format!r}, but objective {recipe.objective} trains on data of "
            f"format {', '.join(allowed)}: set format to what the data has."
        )
    if (recipe.format == "id_triples") != (recipe.collection is not None):
        raise ValueError(
            f"format is {recipe.format} and collection is {recipe.collection!r}: format id_triples "
            "needs the collection that has the texts; with other formats, name either data or a "
            "collection."
        )


def _check_negatives(recipe: FinetuningRecipe) -> None:
    if recipe.negatives is not None and (recipe.collection is None or recipe.data is not None):
        raise ValueError(
            "negatives is for the judged pairs of a collection: name the collection, and remove "
            "data."
        )
    needs_file = recipe.objective == "triplet" or recipe.is_distilled
    if recipe.data is None and recipe.negatives is None and needs_file:
        scores = " with a cross-encoder's scores" if recipe.is_distilled else ""
        raise ValueError(
            f"objective {recipe.objective} needs negatives{scores}: set negatives to a file that "
            "`condenser mine` wrote."
        )
    if recipe.n_negatives is None:
        return
    if recipe.negatives is None and recipe.format not in _WITH_NEGATIVES:
        raise ValueError(
            "n_negatives is for a file of negatives, or for data of format "
            f"{', '.join(_WITH_NEGATIVES)}: remove it."
        )
    if recipe.objective == "triplet" and recipe.n_negatives != 1:
        raise ValueError("A triplet has one negative: remove n_negatives.")
    if recipe.is_distilled and recipe.n_negatives < 1:
        raise ValueError(f"n_negatives is 0, but objective {recipe.objective} needs at least 1.")


def _check_columns(recipe: FinetuningRecipe) -> None:
    columns, known = recipe.columns, _COLUMNS.get(recipe.format or "", ())
    if columns is None:
        return
    if not known:
        raise ValueError(f"columns is not supported for format {recipe.format}: remove it.")
    names = columns.values() if isinstance(columns, dict) else columns
    is_valid = isinstance(columns, dict | list | tuple) and all(isinstance(n, str) for n in names)
    if not columns or not is_valid:
        raise ValueError(
            f"columns is {columns!r}, expected our names and the data's, as {{{known[0]}: ...}}, "
            f"or all columns of a file without a header, as [{', '.join(known[:3])}]."
        )
    for name in columns if isinstance(columns, dict) else ():
        numbered = _NUMBERED.fullmatch(str(name))
        if name not in known and not (numbered and f"{numbered[1]}_1" in known):
            nearest = get_close_matches(str(name), known, n=1)
            hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
            raise ValueError(
                f"columns has {name!r}, but format {recipe.format} reads {', '.join(known)}.{hint}"
            )
