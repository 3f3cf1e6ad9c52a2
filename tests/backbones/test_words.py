"""Whole-word masking with the kind of tokenizer that each backbone has."""

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from modeling_condenser.pretraining.collator import CondenserDataCollator
from modeling_condenser.pretraining.masking import find_word_starts
from tests.backbones.encoders import Backbone
from tests.pretraining.test_words import number_characters


@pytest.fixture(scope="module")
def tokenizer(backbone: Backbone, texts: list[str]) -> PreTrainedTokenizerBase:
    return backbone.tokenizer(texts)


def number_tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[list[int], list[int]]:
    """Ids of a text and the word of each by the characters that it spans, as BERT splits them."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    characters = number_characters(text)
    numbers, word, last = [], -1, -1
    for start, end in encoded["offset_mapping"]:
        while characters[start] < 0:  # the blank before a word, which may be a token by itself
            start += 1
        word += characters[start] != last  # a token that spans several words glues them
        last = characters[max(end - 1, start)]
        numbers.append(word)
    return encoded["input_ids"], numbers


def test_a_word_begins_wherever_bert_would_begin_one(
    tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> None:
    starts = find_word_starts(tokenizer)
    n_long = 0
    for text in texts:
        # Bytes of Chinese characters that a vocabulary has not merged tell no boundary.
        if any("一" <= character <= "鿿" for character in text):
            continue
        ids, expected = number_tokens(tokenizer, text)
        if tokenizer.unk_token_id in ids:
            continue
        row = np.array([ids])
        found = starts.number_words(row, np.ones_like(row, dtype=bool))[0].tolist()
        assert found == expected, tokenizer.convert_ids_to_tokens(ids)
        n_long += max(expected) + 1 < len(ids)
    assert n_long > 100  # texts with words of several tokens


def test_words_are_masked_whole_between_the_backbones_own_special_tokens(
    tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> None:
    collator = CondenserDataCollator(tokenizer, max_length=256, mlm_probability=0.3)
    no_bytes = [text for text in texts if not any("一" <= c <= "鿿" for c in text)]
    rows = [number_tokens(tokenizer, text) for text in no_bytes[:40]]
    rows = [row for row in rows if tokenizer.unk_token_id not in row[0] and len(row[0]) < 250]
    batch = collator([{"input_ids": ids} for ids, _ in rows])
    n_masked_long = 0
    for (ids, words), labels, inputs in zip(
        rows, batch["labels"].tolist(), batch["input_ids"].tolist(), strict=True
    ):
        assert inputs[0] == tokenizer.cls_token_id
        assert inputs[len(ids) + 1] == tokenizer.sep_token_id
        assert all(token == tokenizer.pad_token_id for token in inputs[len(ids) + 2 :])
        masked = [label != -100 for label in labels[1 : len(ids) + 1]]
        assert [i for i, m in zip(ids, masked, strict=True) if m] == [i for i in labels if i >= 0]
        by_word: dict[int, set[bool]] = {}
        for word, is_masked in zip(words, masked, strict=True):
            by_word.setdefault(word, set()).add(is_masked)
        assert all(len(fates) == 1 for fates in by_word.values())
        n_masked_long += sum(words.count(w) > 1 for w, fates in by_word.items() if True in fates)
    assert n_masked_long > 10
