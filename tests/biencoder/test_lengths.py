"""Queries and passages are cut at their own lengths, and no length goes beyond the encoder."""

from pathlib import Path

import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertModel,
    AutoModel,
    AutoTokenizer,
    DistilBertConfig,
    DistilBertModel,
    ElectraConfig,
    ElectraModel,
    ModernBertConfig,
    ModernBertModel,
    MPNetConfig,
    MPNetModel,
    PreTrainedTokenizerBase,
)

from modeling_condenser.biencoder.lengths import LengthCollator, check_lengths, longest_input
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


SMALL = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "vocab_size": 50}


@pytest.mark.parametrize(
    ("model", "longest"),
    [
        (
            ElectraModel(ElectraConfig(**SMALL, intermediate_size=16, max_position_embeddings=40)),
            40,
        ),
        (AlbertModel(AlbertConfig(**SMALL, intermediate_size=16, max_position_embeddings=40)), 40),
        (
            DistilBertModel(
                DistilBertConfig(
                    dim=16,
                    n_layers=1,
                    n_heads=2,
                    hidden_dim=16,
                    vocab_size=50,
                    max_position_embeddings=40,
                )
            ),
            40,
        ),
        (MPNetModel(MPNetConfig(**SMALL, intermediate_size=16, max_position_embeddings=42)), 40),
        (
            ModernBertModel(
                ModernBertConfig(
                    **SMALL, intermediate_size=16, max_position_embeddings=40, pad_token_id=0
                )
            ),
            40,
        ),
    ],
)
def test_positions_are_counted_as_the_architecture_has_them(
    model: torch.nn.Module, longest: int
) -> None:
    assert longest_input(model) == longest


def test_what_counts_as_the_longest_input_runs_and_one_more_does_not(
    bert_folder: Path, roberta_folder: Path
) -> None:
    for folder in (bert_folder, roberta_folder):
        model = AutoModel.from_pretrained(folder)
        longest = longest_input(model)
        assert longest == 64
        model(torch.full((1, longest), 5))
        with pytest.raises((IndexError, RuntimeError)):
            model(torch.full((1, longest + 1), 5))


def test_a_length_beyond_the_positions_or_without_room_is_refused(roberta_folder: Path) -> None:
    model = AutoModel.from_pretrained(roberta_folder)
    tokenizer = AutoTokenizer.from_pretrained(roberta_folder)
    check_lengths(EncodingContract(3, 64), model, tokenizer, name="roberta")
    with pytest.raises(
        ValueError, match="passage_max_length is 65, but roberta has positions for 64"
    ):
        check_lengths(EncodingContract(8, 65), model, tokenizer, name="roberta")
    with pytest.raises(ValueError, match="query_max_length is 2, expected at least 3"):
        check_lengths(EncodingContract(2, 8), model, tokenizer, name="roberta")
    tokenizer.pad_token = None
    with pytest.raises(ValueError, match="The tokenizer of roberta has no padding token"):
        check_lengths(EncodingContract(8, 8), model, tokenizer, name="roberta")
