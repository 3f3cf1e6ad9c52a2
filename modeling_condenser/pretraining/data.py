"""Cut documents into blocks, and make examples of blocks.

A block is several whole sentences of one document. As in the reference, sentences are added until
the next one would not fit, one block in ten has a random shorter length, and a longer sentence is
not split (the collator cuts it). But a document is tokenized in one piece, so that byte-level
vocabularies see the blank before a sentence.

For a contrast, a text gives two examples. coCondenser (Gao & Callan 2021, arXiv 2108.05540) draws
two random spans of each document. The Inverse Cloze Task (Lee, Chang & Toutanova 2019, "Latent
Retrieval for Weakly Supervised Open Domain Question Answering") draws a random sentence of a
passage as a pseudo-query, and removes it from its context in 90 % of the examples. Unlike in that
paper, one encoder serves query and context, and contexts have no titles.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache
from itertools import chain, count, islice, pairwise
from typing import Any, Literal

import numpy as np
import pyarrow.compute as pc
import torch
from datasets import (
    Dataset,
    Features,
    List,
    Value,
)
from datasets.fingerprint import Hasher
from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase

from .collator import text_room
from .counter_random import EpochKeys, random_keys, uniforms

_CHUNK = 256  # documents that are tokenized together
_FINGERPRINTED = 4096  # blocks in a step of the fingerprint, which depends on it
_VERSION = 1  # to increase when the same documents give other blocks
_ABBREVIATIONS = frozenset(
    "a.m al approx apr aug bros ca cf cm co corp dec dept dr e.g ed eds eq eqs etc feb fig figs "
    "gen i.e inc jan jr km lt ltd mar mm mr mrs ms mt no nos nov nr oct op p.m pp prof ref rev sec "
    "sen sept sr st u.k u.n u.s univ viz vol vols vs".split()
)


@cache
def _splitter() -> PunktSentenceTokenizer:
    """Punkt (Kiss & Strunk 2006) with common abbreviations instead of NLTK's downloaded model."""
    parameters = PunktParameters()
    parameters.abbrev_types = set(_ABBREVIATIONS)
    return PunktSentenceTokenizer(parameters)


def sentence_starts(text: str) -> list[int]:
    """Character offsets at which the sentences of a text begin; empty for a blank text.

    Example:
        >>> sentence_starts("Dr. Smith left. It rained.")
        [0, 16]
    """
    return [start for start, _ in _splitter().span_tokenize(text)]


