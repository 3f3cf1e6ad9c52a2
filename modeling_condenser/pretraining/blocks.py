"""Documents in, blocks out: runs of whole sentences of at most `max_length` tokens.

Built as the reference builds them: sentences of one document are added until the next would not
fit; one block in ten has a random shorter length, so that short texts are seen too; a block never
crosses documents. A sentence longer than a block stays whole and the collator cuts it to a random
window. One deviation: a document is tokenized in one piece and cut at its sentences, so that a
byte-level vocabulary sees the blank before a sentence; for WordPiece the tokens are the same.
"""

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from datasets import Dataset, Features, IterableDataset, List, Value
from transformers import PreTrainedTokenizerBase

from .collator import special_frame
from .counter_random import random_keys, uniforms
from .sentences import sentence_starts

SHORT_BLOCK_PROBABILITY = 0.1
_CHUNK = 256  # documents that are tokenized together
_SHUFFLE_BUFFER = 10_000  # blocks that a stream is shuffled within
_FINGERPRINTED = 4096  # blocks at once; part of the definition
_RECIPE_VERSION = 1  # changes when the same documents give other blocks


class BlockBuilder:
    """Turns documents into blocks; one seed gives one result, however the work is divided.

    Args:
        tokenizer: a fast tokenizer.
        max_length: longest sequence in tokens, with the special tokens that the collator adds.
        short_block_probability: share of blocks whose length is drawn between 1 and the longest.
        seed: decides which blocks are short.

    Raises:
        ValueError: the tokenizer cannot say where its tokens stand in the text, or `max_length`
            leaves no room for text.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_length: int,
        short_block_probability: float = SHORT_BLOCK_PROBABILITY,
        seed: int = 0,
    ):
        if not tokenizer.is_fast:
            raise ValueError(
                f"{type(tokenizer).__name__} is a slow tokenizer, which cannot say where its "
                "tokens stand in the text: load it with AutoTokenizer (use_fast=True)."
            )
        prefix, suffix = special_frame(tokenizer)
        self.tokenizer = tokenizer
        self.room = max_length - len(prefix) - len(suffix)
        if self.room < 1:
            raise ValueError(f"max_length is {max_length}, which leaves no room for text.")
        self.short_block_probability = short_block_probability
        self.seed = seed

    def build(self, texts: Sequence[str | None], numbers: Sequence[int]) -> list[np.ndarray]:
        """Build the blocks of some documents.

        Args:
            texts: the documents.
            numbers: their places in the corpus, which seed their short blocks.

        Returns:
            Token ids of each block, int32, without special tokens, in the order of the documents.
        """
        blocks: list[np.ndarray] = []
        for number, (ids, lengths) in zip(numbers, self.tokenize(texts), strict=True):
            if len(ids):
                blocks.extend(np.split(ids, self.cut(lengths, number)))
        return blocks

    def tokenize(self, texts: Sequence[str | None]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Tokenize documents whole.

        Yields:
            Token ids of each, int32, and how many tokens each of its sentences has.
        """
        present = [text or "" for text in texts]
        encoded = self.tokenizer(
            present,
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            return_offsets_mapping=True,
            verbose=False,
        )
        for text, ids, offsets in zip(
            present, encoded["input_ids"], encoded["offset_mapping"], strict=True
        ):
            lengths = _sentence_lengths(text, offsets) if ids else np.zeros(0, dtype=np.int64)
            yield np.array(ids, dtype=np.int32), lengths

    def cut(self, lengths: np.ndarray, number: int) -> list[int]:
        """Where a document's blocks but the first begin.

        Args:
            lengths: tokens of each of its sentences.
            number: its place in the corpus, which seeds its short blocks.
        """
        draws = self._drawn_lengths(number, len(lengths))
        cuts: list[int] = []
        total = start = 0
        target = next(draws)
        for length in lengths.tolist():
            if total > start and total + length - start > target:
                cuts.append(total)
                start, target = total, next(draws)
            total += length
        return cuts

    def _drawn_lengths(self, number: int, n_sentences: int) -> Iterator[int]:
        """The lengths that a document's blocks are filled up to, in turn."""
        key = random_keys(self.seed, number)
        draws = uniforms(key, 2 * (n_sentences + 1))[0].tolist()
        for is_short, length in zip(draws[::2], draws[1::2], strict=True):
            short = is_short < self.short_block_probability
            yield 1 + int(length * self.room) if short else self.room

    @property
    def fingerprint(self) -> str:
        """Identifies the blocks that a corpus gives: the cache is kept under it."""
        parts = [
            self.tokenizer.backend_tokenizer.to_str(),
            str((self.room, self.short_block_probability, self.seed, _RECIPE_VERSION)),
        ]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def build_blocks(
    documents: Dataset, builder: BlockBuilder, *, num_proc: int | None = None
) -> Dataset:
    """Build the blocks of a whole corpus, in parallel, cached by the fingerprint of its content.

    Args:
        documents: with a column `text`.
        builder: how to build.
        num_proc: processes to build with.

    Returns:
        A data set with the one column `input_ids`, a block a row.

    Raises:
        ValueError: no document has any text.
    """
    fingerprint = hashlib.sha256(
        f"{documents._fingerprint} {builder.fingerprint}".encode()
    ).hexdigest()[:16]
    blocks = documents.map(
        partial(_map_batch, builder=builder),
        batched=True,
        batch_size=_CHUNK,
        with_indices=True,
        remove_columns=documents.column_names,
        features=Features({"input_ids": List(Value("int32"))}),
        num_proc=num_proc if num_proc and num_proc > 1 else None,
        new_fingerprint=fingerprint,
        desc="Building blocks",
    )
    if len(blocks) == 0:
        raise ValueError(
            f"None of the {len(documents)} documents has any text: the corpus is empty."
        )
    return blocks


