"""Which tokens of a vocabulary begin a word.

Words are those of BERT's pre-tokenizer: text between blanks, split at punctuation and around each
CJK character. WordPiece marks the pieces that continue a word (`##ing`); byte-level BPE and
SentencePiece mark those that follow a blank (`Ġword`, `▁word`).

Unlike in the reference implementation, text without blanks has words, too. Scripts that are written
without them (Thai, Khmer, kana, ...), and any word of more than `LONGEST_WORD` tokens (DNA,
protein), are cut into words of 3, 1 and 2 tokens in turn, but not within a character that is
several tokens.
"""

import json
import unicodedata

import numpy as np
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

LONGEST_WORD = 16  # tokens; the medical names of `health` have up to 12

# Marks of a token: it is outside words; a word begins with it; a word begins after it; it is only
# the mark of a blank, and belongs to the word after it; it is of a script without blanks; it begins
# within a character.
_SPECIAL, _STARTS, _ENDS, _BARE_MARKER, _BLANKLESS, _INSIDE_CHARACTER = 1, 2, 4, 8, 16, 32
_PARTS = np.array([0, 0, 0, 1, 2, 2])  # a text without blanks is cut into words of 3, 1 and 2
_METASPACE, _BYTE_LEVEL_SPACE = "▁", "Ġ"
_BYTES = {character: bytes([byte]) for byte, character in bytes_to_unicode().items()}
_UNKNOWN = "\ufffd"
_CONTINUATION = bytes(range(0x80, 0xC0))  # bytes that continue a character in UTF-8
_CJK_RANGES = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2FA1F))
_BLANKLESS_RANGES = (
    (0x0E00, 0x0FFF),  # Thai, Lao, Tibetan
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x1950, 0x19FF),  # Tai Le, New Tai Lue
    (0x1A20, 0x1AAF),  # Tai Tham
    (0x1B00, 0x1B7F),  # Balinese
    (0x3040, 0x30FF),  # kana
    (0x31F0, 0x31FF),
    (0xA980, 0xA9DF),  # Javanese
    (0xFF66, 0xFF9F),  # kana of half width
)


