"""Documents in, pairs of spans out: two random spans of each document, others in each epoch.

A span is a run of whole sentences of one document, or a window of it; two of one document are
siblings. coCondenser (Gao & Callan 2021, arXiv 2108.05540) draws two random spans of each document
and contrasts them with all others of the batch. Cutting is done once and kept on disk,
memory-mapped; drawing is a function of seed, epoch and document alone, so that workers, batch sizes
and restarts change nothing.
"""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, Features, List, Value

from .blocks import BlockBuilder, KeyedBlocks, list_bytes
from .collator import CondenserDataCollator
from .counter_random import random_keys, uniforms

logger = logging.getLogger(__name__)

SpanKind = Literal["sentences", "windows"]
_CHUNK = 256  # documents that are tokenized together
_FINGERPRINTED = 4096  # rows at once; part of the definition
_FEATURES = Features(
    {"input_ids": List(Value("int32")), "starts": List(Value("int32")), "document": Value("int64")}
)


class CutText(NamedTuple):
    """A text of at least two parts.

    Attributes:
        input_ids: (T,) int32 tokens, without special ones.
        starts: (P,) int32 where its parts begin, the first at 0.
        document: place of its document in the corpus.
    """

    input_ids: np.ndarray
    starts: np.ndarray
    document: int

    def part(self, number: int) -> np.ndarray:
        """Tokens of a part."""
        bounds = [*self.starts, len(self.input_ids)]
        return self.input_ids[bounds[number] : bounds[number + 1]]


class Cutter(Protocol):
    """Cuts documents; one seed gives one result, however the work is divided."""

    def build(self, texts: Sequence[str | None], numbers: Sequence[int]) -> list[CutText]:
        """Cut documents, whose places in the corpus are `numbers`."""

    @property
    def fingerprint(self) -> str:
        """Identifies what a corpus is cut into: the cache is kept under it."""


