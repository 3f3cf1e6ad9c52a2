"""Documents become blocks: runs of whole sentences of at most `max_length` tokens.

As in the reference, sentences of one document are added until the next would not fit, one block in
ten has a random shorter length, and a longer sentence stays whole (the collator cuts it). But a
document is tokenized in one piece, so that byte-level vocabularies see the blank before a sentence.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch
from datasets import Dataset, Features, List, Value
from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase

from .collator import special_frame
from .counter_random import random_keys, uniforms

_CHUNK = 256  # documents that are tokenized together
_SHUFFLE_BUFFER = 10_000  # blocks that a stream is shuffled within
_FINGERPRINTED = 4096  # blocks at once; part of the definition
_VERSION = 1  # changes when the same documents give other blocks
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


class BlockBuilder:
    """Turns documents into blocks; the result depends on the seed and the documents only.

    Args:
        tokenizer: a fast tokenizer.
        max_length: longest sequence in tokens, with the special tokens that the collator adds.
        short_block_probability: share of blocks whose length is drawn between 1 and the longest.
        seed: decides which blocks are short.

    Raises:
        ValueError: `max_length` leaves no room for text.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_length: int,
        short_block_probability: float = 0.1,
        seed: int = 0,
    ):
        self.tokenizer = tokenizer
        self.room = max_length - sum(map(len, special_frame(tokenizer)))
        if self.room < 1:
            raise ValueError(f"max_length is {max_length}, which leaves no room for text.")
        self.short_block_probability = short_block_probability
        self.seed = seed

    def build(self, texts: Sequence[str | None], numbers: Sequence[int]) -> list[np.ndarray]:
        """The blocks of documents, int32 ids without special tokens.

        `numbers`, the places of the documents in the corpus, seed their short blocks.
        """
        blocks: list[np.ndarray] = []
        for number, (ids, lengths) in zip(numbers, self.tokenize(texts), strict=True):
            if len(ids):
                blocks.extend(np.split(ids, self.cut(lengths, number)))
        return blocks

    def __getitem__(self, chunk: tuple[Sequence[str | None], Sequence[int]]) -> list[np.ndarray]:
        return self.build(*chunk)

    def rows(self, texts: Sequence[str | None], numbers: Sequence[int]) -> dict[str, list]:
        return {"input_ids": self.build(texts, numbers)}

    def tokenize(self, texts: Sequence[str | None]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The token ids of each document, int32, and how many tokens each of its sentences has."""
        present = [text or "" for text in texts]
        options = {"add_special_tokens": False, "return_offsets_mapping": True, "verbose": False}
        encoded = self.tokenizer(present, **options)
        columns = (present, encoded["input_ids"], encoded["offset_mapping"])
        for text, ids, offsets in zip(*columns, strict=True):
            lengths = _sentence_lengths(text, offsets) if ids else np.zeros(0, dtype=np.int64)
            yield np.array(ids, dtype=np.int32), lengths

    def cut(self, lengths: np.ndarray, number: int) -> list[int]:
        """Where all blocks of a document but the first begin, by the lengths of its sentences."""
        draws = uniforms(random_keys(self.seed, number), 2 * (len(lengths) + 1))[0]
        is_short = draws[::2] < self.short_block_probability
        targets = np.where(is_short, 1 + (draws[1::2] * self.room).astype(np.int64), self.room)
        cuts: list[int] = []
        total = start = 0
        for length in lengths.tolist():
            if total > start and total + length - start > targets[len(cuts)]:
                cuts.append(total)
                start = total
            total += length
        return cuts

    @property
    def fingerprint(self) -> str:
        """Identifies what a corpus is built into: the cache is kept under it."""
        settings = str((self.room, self.short_block_probability, self.seed, _VERSION))
        text = f"{self.tokenizer.backend_tokenizer.to_str()}\n{settings}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def _sentence_lengths(text: str, offsets: list[tuple[int, int]]) -> np.ndarray:
    """Tokens in each sentence that has any; (S,) int64."""
    spans = np.array(offsets)
    # A marker piece may begin at the blank before its word, so a token is where it ends.
    token_ends = np.maximum(spans[:, 1] - 1, spans[:, 0])
    sentence = np.searchsorted(sentence_starts(text), token_ends, side="right")
    lengths = np.bincount(np.maximum.accumulate(sentence))
    return lengths[lengths > 0]


def build_blocks(
    documents: Dataset, builder: BlockBuilder, *, num_proc: int | None = None
) -> Dataset:
    """Build the blocks of a corpus, cached by its content: `input_ids`, a block a row.

    Raises:
        ValueError: no document has any text.
    """
    blocks = map_documents(documents, builder, {"input_ids": List(Value("int32"))}, num_proc)
    if len(blocks) == 0:
        raise ValueError(
            f"None of the {len(documents)} documents has any text: the corpus is empty."
        )
    return blocks


def map_documents(
    documents: Dataset, builder: Any, features: dict[str, Any], num_proc: int | None
) -> Dataset:
    """Apply `builder.rows` to a corpus; the cache depends on `builder.fingerprint`."""
    key = f"{documents._fingerprint} {builder.fingerprint}"
    return documents.map(
        lambda batch, numbers: builder.rows(batch["text"], numbers),
        batched=True,
        batch_size=_CHUNK,
        with_indices=True,
        remove_columns=documents.column_names,
        features=Features(features),
        num_proc=num_proc if num_proc and num_proc > 1 else None,
        new_fingerprint=hashlib.sha256(key.encode()).hexdigest()[:16],
        desc="Cutting documents",
    )


def fingerprint_blocks(blocks: Dataset) -> str:
    """Identify what is trained on: SHA-256 over each block's length and tokens (int32)."""
    digest = hashlib.sha256(b"condenser blocks 1")
    for batch in blocks.with_format("arrow").iter(batch_size=_FINGERPRINTED):
        column = batch["input_ids"].combine_chunks()
        for values in (pc.list_value_length(column), column.flatten()):
            digest.update(values.to_numpy(zero_copy_only=False).astype("<i4").tobytes())
    return digest.hexdigest()


class KeyedBlocks(torch.utils.data.Dataset):
    """Blocks on disk (`input_ids`), each with the key of its masks in this epoch."""

    def __init__(self, blocks: Dataset, *, seed: int):
        self.blocks = blocks.with_format("numpy")
        self.seed = seed
        # Shared, so that workers that outlive an epoch see the next one's number.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    def keys(self, indices: Sequence[int]) -> np.ndarray:
        return random_keys(self.seed, int(self._epoch), np.array(indices))

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        rows = self.blocks[indices]["input_ids"]
        keys = self.keys(indices).tolist()
        return [{"input_ids": i, "mask_key": key} for i, key in zip(rows, keys, strict=True)]


class StreamedBlocks(torch.utils.data.IterableDataset):
    """Blocks built while they are read, with their mask keys, shuffled within a buffer.

    Give it to a data loader without workers: it has `num_proc` processes of its own, on whose
    number the order does not depend.
    """

    def __init__(
        self,
        documents: Iterable[dict[str, Any]],
        builder: BlockBuilder,
        *,
        seed: int,
        num_proc: int = 0,
        buffer_size: int = _SHUFFLE_BUFFER,
    ):
        self.documents = documents
        self.builder = builder
        self.seed = seed
        self.num_proc = num_proc
        self.buffer_size = buffer_size
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield a random block of the buffer for each one that is read."""
        rng = np.random.default_rng([self.seed, self.epoch])
        buffer: list[dict[str, Any]] = []
        for number, ids in enumerate(self.build()):
            key = int(random_keys(self.seed, self.epoch, number)[0])
            block = {"input_ids": ids, "mask_key": key}
            if len(buffer) < self.buffer_size:
                buffer.append(block)
                continue
            place = int(rng.integers(self.buffer_size))
            buffer[place], block = block, buffer[place]
            yield block
        for place in rng.permutation(len(buffer)):
            yield buffer[place]

    def build(self) -> Iterator[np.ndarray]:
        """The blocks in the order of `build_blocks`."""
        chunks = DataLoader(
            self.builder,  # type: ignore[arg-type]
            batch_size=None,
            sampler=self._numbered_chunks(),
            num_workers=self.num_proc,
            collate_fn=list,
            generator=torch.Generator(),  # leaves the global one as it is
        )
        for blocks in chunks:
            yield from blocks

    def _numbered_chunks(self) -> Iterator[tuple[list[str | None], range]]:
        texts = (document["text"] for document in self.documents)
        first = 0
        while chunk := list(islice(texts, _CHUNK)):
            yield chunk, range(first, first + len(chunk))
            first += len(chunk)