class WordStarts:
    """Which tokens of a vocabulary begin a word."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        kind, prefix = _marking(tokenizer)
        tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        marks = [0 if token is None else _marks_of(token, kind, prefix) for token in tokens]
        self.marks = np.array(marks, dtype=np.uint8)  # (V,)
        self.marks[tokenizer.all_special_ids] = _SPECIAL
        self.special = self.marks == _SPECIAL  # (V,), the tokens that are never masked

    def number_words(self, ids: np.ndarray, is_text: np.ndarray) -> np.ndarray:
        """(B, T) int32: each token's word, counted from 0 in each row; -1 outside words.

        `is_text`, (B, T), is False at padding and added special tokens.
        """
        marks = self.marks.take(ids)
        before = marks[:, :-1]
        in_word = is_text & (marks & _SPECIAL == 0)
        begins = marks & _STARTS != 0
        begins[:, 1:] &= before & _BARE_MARKER == 0
        begins[:, 1:] |= before & _ENDS != 0
        # The first token, and one after a token outside words, always begin a word.
        begins[:, :1] = True
        begins[:, 1:] |= ~in_word[:, :-1]
        begins &= in_word
        words = np.cumsum(begins, axis=1, dtype=np.int32) * in_word - 1
        is_long = (words[:, LONGEST_WORD:] == words[:, :-LONGEST_WORD]) & in_word[:, LONGEST_WORD:]
        if is_long.any() or (marks & _BLANKLESS).any():
            begins = _cut(words, begins, marks) & in_word
            words = np.cumsum(begins, axis=1, dtype=np.int32) * in_word - 1
        return words


def _cut(words: np.ndarray, begins: np.ndarray, marks: np.ndarray) -> np.ndarray:
    """Where words begin if long ones and scripts without blanks are cut; all arrays are (B, T)."""
    n_rows, width = words.shape
    places = np.arange(width)

    def last(is_so: np.ndarray) -> np.ndarray:
        return np.maximum.accumulate(np.where(is_so, places, 0), axis=1)

    character = last(begins | (marks & _INSIDE_CHARACTER == 0))  # where it begins
    is_blankless = np.take_along_axis(marks & _BLANKLESS != 0, character, axis=1)
    after_blank = np.roll(marks & _BARE_MARKER != 0, 1, axis=1)
    begins = begins | (np.diff(is_blankless, prepend=is_blankless[:, :1]) & ~after_blank)
    offset = character - last(begins)  # in its word
    part = offset // len(_PARTS) * 3 + _PARTS[offset % len(_PARTS)]
    cells = words + 1 + (width + 1) * np.arange(n_rows)[:, None]
    is_long = np.bincount(cells.ravel())[cells] > LONGEST_WORD
    return begins | (np.diff(part, prepend=0) != 0) & (is_blankless | is_long)


def _marks_of(token: str, kind: str, prefix: str) -> int:
    if kind == "WordPiece":
        text = token.removeprefix(prefix)
        return _STARTS * (text == token) | _BLANKLESS * _is_blankless(text)
    if token == prefix:
        return _BARE_MARKER | _STARTS
    if kind == "ByteLevel":
        return _marks_of_bytes(token, prefix)
    text = token.replace(_METASPACE, " ").strip()
    starts = token.startswith(prefix) or not text or _stands_alone(text[0])
    ends = not text or _stands_alone(text[-1])
    return _STARTS * starts | _ENDS * ends | _BLANKLESS * _is_blankless(text)


def _marks_of_bytes(token: str, prefix: str) -> int:
    """Marks of a token that may begin or end within a character."""
    content = b"".join(_BYTES.get(character, character.encode()) for character in token)
    after = content.lstrip(_CONTINUATION)
    is_inside, is_whole, texts = after != content, False, [_UNKNOWN]
    for n_missing in range(4):  # bytes of the last character, which may tell its script only
        try:
            texts = [(after + byte * n_missing).decode().strip() for byte in (b"\x80", b"\xbf")]
        except UnicodeDecodeError:
            continue
        is_whole = n_missing == 0
        break
    is_blank = is_whole and not texts[0] and not is_inside
    starts = not is_inside and all(text and _stands_alone(text[0]) for text in texts)
    ends = is_whole and texts[0] and _stands_alone(texts[0][-1])
    marks = _STARTS * bool(starts or is_blank or token.startswith(prefix))
    marks |= _ENDS * bool(ends or is_blank) | _INSIDE_CHARACTER * is_inside
    return marks | _BLANKLESS * all(map(_is_blankless, texts))


def _marking(tokenizer: PreTrainedTokenizerBase) -> tuple[str, str]:
    """The kind of a vocabulary, and the prefix of its marked tokens."""
    kind = "not a fast tokenizer"
    if tokenizer.is_fast:
        spec = json.loads(tokenizer.backend_tokenizer.to_str())
        kind = spec["model"]["type"]
        if kind == "WordPiece":
            return kind, spec["model"]["continuing_subword_prefix"]
        parts = json.dumps([spec.get("pre_tokenizer"), spec.get("decoder")])
        if '"ByteLevel"' in parts:
            return "ByteLevel", _BYTE_LEVEL_SPACE
        # SentencePiece conversions without a Metaspace part replace blanks in the normalizer.
        normalizer = json.dumps(spec.get("normalizer"), ensure_ascii=False)
        if '"Metaspace"' in parts or _METASPACE in normalizer:
            return "Metaspace", _METASPACE
    raise ValueError(
        f"{type(tokenizer).__name__} does not mark words in a known way ({kind}): whole-word "
        "masking needs a fast tokenizer with a WordPiece, byte-level BPE or SentencePiece "
        "vocabulary."
    )


def _stands_alone(character: str) -> bool:
    """Whether a character is a word by itself for BERT's pre-tokenizer: punctuation or CJK."""
    code = ord(character)
    if code < 128:
        return not character.isalnum()
    if any(first <= code <= last for first, last in _CJK_RANGES):
        return True
    return unicodedata.category(character).startswith("P")


def _is_blankless(text: str) -> bool:
    """Whether a text is of scripts that are written without blanks, other than CJK."""
    codes = [ord(character) for character in text]
    return bool(codes) and all(
        any(first <= code <= last for first, last in _BLANKLESS_RANGES) for code in codes
    )
