"""Whole-word masking of a batch, without a loop over its tokens.

The budget is the reference implementation's: of a block of n tokens, without CLS and SEP,
max(1, round(0.15 n)) are masked, as whole words in random order, skipping a word that no longer
fits; then 80 % of them become [MASK], 10 % a random token, 10 % stay (Devlin et al. 2019, which
Condenser follows in section 3.3).

A word is a run of characters between blanks, split at punctuation, and each CJK character by
itself, as for BERT's pre-tokenizer. WordPiece marks the pieces that continue a word (`##ing`);
byte-level BPE and SentencePiece mark those that follow a blank (`Ġword`, `▁word`).
"""

import json
import unicodedata
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from transformers import PreTrainedTokenizerBase

from .counter_random import permutations, uniforms_at

IGNORE_INDEX = -100
# Streams of a block's key, so that the draws of different steps are independent.
WINDOW_STREAM, ORDER_STREAM, FATE_STREAM, REPLACEMENT_STREAM, HEAD_STREAM = range(5)

_WORDS_AT_ONCE = 32
_SPECIAL, _STARTS, _ENDS, _BARE_MARKER = 1, 2, 4, 8
_METASPACE, _BYTE_LEVEL_SPACE = "▁", "Ġ"
_CJK_RANGES = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2FA1F))


@dataclass(frozen=True)
class WordStarts:
    """What cuts blocks into words.

    Attributes:
        marks: (V,) uint8 flags of each token: `_SPECIAL` for tokens outside words, `_STARTS` for
            those that begin a word, `_ENDS` for those after which a word begins, `_BARE_MARKER` for
            a marker alone, which belongs to the word after it.
    """

    marks: np.ndarray

    @cached_property
    def special(self) -> np.ndarray:
        """(V,) bool: tokens that are never masked."""
        return self.marks & _SPECIAL != 0

    @cached_property
    def _all_marks(self) -> int:
        return int(np.bitwise_or.reduce(self.marks))

    def number_words(self, ids: np.ndarray, is_text: np.ndarray) -> np.ndarray:
        """(B, T) int64: each token's word, counted from 0 in each row; -1 outside words.

        Args:
            ids: (B, T) token ids.
            is_text: (B, T) bool, False at padding and added special tokens.
        """
        marks = self.marks.take(ids)
        in_word = is_text & (marks & _SPECIAL == 0)
        begins = marks & _STARTS != 0
        before = marks[:, :-1]
        if self._all_marks & _BARE_MARKER:
            begins[:, 1:] &= before & _BARE_MARKER == 0
        if self._all_marks & _ENDS:
            begins[:, 1:] |= before & _ENDS != 0
        # The first token, and one after a token outside words, always begin a word.
        begins[:, :1] = True
        begins[:, 1:] |= ~in_word[:, :-1]
        begins &= in_word
        words = np.cumsum(begins, axis=1)
        words *= in_word
        words -= 1
        return words


def find_word_starts(tokenizer: PreTrainedTokenizerBase) -> WordStarts:
    """Read from a tokenizer which of its tokens begin a word.

    Raises:
        ValueError: the tokenizer is not a fast WordPiece, byte-level BPE or SentencePiece one.
    """
    kind, prefix = _marking(tokenizer)
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    special = set(tokenizer.all_special_ids)
    marks = np.zeros(len(tokens), dtype=np.uint8)
    for i, token in enumerate(tokens):
        if i in special:
            marks[i] = _SPECIAL
        elif token is not None:
            marks[i] = _marks_of(token, kind, prefix)
    return WordStarts(marks)


def _marks_of(token: str, kind: str, prefix: str) -> int:
    if kind == "WordPiece":
        return 0 if token.startswith(prefix) else _STARTS
    text = _byte_level_text(token) if kind == "ByteLevel" else token
    text = text.replace(_METASPACE, " ").strip()
    starts = token.startswith(prefix) or not text or _stands_alone(text[0])
    if token == prefix:
        return _BARE_MARKER | _STARTS
    ends = not text or _stands_alone(text[-1])
    return _STARTS * starts | _ENDS * ends


def _marking(tokenizer: PreTrainedTokenizerBase) -> tuple[str, str]:
    """A vocabulary's kind, and the prefix of its marked tokens."""
    name = type(tokenizer).__name__
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise ValueError(
            f"{name} is not backed by the tokenizers library, so its words are not known: load it "
            "with AutoTokenizer (use_fast=True)."
        )
    spec = json.loads(tokenizer.backend_tokenizer.to_str())
    model = spec["model"]
    if model["type"] == "WordPiece":
        return "WordPiece", model["continuing_subword_prefix"]
    parts = json.dumps([spec.get("pre_tokenizer"), spec.get("decoder")])
    if '"ByteLevel"' in parts:
        return "ByteLevel", _BYTE_LEVEL_SPACE
    # SentencePiece conversions without a Metaspace part replace blanks in the normalizer.
    normalizer = json.dumps(spec.get("normalizer"), ensure_ascii=False)
    if '"Metaspace"' in parts or _METASPACE in normalizer:
        return "Metaspace", _METASPACE
    raise ValueError(
        f"{name} marks words in no known way (model {model['type']}): whole-word masking knows "
        "WordPiece, byte-level BPE and SentencePiece vocabularies."
    )