def stream_blocks(
    documents: IterableDataset | Iterable[dict[str, Any]],
    builder: BlockBuilder,
    *,
    num_proc: int = 0,
) -> Iterator[np.ndarray]:
    """Build blocks as they are needed, holding a few hundred documents.

    Args:
        documents: each with a `text`.
        builder: how to build.
        num_proc: processes to tokenize with, beside this one; the order does not depend on it.

    Yields:
        The blocks that `build_blocks` gives for the same documents, in its order.
    """
    chunks = _numbered_chunks(documents)
    if num_proc < 1:
        for chunk in chunks:
            yield from builder.build(*chunk)
        return
    with ProcessPoolExecutor(num_proc, initializer=_adopt, initargs=(builder,)) as pool:
        ahead: deque[Future] = deque()
        for chunk in chunks:
            ahead.append(pool.submit(_build_adopted, *chunk))
            if len(ahead) > 2 * num_proc:
                yield from ahead.popleft().result()
        while ahead:
            yield from ahead.popleft().result()


def _numbered_chunks(documents: Iterable[dict[str, Any]]) -> Iterator[tuple[list[str], list[int]]]:
    texts = (document["text"] for document in documents)
    first = 0
    while chunk := list(islice(texts, _CHUNK)):
        yield chunk, list(range(first, first + len(chunk)))
        first += len(chunk)


_adopted: BlockBuilder | None = None  # the builder of a worker process, sent to it once


def _adopt(builder: BlockBuilder) -> None:
    global _adopted
    _adopted = builder


def _build_adopted(texts: list[str], numbers: list[int]) -> list[np.ndarray]:
    assert _adopted is not None
    return _adopted.build(texts, numbers)


def _map_batch(
    batch: dict[str, list[Any]], numbers: list[int], *, builder: BlockBuilder
) -> dict[str, list[np.ndarray]]:
    return {"input_ids": builder.build(batch["text"], numbers)}


def _sentence_lengths(text: str, offsets: list[tuple[int, int]]) -> np.ndarray:
    """Tokens in each sentence that has any; (S,) int64."""
    token_starts = np.array([start for start, _ in offsets])
    # A marker piece may begin at the blank before its word, so a token is where it ends.
    token_ends = np.maximum(np.array([end for _, end in offsets]) - 1, token_starts)
    sentence = np.searchsorted(sentence_starts(text), token_ends, side="right")
    lengths = np.bincount(np.maximum.accumulate(sentence))
    return lengths[lengths > 0]


def fingerprint_blocks(blocks: Dataset) -> str:
    """Identify what is trained on: SHA-256 over each block's length and tokens (int32), in order.

    Args:
        blocks: with a column `input_ids`.
    """
    digest = hashlib.sha256(b"condenser blocks 1")
    for batch in blocks.with_format("arrow").iter(batch_size=_FINGERPRINTED):
        for part in list_bytes(batch["input_ids"]):
            digest.update(part)
    return digest.hexdigest()


def list_bytes(column: pa.ChunkedArray | pa.Array) -> tuple[bytes, bytes]:
    """Lengths and values of a column of lists of integers, as int32, however it is stored."""
    # Data that several processes built comes in several chunks.
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    lengths = pc.list_value_length(whole).to_numpy(zero_copy_only=False)
    values = whole.flatten().to_numpy(zero_copy_only=False)
    return lengths.astype("<i4").tobytes(), values.astype("<i4").tobytes()


class KeyedBlocks(torch.utils.data.Dataset):
    """Blocks on disk, each with the key that decides its masks in the current epoch.

    Args:
        blocks: with a column `input_ids`.
        seed: of the run.
    """

    def __init__(self, blocks: Dataset, *, seed: int):
        self.blocks = blocks.with_format("numpy")
        self.seed = seed
        # Shared, so that workers that outlive an epoch see the next one's number.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        rows = self.blocks[indices]["input_ids"]
        keys = random_keys(self.seed, int(self._epoch), np.array(indices))
        return [
            {"input_ids": ids, "mask_key": key}
            for ids, key in zip(rows, keys.tolist(), strict=True)
        ]


class StreamedBlocks(torch.utils.data.IterableDataset):
    """Blocks built while they are read, shuffled within a buffer, with their mask keys.

    The reading process makes the order, so it does not depend on `num_proc`. Give it to a data
    loader without workers: the processes that tokenize are its own.

    Args:
        documents: streamed, each with a `text`.
        builder: how to build blocks.
        seed: of the run; decides order and masks.
        num_proc: processes to tokenize with, beside the reading one.
        buffer_size: blocks to shuffle within; they are what is held in memory.
    """

    def __init__(
        self,
        documents: IterableDataset,
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
        worker = torch.utils.data.get_worker_info()
        if worker is not None and worker.num_workers > 1:
            raise ValueError(
                f"A stream of blocks was given to {worker.num_workers} data-loader workers, each "
                "of which would read all of it: set dataloader_num_workers=0 and num_proc here."
            )
        keyed = (
            {"input_ids": ids, "mask_key": int(random_keys(self.seed, self.epoch, number)[0])}
            for number, ids in enumerate(
                stream_blocks(self.documents, self.builder, num_proc=self.num_proc)
            )
        )
        rng = np.random.default_rng([self.seed, self.epoch])
        buffer: list[dict[str, Any]] = []
        for block in keyed:
            if len(buffer) < self.buffer_size:
                buffer.append(block)
                continue
            place = int(rng.integers(self.buffer_size))
            buffer[place], block = block, buffer[place]
            yield block
        for place in rng.permutation(len(buffer)):
            yield buffer[place]
