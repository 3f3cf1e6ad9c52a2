"""What a fine-tuning recipe may say, and which settings belong to which objective and data."""

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

from modeling_condenser.repository.contract import Pooling, Similarity

Objective = Literal["contrastive", "mse_cosine", "triplet", "margin_mse", "kl"]
Format = Literal[
    "pairs", "triples", "negatives", "graded_pairs", "scored", "id_triples", "dpr", "stsb"
]

# The first is what the objective takes where the recipe says nothing.
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
# Columns that a format reads; a list of negatives may also be one column each.
COLUMNS: dict[str, tuple[str, ...]] = {
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
_WITH_NEGATIVES = ("negatives", "scored", "dpr")  # formats whose rows hold any number of them
# The least that a number may be.
_LEAST = {
    "train_size": 1,
    "first_rows": 1,
    "n_negatives": 0,
    "mini_batch_size": 1,
    "subset_seed": 0,
    "query_max_length": 1,
    "passage_max_length": 1,
}


@dataclass(frozen=True)
class FinetuningRecipe:
    """What a fine-tuning recipe says beside the trainer's arguments.

    Attributes:
        encoder: folder or Hub name of an export, of a sentence-transformers model, or of any plain
            encoder, for which `pooling` must be given; "starter" is a plain encoder that comes with
            this package.
        objective: "contrastive" (Condenser eq. 12: the positive against the other passages of the
            batch and the given negatives), "mse_cosine" (graded pairs: squared error of cosine),
            "triplet" (the positive nearer than the negative by a margin; the thesis, eq. 3.1),
            "margin_mse" or "kl" (distillation of a cross-encoder's scores).
        collection: a collection whose judgements are the training pairs: a folder in the layout of
            BEIR, MS MARCO or DPR, or a Hub data set.
        split: whose judgements to train on, or which split of a Hub data set; "train" by default.
        negatives: hard negatives for the collection's pairs: JSON lines as `condenser mine` writes
            them, or lines of query id, tab, passage ids with commas between.
        data: training data of its own: a file or pattern of .jsonl, .json, .tsv, .csv or .parquet
            (.jsonl, .json, .tsv and .csv also with .gz), a list of them, or a Hub data set.
        data_name: configuration of a Hub data set.
        data_revision: branch, tag or commit of a Hub data set.
        format: what a row of `data` holds: "pairs" (query, positive), "triples" (and negative),
            "negatives" (and negative_1, negative_2, ... or a list negatives), "graded_pairs"
            (sentence1, sentence2, score), "scored" (as negatives, with positive_score and
            negative_score(s), a list scores, or margin), "id_triples" (query_id, positive_id,
            negative_id of `collection`), "dpr" (DPR's JSON), "stsb" (the STS benchmark's files).
        columns: our names -> the data's, such as {query: question}; or, for a file without header,
            the list of all its columns' names in their order.
        first_rows: read no more than this many rows of the data.
        train_size: number of training examples to use, all by default.
        subset_seed: decides which; the subsets of one seed are nested.
        n_negatives: how many of a row's negatives to train with, drawn anew each epoch; by default
            1 for DPR's data and for triplets, else as many as every row has.
        order: "shuffled", or "sequential" for the order of the data.
        pooling: how token vectors become one vector; the contract's by default.
        similarity: what the objective compares by, and so what the result is used with: "dot" or
            "cosine" for contrastive, margin_mse and kl, "euclidean" or "cosine" for triplet; the
            first of them by default. "cosine" for mse_cosine.
        query_max_length: longest query in tokens; the contract's by default.
        passage_max_length: longest passage (or sentence of a graded pair) in tokens; the contract's
            by default.
        title_separator: stands between title and text; the contract's by default.
        query_prompt: put before every query; the contract's by default.
        passage_prompt: put before every passage; the contract's by default.
        temperature: the similarity is divided by it; 1 by default, which for the dot product is
            DPR's and Condenser's loss. For kl it divides the teacher's scores too.
        margin: of the triplet loss; 1 by default, as in Reimers & Gurevych 2019, section 3.
        score_range: lowest and highest score of graded pairs, which become 0 and 1; [0, 1] by
            default, [0, 5] for the format stsb.
        mini_batch_size: how many texts to encode at once, whatever the batch: gradient cache (Gao
            et al. 2021), with the same gradient as the whole batch at once. Off by default.
        gather_across_devices: take the passages of all devices as negatives.
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
        """Check the settings that need no file to be checked.

        Raises:
            ValueError: a setting that the objective or the data has no use for, or a wrong value.
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
        """Fields of the encoder's contract that the recipe states."""
        names = "pooling query_max_length passage_max_length title_separator query_prompt".split()
        stated = {name: getattr(self, name) for name in (*names, "passage_prompt")}
        changes = {name: value for name, value in stated.items() if value is not None}
        return {**changes, "similarity": self.trained_similarity}

    @property
    def is_distilled(self) -> bool:
        """Whether the objective learns from a teacher's scores."""
        return self.objective in ("margin_mse", "kl")


def _check_numbers(recipe: FinetuningRecipe) -> None:
    for name, least in _LEAST.items():
        value = getattr(recipe, name)
        if value is not None and value < least:
            raise ValueError(f"{name} is {value}, expected at least {least}.")
    if recipe.temperature is not None and not recipe.temperature > 0:
        raise ValueError(f"temperature is {recipe.temperature}, expected a number above 0.")
    if recipe.margin is not None and not recipe.margin >= 0:
        raise ValueError(f"margin is {recipe.margin}, expected at least 0.")
    _check_score_range(recipe.score_range)


def _check_score_range(bounds: Any) -> None:
    if bounds is None:
        return
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
                f"{name} is only for objective {' and '.join(objectives)}, but the recipe's is "
                f"{recipe.objective}: leave it out."
            )
    if recipe.trained_similarity not in _SIMILARITIES[recipe.objective]:
        raise ValueError(
            f"similarity is {recipe.similarity!r}, but objective {recipe.objective} compares by "
            f"{' or '.join(_SIMILARITIES[recipe.objective])}: choose one of these."
        )
    if recipe.order == "sequential" and recipe.objective == "contrastive":
        raise ValueError(
            "order: sequential is not for objective contrastive, whose batches are put together so "
            "that none holds a text twice: leave it out."
        )