def _byte_level_text(token: str) -> str:
    """The text of a byte-level token; bytes that are no whole character become U+FFFD."""
    codes = [_BYTE_OF.get(character) for character in token]
    if None in codes:  # an added token, kept as plain text
        return token
    return bytes(codes).decode("utf-8", errors="replace")  # type: ignore[arg-type]


def _byte_characters() -> dict[str, int]:
    """The printable characters that byte-level BPE writes bytes as (Radford et al. 2019)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_characters()


def _stands_alone(character: str) -> bool:
    """Whether a character is a word by itself for BERT's pre-tokenizer: punctuation or CJK."""
    code = ord(character)
    if code < 128:
        return not character.isalnum()
    if any(first <= code <= last for first, last in _CJK_RANGES):
        return True
    return unicodedata.category(character).startswith("P")


def masking_budget(n_tokens: np.ndarray, mlm_probability: float) -> np.ndarray:
    """How many tokens of blocks of `n_tokens`, (B,), are masked at most, (B,) int64.

    At least 1, except of an empty block; halves round to even, as in the reference.
    """
    budget = np.round(n_tokens * mlm_probability).astype(np.int64)
    return np.where(n_tokens > 0, np.maximum(budget, 1), 0)


def choose_words(words: np.ndarray, budget: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Go through each row's words in random order; take a word if it still fits the budget.

    Args:
        words: (B, T) the word of each token, -1 outside words.
        budget: (B,) tokens to choose at most.
        keys: (B,) random keys of the rows.

    Returns:
        (B, T) bool: tokens of the chosen words.
    """
    n_rows = len(words)
    n_words = max(int(words.max(initial=-1)) + 1, 1)
    # One flat index for all rows' words is faster than row and column. Word -1 has a column, too.
    first_cells = np.arange(n_rows)[:, None] * (n_words + 1) + 1  # (B, 1), of words 0
    cells = words + first_cells  # (B, T)
    lengths = np.bincount(cells.ravel(), minlength=n_rows * (n_words + 1))
    order = permutations(keys, n_words, stream=ORDER_STREAM)
    order += first_cells  # (B, W) cells

    chosen = np.zeros(len(lengths), dtype=bool)
    left = budget.astype(np.int64)[:, None]
    rows = np.arange(n_rows)
    # A budget is mostly used up long before the words are: so a part of them at a time.
    for first in range(0, n_words, _WORDS_AT_ONCE):
        part = order[rows, first : first + _WORDS_AT_ONCE]
        chosen[part], left = _fill_greedily(lengths[part], left)
        unfinished = left[:, 0] > 0
        rows, left = rows[unfinished], left[unfinished]
        if len(rows) == 0:
            break
    return chosen[cells]


def _fill_greedily(lengths: np.ndarray, left: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Take items of `lengths`, (B, W), in order if they fit what is left, (B, 1); 0 is no item.

    Each round takes every item up to the first that does not fit; that one, and all others longer
    than what is then left, leave the queue. Most rows are full after the first round.

    Returns:
        (B, W) bool, what is taken, and (B, 1) what is then left.
    """
    queue = np.where(lengths <= left, lengths, 0)
    taken = (np.cumsum(queue, axis=1) <= left) & (queue > 0)
    left = left - (queue * taken).sum(axis=1, keepdims=True)
    rows = np.flatnonzero(left)
    queue = np.where(taken[rows], 0, lengths[rows])
    while True:
        queue[queue > left[rows]] = 0
        unfinished = queue.any(axis=1)
        if not unfinished.any():
            return taken, left
        rows, queue = rows[unfinished], queue[unfinished]
        fits = (np.cumsum(queue, axis=1) <= left[rows]) & (queue > 0)
        taken[rows] |= fits
        left[rows] -= (queue * fits).sum(axis=1, keepdims=True)
        queue[fits] = 0


def replace_tokens(
    ids: np.ndarray,
    chosen: np.ndarray,
    keys: np.ndarray,
    *,
    mask_token_id: int,
    ordinary_ids: np.ndarray,
) -> np.ndarray:
    """Replace chosen tokens: 80 % by [MASK], 10 % by one of `ordinary_ids`, 10 % by themselves.

    Args:
        ids: (B, T) token ids.
        chosen: (B, T) bool.
        keys: (B,) random keys of the rows.
        mask_token_id: id of [MASK].
        ordinary_ids: (N,).
    """
    places = np.flatnonzero(chosen)
    rows, columns = np.divmod(places, ids.shape[1])
    fate = uniforms_at(keys, rows, columns, stream=FATE_STREAM)
    masked = ids.copy()
    flat = masked.reshape(-1)
    flat[places[fate < 0.8]] = mask_token_id
    is_random = (fate >= 0.8) & (fate < 0.9)
    draw = uniforms_at(keys, rows[is_random], columns[is_random], stream=REPLACEMENT_STREAM)
    flat[places[is_random]] = ordinary_ids[(draw * len(ordinary_ids)).astype(np.int64)]
    return masked
