"""Documents become pairs of texts to contrast: two spans each, or a sentence and its context.

coCondenser (Gao & Callan 2021, arXiv 2108.05540) draws two random spans of each document. The
Inverse Cloze Task (Lee, Chang & Toutanova 2019, "Latent Retrieval for Weakly Supervised Open Domain
Question Answering") draws a random sentence of a passage as a pseudo-query, and removes it from its
context in 90 % of the examples. Unlike there, one encoder serves query and context, and contexts
have no titles.

Documents are cut once and kept on disk. Draws depend on seed, epoch and document only.
"""

import logging
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, List, Value

from .counter_random import random_keys, uniforms
from .data import BlockBuilder, KeyedBlocks, map_documents

logger = logging.getLogger(__name__)

SpanKind = Literal["sentences", "windows"]
_FEATURES = {
    "input_ids": List(Value("int32")),
    "starts": List(Value("int32")),
    "document": Value("int64"),
}


class CutText(NamedTuple):
    """A text of at least two parts, and the place of its document in the corpus."""

    input_ids: np.ndarray  # (T,) int32, without special tokens
    starts: np.ndarray  # (P,) int32, where its parts begin, the first at 0
    document: int

    def part(self, number: int) -> np.ndarray:
        bounds = [*self.starts, len(self.input_ids)]
        return self.input_ids[bounds[number] : bounds[number + 1]]


class TextCutter:
    """Cuts documents into texts of two or more parts, and leaves out shorter ones.

    Args:
        blocks: its settings give the length of spans and passages.
        kind: "sentences", a document is a text whose parts are blocks of whole sentences;
            "windows", its parts are as few windows of equal length as fit; "passages", each block
            is a text, whose parts are its sentences.
    """

    def __init__(self, blocks: BlockBuilder, kind: Literal["sentences", "windows", "passages"]):
        self.blocks = blocks
        self.kind = kind
        self.fingerprint = f"{kind} {blocks.fingerprint}"

    def build(self, texts: Sequence[str | None], numbers: Sequence[int]) -> list[CutText]:
        return [
            CutText(ids, np.array(starts, dtype=np.int32), number)
            for number, (tokens, lengths) in zip(numbers, self.blocks.tokenize(texts), strict=True)
            if len(tokens)
            for ids, starts in self._cut(tokens, lengths, number)
            if len(starts) > 1
        ]

    def rows(self, texts: Sequence[str | None], numbers: Sequence[int]) -> dict[str, list]:
        cut = self.build(texts, numbers)
        return {name: [getattr(text, name) for text in cut] for name in CutText._fields}

    def _cut(
        self, ids: np.ndarray, lengths: np.ndarray, number: int
    ) -> Iterator[tuple[np.ndarray, Any]]:
        if self.kind == "windows":
            n_windows = -(-len(ids) // self.blocks.room)
            yield ids, [i * len(ids) // n_windows for i in range(n_windows)]
            return
        bounds = [0, *self.blocks.cut(lengths, number)]
        if self.kind == "sentences":
            yield ids, bounds
            return
        sentences = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        for start, end in pairwise([*bounds, len(ids)]):
            own = sentences[(sentences >= start) & (sentences < end)]
            yield ids[start:end], own - start


def cut_documents(
    documents: Dataset, cutter: TextCutter, *, num_proc: int | None = None
) -> tuple[Dataset, dict[str, int]]:
    """Cut a corpus, cached by its content, to a data set with the columns of `CutText`.

    Returns:
        The data set; and the numbers of documents, of those left out because they have one part
        only, and of spans or passages.
    """
    rows = map_documents(documents, cutter, _FEATURES, num_proc)
    if len(rows) == 0:
        raise ValueError(
            f"None of the {len(documents)} documents can be cut in two, so there are no pairs to "
            "contrast. Give whole documents (join_rows puts rows of a sentence together), or "
            "shorter spans (span_length; spans: windows where sentences are not found)."
        )
    columns = rows.select_columns(["starts", "document"]).with_format("arrow")[:]
    n_left_out = len(documents) - pc.count_distinct(columns["document"]).as_py()
    if n_left_out:
        logger.warning(
            "%d of %d documents cannot be cut in two and are left out.", n_left_out, len(documents)
        )
    n_spans = pc.sum(pc.list_value_length(columns["starts"])).as_py()
    made = {"n_passages": len(rows)} if cutter.kind == "passages" else {"n_spans": n_spans}
    return rows, {"n_documents": len(documents), "n_documents_left_out": n_left_out, **made}


class _KeyedTexts(KeyedBlocks):
    """Cut texts on disk. Each gives two neighbouring examples, which `_draw` chooses."""

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        rows = self.blocks[indices]
        texts = zip(rows["input_ids"], rows["starts"], rows["document"], strict=True)
        examples = []
        for text, key in zip(texts, self.keys(indices)[:, None], strict=True):
            pair = self._draw(CutText(*text), uniforms(key, 2)[0])
            mask_keys = random_keys(key, np.arange(2)).tolist()
            for ids, mask_key in zip(pair, mask_keys, strict=True):
                examples.append({"input_ids": ids, "mask_key": mask_key})
        return examples

    def _draw(self, text: CutText, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        raise NotImplementedError


class SpanPairs(_KeyedTexts):
    """Two different spans of each document; every ordered pair is equally likely."""

    def _draw(self, text: CutText, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        first = int(draws[0] * len(text.starts))
        second = int(draws[1] * (len(text.starts) - 1))
        return text.part(first), text.part(second + (second >= first))


class ClozePairs(_KeyedTexts):
    """A random sentence of each passage, cut to `query_room` tokens, and the passage.

    `removal_probability` is the share of the passages without the sentence.
    """

    def __init__(
        self, blocks: Dataset, *, seed: int, query_room: int, removal_probability: float = 0.9
    ):
        super().__init__(blocks, seed=seed)
        self.query_room = query_room
        self.removal_probability = removal_probability

    def _draw(self, text: CutText, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        number = int(draws[0] * len(text.starts))
        query, context = text.part(number), text.input_ids
        if draws[1] < self.removal_probability:
            start = int(text.starts[number])
            context = np.delete(context, np.s_[start : start + len(query)])
        return query[: self.query_room], context