def _check_source(recipe: FinetuningRecipe) -> None:
    """Check that there is one source of training examples, which the objective can use."""
    if recipe.data is None:
        if recipe.collection is None:
            raise ValueError(
                "The recipe names nothing to train on: add collection (a collection's folder or "
                "name), or data (files or a Hub data set) with its format."
            )
        _refuse_stated(recipe, "data", "data_name", "data_revision", "format", "columns")
        if recipe.first_rows is not None:
            _refuse_stated(recipe, "data", "first_rows")
        if recipe.objective == "mse_cosine":
            raise ValueError(
                "objective mse_cosine needs graded pairs, which a collection has not: give data "
                "with format graded_pairs or stsb."
            )
        return
    allowed = _FORMATS[recipe.objective]
    if recipe.format not in allowed:
        came = f"format is {recipe.format!r}" if recipe.format else "The recipe names no format"
        raise ValueError(
            f"{came}, but objective {recipe.objective} trains on data of format "
            f"{', '.join(allowed)}: say which of these the data has."
        )
    if recipe.format == "id_triples" and recipe.collection is None:
        raise ValueError(
            "format id_triples holds ids only: name the collection that holds the texts."
        )
    if recipe.format != "id_triples" and recipe.collection is not None:
        raise ValueError(
            "The recipe names both a collection and data, two sources of training examples: leave "
            "one out (both are only for format id_triples, whose texts the collection holds)."
        )


def _refuse_stated(recipe: FinetuningRecipe, needs: str, *names: str) -> None:
    for name in names:
        if getattr(recipe, name) is not None:
            raise ValueError(f"{name} is only for {needs}, which the recipe lacks: leave it out.")


def _check_negatives(recipe: FinetuningRecipe) -> None:
    if recipe.negatives is not None and (recipe.collection is None or recipe.data is not None):
        raise ValueError(
            "negatives is only for the judged pairs of a collection: name the collection, and "
            "leave data out."
        )
    needs_file = recipe.objective == "triplet" or recipe.is_distilled
    if recipe.data is None and recipe.negatives is None and needs_file:
        what = "with a cross-encoder's scores" if recipe.is_distilled else ""
        raise ValueError(
            f"objective {recipe.objective} needs negatives {what}".rstrip() + " beside a "
            "collection's judgements: name a file of them (`condenser mine` writes one)."
        )
    if recipe.n_negatives is None:
        return
    if recipe.negatives is None and recipe.format not in _WITH_NEGATIVES:
        raise ValueError(
            "n_negatives is only for a file of negatives, or for data of format "
            f"{', '.join(_WITH_NEGATIVES)}: leave it out."
        )
    if recipe.objective == "triplet" and recipe.n_negatives != 1:
        raise ValueError(
            f"n_negatives is {recipe.n_negatives}, but a triplet has one negative: leave it out."
        )
    if recipe.is_distilled and recipe.n_negatives < 1:
        raise ValueError(
            f"objective {recipe.objective} compares a positive with negatives: set "
            "n_negatives to 1 or more."
        )


def _check_columns(recipe: FinetuningRecipe) -> None:
    columns, known = recipe.columns, COLUMNS.get(recipe.format or "", ())
    if columns is None:
        return
    if recipe.format not in COLUMNS:
        raise ValueError(
            f"columns is not for format {recipe.format}, whose layout is fixed: leave it out."
        )
    if isinstance(columns, list | tuple):
        if not columns or not all(isinstance(name, str) for name in columns):
            raise ValueError(
                f"columns is {columns!r}, expected the names of all columns of a file without "
                f"header, in their order, as [{', '.join(known[:3])}]."
            )
        return
    if not isinstance(columns, dict) or not all(isinstance(v, str) for v in columns.values()):
        raise ValueError(
            f"columns is {columns!r}, expected our names and the data's, as {{{known[0]}: ...}}."
        )
    for name in columns:
        numbered = _NUMBERED.fullmatch(str(name))
        if name not in known and not (numbered and f"{numbered[1]}_1" in known):
            nearest = get_close_matches(str(name), known, n=1)
            hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
            raise ValueError(
                f"columns names {name!r}, but format {recipe.format} reads "
                f"{', '.join(known)}.{hint} It maps our names to the data's, as "
                f"{{{known[0]}: {name}}}."
            )
