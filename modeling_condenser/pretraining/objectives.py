"""The objectives of pre-training: the table that all other files read.

For a contrast, a text gives two examples. coCondenser (Gao & Callan 2021, arXiv 2108.05540) draws
two random spans of each document. The Inverse Cloze Task (Lee, Chang & Toutanova 2019, "Latent
Retrieval for Weakly Supervised Open Domain Question Answering") draws a random sentence of a
passage as a pseudo-query, and removes it from its context in 90 % of the examples. Unlike in that
paper, one encoder serves query and context, and contexts have no titles.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, fields
from functools import partial
from typing import Any, Literal

import numpy as np
from transformers import PreTrainedTokenizerBase

from .collator import text_length

HEAD_SETTINGS = ("n_head_layers", "skip_from", "late_mlm", "head_mlm_probability")
_CONTRAST_SETTINGS = ("similarity", "temperature", "cache_chunk_size")

MakePair = Callable[[list[np.ndarray], np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Makes a pair from the parts of a text, a new list, and two random numbers in [0, 1)."""


@dataclass(frozen=True)
class Objective:
    """What a model is trained for.

    Attributes:
        name: in a recipe and in `CondenserTrainingArguments`.
        about: explains it in `condenser pretrain --help`.
        has_head: the model has a Condenser head (`CondenserForPreTraining`).
        is_masked: tokens are masked and predicted.
        reads: "blocks"; or for pairs "spans" or "passages", texts of two parts (`BlockBuilder`).
        choose_pairs: for a contrast: returns what makes a pair of a text, for a tokenizer and
            `CondenserTrainingArguments`.
        is_one_way: a contrast is of the first text of each pair with all second ones, not of every
            text with all others.
        own_settings: further fields of the arguments that not all objectives have.
    """

    name: str
    about: str
    _: KW_ONLY
    has_head: bool = False
    is_masked: bool = True
    reads: Literal["blocks", "spans", "passages"] = "blocks"
    choose_pairs: Callable[[PreTrainedTokenizerBase, Any], MakePair] | None = None
    is_one_way: bool = False
    own_settings: tuple[str, ...] = ()

    @property
    def is_contrastive(self) -> bool:
        """Whether the loss is over the vectors of a whole batch, whose examples are pairs."""
        return self.choose_pairs is not None

    @property
    def settings(self) -> set[str]:
        """The fields of recipe and arguments that this objective has, of those that not all do."""
        names = {*self.own_settings}
        if self.has_head:
            names.update(HEAD_SETTINGS)
        if self.is_masked:
            names.add("mlm_probability")
        names.update(_CONTRAST_SETTINGS if self.is_contrastive else ("tokens_per_batch",))
        return names


def draw_spans(parts: list[np.ndarray], draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two different spans of a document; every ordered pair is equally likely."""
    first = parts.pop(int(draws[0] * len(parts)))
    return first, parts[int(draws[1] * len(parts))]


def draw_query(
    parts: list[np.ndarray], draws: np.ndarray, *, query_length: int, removal_probability: float
) -> tuple[np.ndarray, np.ndarray]:
    """A random sentence, cut to `query_length` tokens, and its passage, with or without it."""
    number = int(draws[0] * len(parts))
    query = parts[number]
    if draws[1] < removal_probability:
        del parts[number]
    return query[:query_length], np.concatenate(parts)


def _choose_queries(tokenizer: PreTrainedTokenizerBase, arguments: Any) -> MakePair:
    length = min(arguments.query_length, arguments.max_length)
    return partial(
        draw_query,
        query_length=text_length(tokenizer, length, name="query_length"),
        removal_probability=arguments.removal_probability,
    )


_ENTRIES = (
    Objective(
        "condenser",
        "MLM of the late layers, and of a head that reads the dense vector and the early tokens",
        has_head=True,
    ),
    Objective("mlm", "plain masked language modelling, the control"),
    Objective(
        "cocondenser",
        "the Condenser's losses on two spans of each document, and a contrast of their vectors",
        has_head=True,
        reads="spans",
        choose_pairs=lambda tokenizer, arguments: draw_spans,
        own_settings=("contrastive_weight",),
    ),
    Objective(
        "ict",
        "the Inverse Cloze Task: a sentence finds the passage that it was taken from",
        is_masked=False,
        reads="passages",
        choose_pairs=_choose_queries,
        is_one_way=True,
        own_settings=("query_length", "removal_probability"),
    ),
)
OBJECTIVES = {objective.name: objective for objective in _ENTRIES}


def check_objective(settings: Any) -> None:
    """Check the objective of a recipe or of arguments, and that it has the fields that are set.

    Raises:
        ValueError: there is no such objective, or a field that it does not have is set.
    """
    if settings.objective not in OBJECTIVES:
        raise ValueError(
            f"objective is {settings.objective!r}, expected one of {', '.join(OBJECTIVES)}."
        )
    of_objective = OBJECTIVES[settings.objective].settings
    for field in fields(settings):
        having = [name for name, other in OBJECTIVES.items() if field.name in other.settings]
        is_set = getattr(settings, field.name) != field.default
        if is_set and having and field.name not in of_objective:
            raise ValueError(
                f"{field.name} is only for objective {', '.join(having)}, but the objective is "
                f"{settings.objective}: leave {field.name} out."
            )


def describe_objectives() -> str:
    """A line for each objective, for `condenser pretrain --help`."""
    width = max(map(len, OBJECTIVES))
    return "\n".join(f"  {name:{width}}  {each.about}" for name, each in OBJECTIVES.items())
