"""Whole-word masking with the kind of tokenizer that each encoder has."""

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from modeling_condenser.pretraining.collator import CondenserDataCollator
from modeling_condenser.pretraining.words import find_word_starts
from tests.backbones.encoders import Backbone
from tests.pretraining.test_words import number_characters


@pytest.fixture(scope="module")
def tokenizer(backbone: Backbone, texts: list[str]) -> PreTrainedTokenizerBase:
    return backbone.tokenizer(texts)


@pytest.fixture(scope="module")
def rows(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[tuple[list[int], list[int]]]:
    """Ids of texts and the word of each by the characters that it spans, as BERT splits them."""
    rows = []
    for text in texts:
        # Bytes of Chinese characters that a vocabulary has not merged tell no boundary.
        if any("一" <= character <= "鿿" for character in text):
            continue
        encoded = tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        characters = number_characters(text)
        numbers, word, last = [], -1, -1
        for start, end in encoded["offset_mapping"]:
            while characters[start] < 0:  # the blank before a word, which may be its own token
                start += 1
            word += characters[start] != last  # a token that spans several words joins them
            last = characters[max(end - 1, start)]
            numbers.append(word)
        if tokenizer.unk_token_id not in encoded["input_ids"]:
            rows.append((encoded["input_ids"], numbers))
    return rows


def test_a_word_begins_wherever_bert_would_begin_one(
    tokenizer: PreTrainedTokenizerBase, rows: list[tuple[list[int], list[int]]]
) -> None:
    starts = find_word_starts(tokenizer)
    for ids, expected in rows:
        row = np.array([ids])
        found = starts.number_words(row, np.ones_like(row, dtype=bool))[0].tolist()
        assert found == expected, tokenizer.convert_ids_to_tokens(ids)
    assert sum(max(expected) + 1 < len(ids) for ids, expected in rows) > 100


def test_words_are_masked_whole_between_the_encoders_own_special_tokens(
    tokenizer: PreTrainedTokenizerBase, rows: list[tuple[list[int], list[int]]]
) -> None:
    collator = CondenserDataCollator(tokenizer, max_length=256, mlm_probability=0.3)
    rows = [row for row in rows[:40] if len(row[0]) < 250]
    batch = collator([{"input_ids": ids} for ids, _ in rows])
    n_masked_long = 0
    for (ids, words), labels, inputs in zip(
        rows, batch["labels"].tolist(), batch["input_ids"].tolist(), strict=True
    ):
        assert inputs[0] == tokenizer.cls_token_id
        assert inputs[len(ids) + 1] == tokenizer.sep_token_id
        assert set(inputs[len(ids) + 2 :]) <= {tokenizer.pad_token_id}
        is_masked = [label != -100 for label in labels[1 : len(ids) + 1]]
        masked = {word for word, m in zip(words, is_masked, strict=True) if m}
        assert is_masked == [word in masked for word in words]
        assert [i for i, m in zip(ids, is_masked, strict=True) if m] == [
            i for i in labels if i >= 0
        ]
        n_masked_long += sum(words.count(word) > 1 for word in masked)
    assert n_masked_long > 10
