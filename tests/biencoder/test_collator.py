"""Queries and passages are truncated to their own lengths."""

import torch
from transformers import PreTrainedTokenizerBase

from modeling_condenser.biencoder.trainer import LengthCollator
from modeling_condenser.repository.contract import EncodingContract

LONG = "the river is near the old market and the engine is near the old museum " * 4


def test_each_column_is_cut_where_encoding_cuts_it(
    wordpiece_tokenizer: PreTrainedTokenizerBase,
) -> None:
    collator = LengthCollator(wordpiece_tokenizer, EncodingContract(8, 21))
    rows = [
        {"query": LONG, "positive": LONG, "negative_1": "Why?", "label": [1.0, 0.5]},
        {"query": "Why?", "positive": LONG, "negative_1": LONG, "label": [2.0, 0.0]},
    ]
    batch = collator(rows)
    assert list(batch) == [
        *("query_input_ids", "query_attention_mask"),
        *("positive_input_ids", "positive_attention_mask"),
        *("negative_1_input_ids", "negative_1_attention_mask"),
        "label",
    ]
    assert [batch[f"{c}_attention_mask"].sum(1).tolist() for c in rows[0] if c != "label"] == [
        [8, 4],
        [21, 21],
        [4, 21],
    ]
    expected = wordpiece_tokenizer(LONG, truncation=True, max_length=8)["input_ids"]
    assert batch["query_input_ids"][0].tolist() == expected
    assert batch["label"].dtype == torch.float32
    assert batch["label"].tolist() == [[1.0, 0.5], [2.0, 0.0]]


def test_sentences_of_a_pair_are_both_cut_as_passages(
    wordpiece_tokenizer: PreTrainedTokenizerBase,
) -> None:
    collator = LengthCollator(wordpiece_tokenizer, EncodingContract(8, 21))
    batch = collator([{"sentence1": LONG, "sentence2": LONG, "label": 0.5}])
    assert batch["sentence1_input_ids"].shape == batch["sentence2_input_ids"].shape == (1, 21)
    assert batch["label"].shape == (1,)


def test_segment_ids_are_passed_where_the_contract_says_so(
    wordpiece_tokenizer: PreTrainedTokenizerBase,
) -> None:
    contract = EncodingContract(8, 8, token_type_ids=True)
    batch = LengthCollator(wordpiece_tokenizer, contract)([{"query": "a"}])
    assert "query_token_type_ids" in batch
