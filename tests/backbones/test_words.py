"""Whole-word masking with the kind of tokenizer that each encoder has."""

import numpy as np
from transformers import PreTrainedTokenizerBase

from modeling_condenser.pretraining.masking import find_word_starts
from tests.backbones.encoders import Backbone
from tests.pretraining.test_words import number_characters


def read_words(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[list[int], list[int]]:
    """Ids of a text and the word of each by the characters that it spans, as BERT splits them."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    characters = number_characters(text)
    numbers, word, last = [], -1, -1
    for start, end in encoded["offset_mapping"]:
        while characters[start] < 0:  # the blank before a word, which may be its own token
            start += 1
        word += characters[start] != last  # a token that spans several words joins them
        last = characters[max(end - 1, start)]
        numbers.append(word)
    return encoded["input_ids"], numbers


def test_a_word_begins_wherever_bert_would_begin_one(backbone: Backbone, texts: list[str]) -> None:
    tokenizer = backbone.tokenizer(texts)
    starts = find_word_starts(tokenizer)
    n_long = 0
    for text in texts:
        # Bytes of Chinese characters that a vocabulary has not merged tell no boundary.
        if any("一" <= character <= "鿿" for character in text):
            continue
        ids, expected = read_words(tokenizer, text)
        if tokenizer.unk_token_id in ids:
            continue
        row = np.array([ids])
        found = starts.number_words(row, np.ones_like(row, dtype=bool))[0].tolist()
        assert found == expected, tokenizer.convert_ids_to_tokens(ids)
        n_long += max(expected) + 1 < len(ids)
    assert n_long > 100  # texts with words of several tokens
