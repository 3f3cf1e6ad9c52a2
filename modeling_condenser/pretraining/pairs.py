"""Documents become pairs of texts to contrast: two spans each, or a sentence and its context.

coCondenser (Gao & Callan 2021, arXiv 2108.05540) draws two random spans of each document. The
Inverse Cloze Task (Lee, Chang & Toutanova 2019, "Latent Retrieval for Weakly Supervised Open Domain
Question Answering") draws a random sentence of a passage as a pseudo-query, and removes it from its
context in 90 % of the examples. Unlike there, one encoder serves query and context, and contexts
have no titles.

Documents are cut once and kept on disk. Draws depend on seed, epoch and document only.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, Features, List, Value

from .counter_random import random_keys, uniforms
from .data import BlockBuilder, KeyedBlocks, map_documents

logger = logging.getLogger(__name__)

SpanKind = Literal["sentences", "windows"]


class TextCutter:
    """Cuts documents into texts of two or more parts, and leaves out shorter ones.

    Args:
        blocks: its settings give the length of spans and passages.
        kind: "sentences", a document is a text whose parts are blocks of whole sentences;
            "windows", its parts are as few windows of equal length as fit; "passages", each block
            is a text, whose parts are its sentences.
    """

    features = Features(
        {
            "input_ids": List(Value("int32")),  # of a text, without special tokens
            "starts": List(Value("int32")),  # where its parts begin, the first at 0
            "document": Value("int64"),  # the place of its document in the corpus
        }
    )

    def __init__(self, blocks: BlockBuilder, kind: Literal["sentences", "windows", "passages"]):
        self.blocks = blocks
        self.kind = kind
        self.fingerprint = f"{kind} {blocks.fingerprint}"

    def rows(self, texts: Sequence[str | None], numbers: Sequence[int]) -> dict[str, list]:
        """The texts of documents, whose places in the corpus are `numbers`, as columns."""
        cut = [
            (ids, starts, number)
            for number, (tokens, lengths) in zip(numbers, self.blocks.tokenize(texts), strict=True)
            for ids, starts in self._cut(tokens, lengths, number)
            if len(starts) > 1
        ]
        return {name: [text[i] for text in cut] for i, name in enumerate(self.features)}

    def _cut(
        self, ids: np.ndarray, lengths: np.ndarray, number: int
    ) -> Iterator[tuple[np.ndarray, Sequence[int] | np.ndarray]]:
        if self.kind == "windows":
            n_windows = -(-len(ids) // self.blocks.room)
            yield ids, [i * len(ids) // n_windows for i in range(n_windows)]
            return
        bounds = [0, *self.blocks.cut(lengths, number)]
        if self.kind == "sentences":
            yield ids, bounds
            return
        sentences = np.cumsum(lengths) - lengths
        for start, end in pairwise([*bounds, len(ids)]):
            yield ids[start:end], sentences[(sentences >= start) & (sentences < end)] - start


def cut_documents(
    documents: Dataset, cutter: TextCutter, *, num_proc: int | None = None
) -> tuple[Dataset, dict[str, int]]:
    """Cut a corpus, cached by its content.

    Returns:
        A data set with a text a row and the columns of `TextCutter.features`; and the numbers of
        documents, of those left out because they have one part only, and of spans or passages.
    """
    texts = map_documents(documents, cutter, num_proc=num_proc)
    if len(texts) == 0:
        raise ValueError(
            f"None of the {len(documents)} documents can be cut in two, so there are no pairs to "
            "contrast. Give whole documents (join_rows puts rows of a sentence together), or "
            "shorter spans (span_length; spans: windows where sentences are not found)."
        )
    columns = texts.select_columns(["starts", "document"]).with_format("arrow")[:]
    n_left_out = len(documents) - pc.count_distinct(columns["document"]).as_py()
    if n_left_out:
        logger.warning(
            "%d of %d documents cannot be cut in two and are left out.", n_left_out, len(documents)
        )
    n_spans = pc.sum(pc.list_value_length(columns["starts"])).as_py()
    made = {"n_passages": len(texts)} if cutter.kind == "passages" else {"n_spans": n_spans}
    return texts, {"n_documents": len(documents), "n_documents_left_out": n_left_out, **made}


class TextPairs(KeyedBlocks):
    """Cut texts on disk, each of which gives two neighbouring examples.

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
        draws = uniforms(keys, 2)
        mask_keys = random_keys(keys[:, None], np.arange(2)).ravel().tolist()
        texts = [
            text
            for ids, starts, drawn in zip(rows["input_ids"], rows["starts"], draws, strict=True)
            for text in self.draw(np.split(ids, starts[1:]), drawn)
        ]
        pairs = zip(texts, mask_keys, strict=True)
        return [{"input_ids": ids, "mask_key": key} for ids, key in pairs]


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
