"""Cut documents into blocks or parts of pairs, and make examples of them.

A block is several whole sentences of one document. As in the reference, sentences are added until
the next one would not fit, and one block in ten has a random shorter length. But a sentence that is
longer than a block is cut into parts that are sentences of their own, so that all of a document is
read, and a document is tokenized in one piece, so that byte-level vocabularies see the blank before
a sentence.
"""

import hashlib
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pyarrow.compute as pc
import torch
from datasets import Dataset, Features, List, Value
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase

from modeling_condenser.collection.rows import join_halves
from modeling_condenser.collection.sentences import sentence_starts

from .collator import special_frame, strip_special, text_length
from .counter_random import EpochKeys, random_keys, uniforms
from .objectives import MakePair

_CHUNK = 256  # documents that are tokenized together, if they are short
# What is held at once is bounded by its size: texts differ in length by a factor of a million.
_CHUNK_CHARACTERS, _READ_BYTES = 1_000_000, 16_000_000
_FINGERPRINTED = 4096  # blocks in a step of the fingerprint, which depends on it
_VERSION = 4  # to increase when the same documents give other blocks


@dataclass
class BlockBuilder:
    """Cuts documents into blocks; the result depends on the seed and the documents only.

    Blocks have at most `max_length` tokens with special ones, which the collator adds. A share of
    `short_block_probability` has a random length below that.

    For pairs, the other kinds make texts of two parts or more: "spans", a document, whose parts are
    its blocks; "passages", a block, even if it is longer than `max_length`, whose parts are its
    sentences. Documents of one part are left out. `make_pair` makes two examples of a text.
    """

    tokenizer: PreTrainedTokenizerBase
    _: KW_ONLY
    max_length: int
    short_block_probability: float = 0.1
    seed: int = 0
    kind: Literal["blocks", "spans", "passages"] = "blocks"
    make_pair: MakePair | None = None

    def __post_init__(self) -> None:
        self.text_length = text_length(self.tokenizer, self.max_length)
        self.n_least = 2 if self.kind == "passages" else 1  # sentences of a block
        self.for_pairs = self.kind != "blocks"
        self.features = Features({"input_ids": List(Value("int32"))})  # without special tokens
        if self.for_pairs:  # where the parts begin, and the document's place in the corpus
            self.features |= {"part_starts": List(Value("int32")), "document": Value("int64")}

    def cut(self, documents: Mapping[str, Sequence], numbers: Sequence[int]) -> dict[str, list]:
        """The blocks or texts of documents as columns.

        Args:
            documents: column `text`, or `input_ids` and perhaps `attention_mask`, of documents
                that were tokenized before; these are cut into blocks of about equal length.
            numbers: their places in the corpus.
        """
        rows: list[tuple] = []
        if "text" in documents:
            texts = [read_text(text) for text in documents["text"]]
            for number, (ids, sentences) in zip(numbers, self._tokenize(texts), strict=True):
                for block, starts in self._split(ids, sentences, number):
                    if len(starts) > 1 or not self.for_pairs:
                        rows.append((block, starts, number))
        else:
            for ids in self._read_tokens(documents):
                n_blocks = -(-len(ids) // self.text_length)
                rows += [(block,) for block in np.array_split(ids, n_blocks or 1) if len(block)]
        return {name: [row[i] for row in rows] for i, name in enumerate(self.features)}

    def _read_tokens(self, documents: Mapping[str, Sequence]) -> Iterator[np.ndarray]:
        """The ids of documents that were tokenized before, without padding and special tokens."""
        frame, padding = special_frame(self.tokenizer), self.tokenizer.pad_token_id
        masks = documents.get("attention_mask", [None] * len(documents["input_ids"]))
        for ids, mask in zip(documents["input_ids"], masks, strict=True):
            yield strip_special(ids, mask, frame=frame, padding=padding).astype(np.int32)

    def _tokenize(self, texts: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The token ids of each document, int32, and where its sentences begin among them."""
        # Arrays, because one document may be a whole library.
        ids, sentences = [array("i") for _ in texts], [array("q") for _ in texts]
        parts: list[tuple[int, str]] = []
        for i, text in enumerate(texts):
            parts += [(i, part) for part in _cut_text(text)]
        for chunk in _in_chunks(parts):
            encoded = self.tokenizer(
                [part for _, part in chunk],
                add_special_tokens=False,
                return_offsets_mapping=True,
                verbose=False,
            )
            columns = (chunk, encoded["input_ids"], encoded["offset_mapping"])
            for (i, part), tokens, offsets in zip(*columns, strict=True):
                spans = np.array(offsets, dtype=np.int64).reshape(-1, 2)
                first = _first_tokens(part, spans).tolist()
                n_before, starts = len(ids[i]), self._cut_sentences(part, spans, first)
                sentences[i].extend(n_before + start for start in starts)
                ids[i].extend(tokens)
        for document in zip(ids, sentences, strict=True):
            yield np.array(document[0], dtype=np.int32), np.array(document[1], dtype=np.int64)

    def _cut_sentences(self, text: str, spans: np.ndarray, sentences: list[int]) -> Iterator[int]:
        """Where sentences begin, and where those that are longer than a block are cut.

        Their parts are about equally long, and begin with a word where the script shows words.
        """
        most = max(
            self.text_length // self.n_least, 1
        )  # so that as many parts as needed fit a block
        for start, end in pairwise([*sentences, len(spans)]):
            yield start
            is_long = end - start > self.text_length
            while is_long and end - start > most:
                n_parts = math.ceil((end - start) / most)
                last = start + math.ceil((end - start) / n_parts)
                start = _last_word(text, spans[: last + 1], (start + last) // 2 + 1)
                yield start

    def _split(
        self, ids: np.ndarray, sentences: np.ndarray, number: int
    ) -> Iterator[tuple[np.ndarray, Sequence[int] | np.ndarray]]:
        """The texts of a document, and where the parts of each begin, the first at 0."""
        if not len(ids):
            return
        cuts = self._cut(sentences.tolist(), len(ids), number)
        if self.kind == "spans":
            yield ids, [0, *cuts]
            return
        parts = np.split(sentences, np.searchsorted(sentences, cuts))
        for start, block, starts in zip([0, *cuts], np.split(ids, cuts), parts, strict=True):
            yield block, starts - start

    def _cut(self, sentences: list[int], n_tokens: int, number: int) -> list[int]:
        """Where all blocks of a document but the first begin."""
        draws = uniforms(random_keys(self.seed, number), 2 * (len(sentences) + 1))[0]
        is_short = draws[::2] < self.short_block_probability
        targets = np.where(
            is_short, 1 + (draws[1::2] * self.text_length).astype(np.int64), self.text_length
        )
        cuts = [0]  # places among the sentences
        for place, end in enumerate([*sentences[1:], n_tokens]):
            is_full = end - sentences[cuts[-1]] > targets[len(cuts) - 1]
            if is_full and place - cuts[-1] >= self.n_least:
                cuts.append(place)
        if len(sentences) - cuts[-1] < self.n_least and len(cuts) > 1:
            # The last sentence takes one of the block before it, or is added to that block.
            last = cuts.pop()
            if last - cuts[-1] > self.n_least:
                cuts.append(last - 1)
        return [sentences[place] for place in cuts[1:]]

    @property
    def fingerprint(self) -> str:
        """Identifies the settings in the name of a cached corpus."""
        settings = (self.text_length, self.short_block_probability, self.seed, self.kind, _VERSION)
        return Hasher.hash((self.tokenizer.backend_tokenizer.to_str(), settings))


def read_text(text: Any) -> str:
    """A text, which may be a number; nothing for None and NaN."""
    if text is not None and not isinstance(text, str | int | float):
        raise ValueError(f"A text is {text!r:.60}, expected one string a row.")
    is_missing = text is None or text != text  # NaN is not itself
    return "" if is_missing else join_halves(str(text))


def _cut_text(text: str) -> Iterator[str]:
    """Parts of a text that is too long to be tokenized at once, cut at blanks if it has any."""
    start = 0
    while len(text) - start > _CHUNK_CHARACTERS:
        end = start + _CHUNK_CHARACTERS
        end = text.rfind(" ", start, end) + 1 or end
        yield text[start:end]
        start = end
    yield text[start:]


def _in_chunks(parts: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """Group numbered parts, so that those of a group are tokenized together."""
    chunk: list[tuple[int, str]] = []
    n_characters = 0
    for number, part in parts:
        chunk.append((number, part))
        n_characters += len(part)
        if len(chunk) == _CHUNK or n_characters >= _CHUNK_CHARACTERS:
            yield chunk
            chunk, n_characters = [], 0
    if chunk:
        yield chunk


def _first_tokens(text: str, spans: np.ndarray) -> np.ndarray:
    """The first token of each sentence that has any; (S,) int64."""
    # The end of a token decides, because it may begin at the blank before its word.
    token_ends = np.maximum(spans[:, 1] - 1, spans[:, 0])
    sentence = np.searchsorted(sentence_starts(text), token_ends, side="right")
    return np.flatnonzero(np.diff(np.maximum.accumulate(sentence), prepend=-1))


def _last_word(text: str, spans: np.ndarray, first: int) -> int:
    """The last token from `first` on that begins a word; the last of all if none does.

    `spans`, (N, 2), are where the tokens begin and end in the text.
    """
    for token in range(len(spans) - 1, first - 1, -1):
        start = int(spans[token, 0])
        if any(map(str.isspace, text[max(start - 1, 0) : start + 1])):
            return token
    return len(spans) - 1


def build_blocks(
    documents: Dataset,
    builder: BlockBuilder,
    *,
    file: str | None = None,
    num_proc: int | None = None,
) -> Dataset:
    """Build the blocks of a corpus, a row each (`BlockBuilder.cut`), in memory or in a file.

    There must be some, else a ValueError is raised.
    """
    n_rows = _READ_BYTES * len(documents.data) // max(documents.data.nbytes, 1)
    blocks = documents.map(
        builder.cut,
        batched=True,
        batch_size=max(1, min(_CHUNK, n_rows)),
        with_indices=True,
        remove_columns=documents.column_names,
        features=builder.features,
        num_proc=num_proc if num_proc and num_proc > 1 else None,
        cache_file_name=file,
        keep_in_memory=file is None,
        new_fingerprint=Hasher.hash((documents._fingerprint, builder.fingerprint)),
        desc="Cutting documents",
    )
    if len(blocks) == 0:
        reason = "has any text"
        if builder.for_pairs:
            reason = "can be cut in two to make a pair: use pretrain/own-text-condenser, give whole"
            reason += " documents (join_rows), or lower max_length"
        raise ValueError(f"None of the {len(documents)} documents {reason}.")
    return blocks


def fingerprint_blocks(blocks: Dataset) -> str:
    """Identify training data: SHA-256 over the lengths and tokens of all blocks (int32)."""
    digest = hashlib.sha256(b"condenser blocks 1")
    for batch in blocks.with_format("arrow").iter(batch_size=_FINGERPRINTED):
        column = batch["input_ids"].combine_chunks()
        for values in (pc.list_value_length(column), column.flatten()):
            digest.update(values.to_numpy(zero_copy_only=False).astype("<i4").tobytes())
    return digest.hexdigest()


class KeyedBlocks(EpochKeys, torch.utils.data.Dataset):
    """Blocks on disk (`input_ids`), each with the key of its masks in this epoch.

    With `make_pair`, a row is a text of two parts or more, which gives two examples.
    """

    def __init__(self, blocks: Dataset, *, seed: int, make_pair: MakePair | None = None):
        super().__init__(seed)
        self.blocks, self.make_pair = blocks.with_format("numpy"), make_pair

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> Any:
        """The example of a row, or both examples of a pair."""
        examples = self.__getitems__([range(len(self))[index]])
        return examples[0] if self.make_pair is None else examples

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        rows = self.blocks[indices]
        keys = self.keys(indices)
        return keyed_examples(
            rows["input_ids"], rows.get("part_starts"), keys=keys, make_pair=self.make_pair
        )


def keyed_examples(
    blocks: Iterable[np.ndarray],
    part_starts: Iterable[np.ndarray] | None = None,
    *,
    keys: np.ndarray,
    make_pair: MakePair | None,
) -> list[dict[str, Any]]:
    """Examples of B blocks, or with `make_pair` two examples of each text, whose parts are given.

    `keys`, (B,) int64, decide masks and pairs.
    """
    if make_pair is None:
        return with_keys(blocks, keys)
    assert part_starts is not None
    texts: list[np.ndarray] = []
    for ids, starts, draws in zip(blocks, part_starts, uniforms(keys, 2), strict=True):
        texts += make_pair(np.split(ids, starts[1:]), draws)
    return with_keys(texts, random_keys(keys[:, None], np.arange(2)).ravel())


class EvaluationBlocks(KeyedBlocks):
    """Blocks with the same masks and pairs in each evaluation."""

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: a data loader that outlives an evaluation counts it as an epoch."""


def with_keys(blocks: Iterable[np.ndarray], keys: np.ndarray) -> list[dict[str, Any]]:
    """Examples for the collator: blocks, and the keys of their masks, (B,)."""
    rows = zip(blocks, keys.tolist(), strict=True)
    return [{"input_ids": ids, "mask_key": key} for ids, key in rows]
