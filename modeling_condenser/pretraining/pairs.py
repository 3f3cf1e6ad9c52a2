"""Pairs of texts to contrast: two spans of each document, or a sentence and its context.

coCondenser (Gao & Callan 2021, arXiv 2108.05540) draws two random spans of each document. The
Inverse Cloze Task (Lee, Chang & Toutanova 2019, "Latent Retrieval for Weakly Supervised Open Domain
Question Answering") draws a random sentence of a passage as a pseudo-query, and removes it from its
context in 90 % of the examples. Unlike there, one encoder serves query and context, and contexts
have no titles.

Documents are cut once (`BlockBuilder`). Draws depend on seed, epoch and document only.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from datasets import Dataset

from .counter_random import random_keys, uniforms
from .data import KeyedBlocks, with_keys


class TextPairs(KeyedBlocks):
    """Texts of two parts or more on disk, each of which gives two neighbouring examples.

    `draw` makes the pair from the parts of a text, a new list, and two random numbers in [0, 1).
    """

    def __init__(
        self,
        texts: Dataset,
        *,
        seed: int,
        draw: Callable[[list[np.ndarray], np.ndarray], tuple[np.ndarray, np.ndarray]],
    ):
        super().__init__(texts, seed=seed)
        self.draw = draw

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        rows, keys = self.blocks[indices], self.keys(indices)
        texts = [
            text
            for ids, starts, draws in zip(
                rows["input_ids"], rows["starts"], uniforms(keys, 2), strict=True
            )
            for text in self.draw(np.split(ids, starts[1:]), draws)
        ]
        return with_keys(texts, random_keys(keys[:, None], np.arange(2)).ravel())


def draw_spans(parts: list[np.ndarray], draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two different spans of a document; every ordered pair is equally likely."""
    first = parts.pop(int(draws[0] * len(parts)))
    return first, parts[int(draws[1] * len(parts))]


def draw_query(
    parts: list[np.ndarray], draws: np.ndarray, *, query_room: int, removal_probability: float
) -> tuple[np.ndarray, np.ndarray]:
    """A random sentence, cut to `query_room` tokens, and its passage, with or without it."""
    number = int(draws[0] * len(parts))
    query = parts[number]
    if draws[1] < removal_probability:
        del parts[number]
    return query[:query_room], np.concatenate(parts)