class SpanBuilder:
    """Cuts documents into spans, and leaves out those with fewer than two.

    Args:
        blocks: whose blocks are the spans of kind "sentences", and whose length bounds the others.
        kind: "sentences" for runs of whole sentences, filled up as blocks are; "windows" for
            windows of equal length, as few as do, which may cut a sentence, for text without any.
    """

    def __init__(self, blocks: BlockBuilder, *, kind: SpanKind = "sentences"):
        self.blocks = blocks
        self.kind = kind

    def build(self, texts: Sequence[str | None], numbers: Sequence[int]) -> list[CutText]:
        cut = []
        for number, (ids, lengths) in zip(numbers, self.blocks.tokenize(texts), strict=True):
            starts = self._starts(len(ids), lengths, number)
            if len(starts) > 1:
                cut.append(CutText(ids, np.array(starts, dtype=np.int32), number))
        return cut

    def _starts(self, n_tokens: int, lengths: np.ndarray, number: int) -> list[int]:
        if n_tokens == 0:
            return []
        if self.kind == "sentences":
            return [0, *self.blocks.cut(lengths, number)]
        n_windows = -(-n_tokens // self.blocks.room)
        return [i * n_tokens // n_windows for i in range(n_windows)]

    @property
    def fingerprint(self) -> str:
        return f"spans {self.kind} {self.blocks.fingerprint}"


def build_cut_texts(
    documents: Dataset, cutter: Cutter, *, num_proc: int | None = None
) -> tuple[Dataset, dict[str, Any]]:
    """Cut a whole corpus, in parallel, cached by the fingerprint of its content.

    Args:
        documents: with a column `text`.
        cutter: how to cut.
        num_proc: processes to cut with.

    Returns:
        A data set with the columns of `CutText`, a text a row; and facts for the run's record:
        how many documents there are, how many were left out for want of a second part, and a
        SHA-256 of what is left.

    Raises:
        ValueError: no document has two parts.
    """
    fingerprint = hashlib.sha256(
        f"{documents._fingerprint} {cutter.fingerprint}".encode()
    ).hexdigest()[:16]
    rows = documents.map(
        partial(_map_batch, cutter=cutter),
        batched=True,
        batch_size=_CHUNK,
        with_indices=True,
        remove_columns=documents.column_names,
        features=_FEATURES,
        num_proc=num_proc if num_proc and num_proc > 1 else None,
        new_fingerprint=fingerprint,
        desc="Cutting documents",
    )
    if len(rows) == 0:
        raise ValueError(
            f"None of the {len(documents)} documents can be cut in two, so there are no pairs to "
            "contrast. Give whole documents (join_rows puts rows of a sentence together), or "
            "shorter spans (span_length; spans: windows where sentences are not found)."
        )
    used = rows.select_columns(["document"]).with_format("arrow")[:]["document"]
    n_used = pc.count_distinct(used).as_py()
    n_left_out = len(documents) - n_used
    if n_left_out:
        logger.warning(
            "%d of %d documents cannot be cut in two and are left out.", n_left_out, len(documents)
        )
    return rows, {
        "n_documents": len(documents),
        "n_documents_left_out": n_left_out,
        "pairs_sha256": _fingerprint_rows(rows),
    }


def _map_batch(
    batch: dict[str, list[Any]], numbers: list[int], *, cutter: Cutter
) -> dict[str, list[Any]]:
    cut = cutter.build(batch["text"], numbers)
    return {name: [getattr(text, name) for text in cut] for name in CutText._fields}


def count_parts(rows: Dataset) -> int:
    """How many parts cut texts have in all."""
    starts = rows.select_columns(["starts"]).with_format("arrow")[:]["starts"]
    return pc.sum(pc.list_value_length(starts)).as_py()


def _fingerprint_rows(rows: Dataset) -> str:
    """SHA-256 over each text's tokens and where its parts begin (int32), in order."""
    digest = hashlib.sha256(b"condenser cut texts 1")
    for batch in rows.with_format("arrow").iter(batch_size=_FINGERPRINTED):
        for name in ("input_ids", "starts"):
            for part in list_bytes(batch[name]):
                digest.update(part)
    return digest.hexdigest()


class KeyedCutTexts(KeyedBlocks):
    """Cut texts on disk; what is drawn from each is said by subclasses, from keys of the epoch.

    Args:
        blocks: the rows, with the columns of `CutText`.
        seed: of the run.
    """

    def draw(self, text: CutText, key: np.ndarray) -> dict[str, Any]:
        """The example of a text. `key`: (1,) of this text in this epoch."""
        raise NotImplementedError

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        rows = self.blocks[indices]
        keys = random_keys(self.seed, int(self._epoch), np.array(indices))
        texts = zip(rows["input_ids"], rows["starts"], rows["document"], strict=True)
        return [
            self.draw(CutText(*text), key) for text, key in zip(texts, keys[:, None], strict=True)
        ]


class SpanPairs(KeyedCutTexts):
    """Two different spans of each document, at random, with the keys that decide their masks."""

    def draw(self, text: CutText, key: np.ndarray) -> dict[str, Any]:
        first, second = _two_of(len(text.starts), uniforms(key, 2)[0])
        return {
            "texts": [text.part(first), text.part(second)],
            "mask_keys": random_keys(key, np.arange(2)).tolist(),
        }


def _two_of(n: int, draws: np.ndarray) -> tuple[int, int]:
    """Two different numbers below n, every ordered pair as likely as any other."""
    first = int(draws[0] * n)
    second = int(draws[1] * (n - 1))
    return first, second + (second >= first)


class SpanPairCollator:
    """Masks the spans of N documents, and pads or packs them as 2N blocks, siblings side by side.

    Args:
        collator: for blocks.
    """

    def __init__(self, collator: CondenserDataCollator):
        self.collator = collator
        self.tokenizer = collator.tokenizer

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Make a batch of `SpanPairs` examples; see `CondenserDataCollator`."""
        return self.collator(
            [
                {"input_ids": ids, "mask_key": key}
                for example in examples
                for ids, key in zip(example["texts"], example["mask_keys"], strict=True)
            ]
        )
