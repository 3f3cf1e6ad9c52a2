"""Which tokens begin a word: derived from a tokenizer's own vocabulary, whatever its kind.

A word is what BERT's pre-tokenizer calls one: a run of characters between blanks, split at
punctuation, and each CJK character by itself. WordPiece marks the pieces that continue a word
(`##ing`); byte-level BPE and SentencePiece mark those that follow a blank (`Ġword`, `▁word`) and
leave punctuation to be told by its characters, which is what gluing "word." together would miss.
"""

import json
import unicodedata
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from transformers import PreTrainedTokenizerBase

_SPECIAL, _STARTS, _ENDS, _BARE_MARKER = 1, 2, 4, 8
_METASPACE = "▁"
_BYTE_LEVEL_SPACE = "Ġ"
_CJK_RANGES = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2FA1F),
)


@dataclass(frozen=True)
class WordStarts:
    """For each token of a vocabulary of size V, what is needed to cut a block into words.

    Attributes:
        special: (V,) bool: tokens that belong to no word and are never masked.
        starts: (V,) bool: tokens that begin a word wherever they stand.
        ends: (V,) bool: tokens after which a new word begins whatever follows.
        bare_markers: (V,) bool: tokens of a marker alone, which belong to the word after them.
    """

    special: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    bare_markers: np.ndarray

    def number_words(self, ids: np.ndarray, is_text: np.ndarray) -> np.ndarray:
        """Number the words of each row.

        Args:
            ids: (B, T) token ids.
            is_text: (B, T) bool, False at padding and added special tokens.

        Returns:
            (B, T) int64: the word that a token belongs to, counted from 0 in each row; -1 outside
            words.
        """
        marks = self._marks.take(ids)
        in_word = is_text & (marks & _SPECIAL == 0)
        begins = marks & _STARTS != 0
        before = marks[:, :-1]
        if self._all_marks & _BARE_MARKER:
            begins[:, 1:] &= before & _BARE_MARKER == 0
        if self._all_marks & _ENDS:
            begins[:, 1:] |= before & _ENDS != 0
        # The first token after none is a word's first, whatever it looks like.
        begins[:, :1] = True
        begins[:, 1:] |= ~in_word[:, :-1]
        begins &= in_word
        words = np.cumsum(begins, axis=1)
        words *= in_word
        words -= 1
        return words

    @cached_property
    def _all_marks(self) -> int:
        """The marks that any token has."""
        return int(np.bitwise_or.reduce(self._marks))

    @cached_property
    def _marks(self) -> np.ndarray:
        """(V,) uint8: all that is said of a token, so that it is looked up once."""
        marks = np.zeros(len(self.special), dtype=np.uint8)
        for mark, has in (
            (_SPECIAL, self.special),
            (_STARTS, self.starts),
            (_ENDS, self.ends),
            (_BARE_MARKER, self.bare_markers),
        ):
            marks[has] |= mark
        return marks


def find_word_starts(tokenizer: PreTrainedTokenizerBase) -> WordStarts:
    """Read from a tokenizer which of its tokens begin a word.

    Raises:
        ValueError: the tokenizer is none of WordPiece, byte-level and metaspace ones, so that words
            cannot be told from its tokens.
    """
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    special = np.zeros(len(tokens), dtype=bool)
    special[[i for i in tokenizer.all_special_ids if i < len(tokens)]] = True

    continuing_prefix, kind = _marking(tokenizer)
    starts = np.zeros(len(tokens), dtype=bool)
    ends = np.zeros(len(tokens), dtype=bool)
    bare_markers = np.zeros(len(tokens), dtype=bool)
    for i, token in enumerate(tokens):
        if token is None or special[i]:
            continue
        if kind == "wordpiece":
            starts[i] = not token.startswith(continuing_prefix)
            continue
        marker = _BYTE_LEVEL_SPACE if kind == "byte-level" else _METASPACE
        marked = token.startswith(marker)
        text = _byte_level_text(token) if kind == "byte-level" else token
        text = text.replace(_METASPACE, " ").strip()
        starts[i] = marked or not text or _stands_alone(text[0])
        bare_markers[i] = token == marker
        ends[i] = not bare_markers[i] and (not text or _stands_alone(text[-1]))
    return WordStarts(special, starts, ends, bare_markers)


def _marking(tokenizer: PreTrainedTokenizerBase) -> tuple[str, str]:
    """How a tokenizer marks words: (prefix of continuing pieces, kind)."""
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise ValueError(
            f"{type(tokenizer).__name__} is not backed by the tokenizers library, so how it marks "
            "words cannot be read from it: load it with AutoTokenizer (use_fast=True)."
        )
    spec = json.loads(tokenizer.backend_tokenizer.to_str())
    if spec["model"]["type"] == "WordPiece":
        return spec["model"]["continuing_subword_prefix"], "wordpiece"
    parts = {part for key in ("pre_tokenizer", "decoder") for part in _types(spec.get(key))}
    if "ByteLevel" in parts:
        return "", "byte-level"
    if "Metaspace" in parts or _uses_metaspace(spec):
        return "", "metaspace"
    raise ValueError(
        f"{type(tokenizer).__name__} marks words in no known way (model "
        f"{spec['model']['type']}, parts {sorted(parts)}): whole-word masking knows WordPiece, "
        "byte-level BPE and SentencePiece (metaspace) vocabularies."
    )


def _types(part: dict | None) -> list[str]:
    if part is None:
        return []
    nested = part.get("pretokenizers") or part.get("decoders") or []
    return [part["type"], *(t for inner in nested for t in _types(inner))]


def _uses_metaspace(spec: dict) -> bool:
    """SentencePiece conversions without a Metaspace part replace blanks in the normalizer."""
    return _METASPACE in json.dumps(spec.get("normalizer"), ensure_ascii=False)


def _byte_level_text(token: str) -> str:
    """The text of a byte-level token; bytes that are no whole character become U+FFFD."""
    decoded = bytearray()
    for character in token:
        byte = _BYTE_OF.get(character)
        if byte is None:  # an added token, kept as plain text
            return token
        decoded.append(byte)
    return decoded.decode("utf-8", errors="replace")


def _byte_characters() -> dict[str, int]:
    """The printable characters that byte-level BPE writes bytes as (Radford et al. 2019)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + i): byte for i, byte in enumerate(others)})
    return table


_BYTE_OF = _byte_characters()


def _stands_alone(character: str) -> bool:
    """Whether a character is a word by itself for BERT's pre-tokenizer: punctuation or CJK."""
    code = ord(character)
    if code < 128:
        return not character.isalnum()
    if code == 0xFFFD:
        return False
    if any(first <= code <= last for first, last in _CJK_RANGES):
        return True
    return unicodedata.category(character).startswith("P")
