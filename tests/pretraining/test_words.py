"""Words told from tokens, against BERT's own splitting of the text, character by character."""

import unicodedata
from collections.abc import Mapping

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from modeling_condenser.pretraining.masking import find_word_starts
from tests.backbones.encoders import BACKBONES

# One of each kind of tokenizer.
TOKENIZERS_OF = ["ALBERT", "BERT", "DeBERTa-v3", "ModernBERT", "MPNet", "RoBERTa", "XLM-RoBERTa"]


def is_alone(character: str) -> bool:
    """Whether BERT's BasicTokenizer sets a character apart: punctuation, or CJK."""
    code = ord(character)
    ascii_punctuation = 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96
    ascii_punctuation |= 123 <= code <= 126
    return (
        ascii_punctuation
        or unicodedata.category(character).startswith("P")
        or 0x4E00 <= code <= 0x9FFF
    )


def number_characters(text: str) -> list[int]:
    """For each character the number of its word, -1 for blanks."""
    numbers: list[int] = []
    word, open_word = -1, False
    for character in text:
        if character.isspace():
            numbers.append(-1)
            open_word = False
            continue
        if is_alone(character) or not open_word:
            word += 1
        open_word = not is_alone(character)
        numbers.append(word)
    return numbers


def number_words(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[int]:
    row = np.array([ids], dtype=np.int64)
    words = find_word_starts(tokenizer).number_words(row, np.ones_like(row, dtype=bool))
    assert words.shape == row.shape and words.dtype == np.int64
    return words[0].tolist()


def ids_of(tokenizer: PreTrainedTokenizerBase, *tokens: str) -> list[int]:
    ids = tokenizer.convert_tokens_to_ids(list(tokens))
    assert tokenizer.convert_ids_to_tokens(ids) == list(tokens)
    return ids


def words_of(tokenizer: PreTrainedTokenizerBase, text: str) -> list[str]:
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    spans: dict[int, list[int]] = {}
    for word, span in zip(
        number_words(tokenizer, encoded["input_ids"]), encoded["offset_mapping"], strict=True
    ):
        spans.setdefault(word, []).extend(span)
    return [text[min(ends) : max(ends)].strip() for word, ends in spans.items() if word >= 0]


def make_byte_level_tokenizer(*tokens: str) -> PreTrainedTokenizerBase:
    """All bytes, and tokens (written as bytes are) that are merged left to right."""
    vocabulary = ["<pad>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = []
    for token in tokens:
        for n in range(1, len(token)):
            merges.append((token[:n], token[n]))
            vocabulary.append(token[: n + 1])
    model = models.BPE(vocab={token: i for i, token in enumerate(vocabulary)}, merges=merges)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>")


def expected_words(encoded: Mapping[str, list], text: str) -> list[int]:
    """The word of each token by the characters that it spans, as BERT splits them."""
    characters = number_characters(text)
    numbers, word, last = [], -1, -1
    for start, end in encoded["offset_mapping"]:
        while characters[start] < 0:  # the blank before a word, which may be its own token
            start += 1
        word += characters[start] != last  # a token that spans several words joins them
        last = characters[max(end - 1, start)]
        numbers.append(word)
    return numbers


@pytest.mark.parametrize("title", TOKENIZERS_OF)
def test_a_word_begins_wherever_bert_would_begin_one(title, texts):
    tokenizer = BACKBONES[title].tokenizer(texts)
    n_long = 0
    for text in texts:
        # Bytes of Chinese characters that a vocabulary has not merged tell no boundary.
        if any("一" <= character <= "鿿" for character in text):
            continue
        encoded = tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        ids, expected = encoded["input_ids"], expected_words(encoded, text)
        if tokenizer.unk_token_id in ids:
            continue
        assert number_words(tokenizer, ids) == expected, tokenizer.convert_ids_to_tokens(ids)
        n_long += max(expected) + 1 < len(ids)
    assert n_long > 100  # texts with words of several tokens


def test_rows_are_numbered_from_zero_without_special_tokens_and_padding(wordpiece_tokenizer):
    the, piece, unknown = ids_of(wordpiece_tokenizer, "the", "##e", "[UNK]")
    cls, sep, pad = ids_of(wordpiece_tokenizer, "[CLS]", "[SEP]", "[PAD]")
    ids = np.array([[cls, the, piece, the, sep, pad], [cls, piece, piece, unknown, the, the]])
    is_text = np.array([[True] * 6, [True] * 5 + [False]])
    words = find_word_starts(wordpiece_tokenizer).number_words(ids, is_text)
    assert words.tolist() == [[-1, 0, 0, 1, -1, -1], [-1, 0, 0, -1, 1, -1]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a東京a", ["a", "東", "京", "a"]),
        ("naïf. naïf", ["naïf", ".", "naïf"]),
        ("ab\nab\tab", ["ab", "", "ab", "", "ab"]),
        ("ab\u00a0ab", ["ab", "", "ab"]),
        ("ab).ab (ab", ["ab", ")", ".", "ab", "(", "ab"]),
    ],
)
def test_byte_level_words_are_those_of_their_text(text, expected):
    """Where bytes are merged to characters, and where they are not."""
    assert words_of(make_byte_level_tokenizer("æĿ±", "äº¬", "Âł"), text) == expected


def test_a_bare_marker_belongs_to_the_word_that_it_precedes(sentencepiece_tokenizer):
    for tokens, expected in [
        (["▁the", "▁", "e", "s"], [0, 1, 1, 1]),
        (["▁the", "▁", "(", "e"], [0, 1, 1, 2]),
        (["▁the", "▁", "東", "京"], [0, 1, 1, 2]),
        (["e", ".", "▁", "e"], [0, 1, 2, 2]),
    ]:
        ids = ids_of(sentencepiece_tokenizer, *tokens)
        assert number_words(sentencepiece_tokenizer, ids) == expected, tokens
    tokenizer = make_byte_level_tokenizer()
    assert number_words(tokenizer, ids_of(tokenizer, "a", "Ġ", "b", "Ġ", "(", "b")) == [
        0, 1, 1, 2, 2, 3,
    ]  # fmt: skip


def test_a_vocabulary_of_whole_words_is_refused():
    model = Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1}, unk_token="[UNK]"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, unk_token="[UNK]")
    with pytest.raises(ValueError, match="marks words in no known way .model WordLevel") as refusal:
        find_word_starts(tokenizer)
    assert "WordPiece" in str(refusal.value)