@dataclass
class BlockBuilder:
    """Cuts documents into blocks; the result depends on the seed and the documents only.

    Blocks have at most `max_length` tokens with the special ones, which the collator adds. A share
    of `short_block_probability` has a random length below that.

    For pairs, the other kinds make texts of two parts or more, and omit shorter ones: "sentences",
    a document, whose parts are its blocks; "windows", a document, whose parts are as few windows of
    equal length as fit; "passages", a block, whose parts are its sentences.
    """

    tokenizer: PreTrainedTokenizerBase
    _: KW_ONLY
    max_length: int
    short_block_probability: float = 0.1
    seed: int = 0
    kind: Literal["blocks", "sentences", "windows", "passages"] = "blocks"

    def __post_init__(self) -> None:
        self.room = text_room(self.tokenizer, self.max_length)
        self.features = Features({"input_ids": List(Value("int32"))})  # without special tokens
        if self.kind != "blocks":  # where the parts begin, and the document's place in the corpus
            self.features |= {"starts": List(Value("int32")), "document": Value("int64")}

    def rows(self, texts: Sequence[str | None], numbers: Sequence[int]) -> dict[str, list]:
        """The blocks or texts of documents as columns; `numbers` are their places in the corpus."""
        n_least = 1 if self.kind == "blocks" else 2
        found = [
            (ids, starts, number)
            for number, document in zip(numbers, self._tokenize(texts), strict=True)
            for ids, starts in self._split(*document, number)
            if len(starts) >= n_least
        ]
        return {name: [row[i] for row in found] for i, name in enumerate(self.features)}

    def __getitem__(self, chunk: Sequence[tuple[str | None, int]]) -> list[np.ndarray]:
        """The blocks of documents and their numbers."""
        return self.rows(*zip(*chunk, strict=True))["input_ids"]

    def _tokenize(self, texts: Sequence[str | None]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The token ids of each document, int32, and where its sentences begin among them."""
        present = [text or "" for text in texts]
        options: dict[str, Any] = {"add_special_tokens": False, "return_offsets_mapping": True}
        encoded = self.tokenizer(present, verbose=False, **options)
        columns = (present, encoded["input_ids"], encoded["offset_mapping"])
        for text, ids, offsets in zip(*columns, strict=True):
            yield np.array(ids, dtype=np.int32), _first_tokens(text, offsets)

    def _split(
        self, ids: np.ndarray, sentences: np.ndarray, number: int
    ) -> Iterator[tuple[np.ndarray, Sequence[int] | np.ndarray]]:
        """The texts of a document, and where the parts of each begin, the first at 0."""
        if self.kind == "windows":
            n_windows = -(-len(ids) // self.room)
            yield ids, [i * len(ids) // n_windows for i in range(n_windows)]
            return
        cuts = self._cut(sentences.tolist(), len(ids), number)
        if self.kind == "sentences":
            yield ids, [0, *cuts]
            return
        parts = np.split(sentences, np.searchsorted(sentences, cuts))
        for start, block, starts in zip([0, *cuts], np.split(ids, cuts), parts, strict=True):
            yield block, starts - start

    def _cut(self, sentences: list[int], n_tokens: int, number: int) -> list[int]:
        """Where all blocks of a document but the first begin."""
        draws = uniforms(random_keys(self.seed, number), 2 * (len(sentences) + 1))[0]
        is_short = draws[::2] < self.short_block_probability
        targets = np.where(is_short, 1 + (draws[1::2] * self.room).astype(np.int64), self.room)
        cuts: list[int] = []
        first = 0  # token of the block
        for start, end in pairwise([*sentences, n_tokens]):
            if start > first and end - first > targets[len(cuts)]:
                cuts.append(start)
                first = start
        return cuts

    @property
    def fingerprint(self) -> str:
        """Identifies the settings in the name of a cached corpus."""
        settings = (self.room, self.short_block_probability, self.seed, self.kind, _VERSION)
        return Hasher.hash((self.tokenizer.backend_tokenizer.to_str(), settings))


def _first_tokens(text: str, offsets: list[tuple[int, int]]) -> np.ndarray:
    """The first token of each sentence that has any; (S,) int64."""
    spans = np.array(offsets, dtype=np.int64).reshape(-1, 2)
    # The end of a token decides, because it may begin at the blank before its word.
    token_ends = np.maximum(spans[:, 1] - 1, spans[:, 0])
    sentence = np.searchsorted(sentence_starts(text), token_ends, side="right")
    return np.flatnonzero(np.diff(np.maximum.accumulate(sentence), prepend=-1))


def build_blocks(
    documents: Dataset, builder: BlockBuilder, *, num_proc: int | None = None
) -> Dataset:
    """Build the blocks of a corpus, a row each, cached by its content (`BlockBuilder.rows`)."""
    blocks = documents.map(
        builder.rows,
        input_columns="text",
        batched=True,
        batch_size=_CHUNK,
        with_indices=True,
        remove_columns=documents.column_names,
        features=builder.features,
        num_proc=num_proc if num_proc and num_proc > 1 else None,
        new_fingerprint=Hasher.hash((documents._fingerprint, builder.fingerprint)),
        desc="Cutting documents",
    )
    if len(blocks) == 0:
        problem = "has any text: the corpus is empty."
        if builder.kind != "blocks":
            problem = (
                "can be cut in two to make a pair: use pretrain/own-text-condenser, or give whole "
                "documents (join_rows)"
            )
            is_ict = builder.kind == "passages"
            problem += "." if is_ict else ", or shorter spans (span_length; spans: windows)."
        raise ValueError(f"None of the {len(documents)} documents {problem}")
    return blocks


def fingerprint_blocks(blocks: Dataset) -> str:
    """Identify training data: SHA-256 over the lengths and tokens of all blocks (int32)."""
    digest = hashlib.sha256(b"condenser blocks 1")
    for batch in blocks.with_format("arrow").iter(batch_size=_FINGERPRINTED):
        column = batch["input_ids"].combine_chunks()
        for values in (pc.list_value_length(column), column.flatten()):
            digest.update(values.to_numpy(zero_copy_only=False).astype("<i4").tobytes())
    return digest.hexdigest()


Draw = Callable[[list[np.ndarray], np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Makes a pair from the parts of a text, a new list, and two random numbers in [0, 1)."""


class KeyedBlocks(EpochKeys, torch.utils.data.Dataset):
    """Blocks on disk (`input_ids`), each with the key of its masks in this epoch.

    With `draw`, a row is a text of two parts or more, which gives two examples.
    """

    def __init__(self, blocks: Dataset, *, seed: int, draw: Draw | None = None):
        super().__init__(seed)
        self.blocks, self.draw = blocks.with_format("numpy"), draw

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> Any:
        """The example of a row, or both examples of a pair."""
        examples = self.__getitems__([range(len(self))[index]])
        return examples[0] if self.draw is None else examples

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        rows, keys = self.blocks[indices], self.keys(indices)
        if self.draw is None:
            return with_keys(rows["input_ids"], keys)
        columns = (rows["input_ids"], rows["starts"], uniforms(keys, 2))
        texts = [
            text
            for ids, starts, draws in zip(*columns, strict=True)
            for text in self.draw(np.split(ids, starts[1:]), draws)
        ]
        return with_keys(texts, random_keys(keys[:, None], np.arange(2)).ravel())


class EvaluationBlocks(KeyedBlocks):
    """Blocks with the same masks and pairs in each evaluation."""

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: a data loader that outlives an evaluation counts it as an epoch."""


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


def with_keys(blocks: Iterable[np.ndarray], keys: np.ndarray) -> list[dict[str, Any]]:
    """Examples for the collator: blocks, and the keys of their masks, (B,)."""
    rows = zip(blocks, keys.tolist(), strict=True)
    return [{"input_ids": ids, "mask_key": key} for ids, key in rows]


@dataclass(eq=False)
class StreamedBlocks(torch.utils.data.IterableDataset):
    """Blocks built while they are read, with their mask keys, shuffled within a buffer.

    The epochs follow each other without an end, because the Trainer resumes by counting batches.
    The order does not depend on `num_proc`, the processes that tokenize. The data loader that reads
    the blocks must have no workers.
    """

    documents: Iterable[dict[str, Any]]
    builder: BlockBuilder
    _: KW_ONLY
    seed: int
    num_proc: int = 0
    buffer_size: int = 10_000  # blocks to shuffle among each other

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for epoch in count():
            blocks = self.read_epoch(epoch)
            if (first := next(blocks, None)) is None:
                raise ValueError("None of the documents has any text: the corpus is empty.")
            yield from chain([first], blocks)

    def read_epoch(self, epoch: int) -> Iterator[dict[str, Any]]:
        """All blocks once: a random one of the buffer for each one that is read."""
        rng = np.random.default_rng([self.seed, epoch])
        buffer: list[dict[str, Any]] = []
        for number, ids in enumerate(self._build()):
            [block] = with_keys([ids], random_keys(self.seed, epoch, number))
            if len(buffer) < self.buffer_size:
                buffer.append(block)
                continue
            place = int(rng.integers(self.buffer_size))
            buffer[place], block = block, buffer[place]
            yield block
        for place in rng.permutation(len(buffer)):
            yield buffer[place]

    def _build(self) -> Iterator[np.ndarray]:
        """The blocks in the order of `build_blocks`."""
        numbered = ((document["text"], number) for number, document in enumerate(self.documents))
        chunks: DataLoader = DataLoader(
            self.builder,  # type: ignore[arg-type]
            batch_size=None,
            sampler=iter(lambda: list(islice(numbered, _CHUNK)), []),  # type: ignore[arg-type]
            num_workers=self.num_proc,
            collate_fn=list,
            generator=torch.Generator(),  # so that the global one is not used
        )
        return chain.from_iterable(chunks)
