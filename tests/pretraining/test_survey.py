"""What training reads of a text, by counts of the examples themselves, and what it says of it."""

from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from transformers import AutoTokenizer

from modeling_condenser import CondenserTrainingArguments
from modeling_condenser.pretraining.examples import fingerprint_examples, make_examples
from tests.pretraining.short_runs import SETTINGS

TEXT = "The river left. Why? It begins in the old mountains of the north. No! Mary is there."


@pytest.fixture
def examples_of(bert_folder, tmp_path):
    """Makes the examples of rows, and the facts of the run's record."""

    def make(rows: list[dict[str, Any]], **settings: Any) -> tuple[Any, dict[str, Any]]:
        arguments = CondenserTrainingArguments(str(tmp_path), **{**SETTINGS, **settings})
        tokenizer = AutoTokenizer.from_pretrained(bert_folder)
        examples, _, facts = make_examples(Dataset.from_list(rows), tokenizer, arguments)
        return examples, facts

    return make


def share_in(log: str) -> float:
    return float(log.split("An epoch reads ")[1].split(" %")[0])


@pytest.mark.parametrize(
    "settings",
    [
        {"objective": "cocondenser", "spans": "windows", "span_length": 12},
        {"objective": "cocondenser", "max_length": 24},
        {"objective": "ict", "query_length": 8, "removal_probability": 0.5},
    ],
)
def test_the_share_in_the_log_is_that_of_the_tokens_that_examples_hold(
    settings, examples_of, texts, caplog
):
    settings = {"max_length": 32, "per_device_train_batch_size": 1, **settings}
    rows = [{"text": text} for text in [*texts[:60], "Why?"]]
    examples, _ = examples_of(rows, **settings)
    room, n_read, epochs = settings["max_length"] - 2, 0.0, 40
    for epoch in range(epochs):
        examples.set_epoch(epoch)
        drawn = [e["input_ids"] for e in examples.__getitems__(list(range(len(examples))))]
        for index, (query, context) in enumerate(zip(drawn[::2], drawn[1::2], strict=True)):
            whole = len(examples.blocks[index]["input_ids"])
            is_inside = settings["objective"] == "ict" and len(context) == whole
            n_read += min(len(context), room) + (0 if is_inside else min(len(query), room))
    n_tokens = int(caplog.text.split(" % of the ")[1].split(" tokens")[0])
    assert share_in(caplog.text) == pytest.approx(100 * n_read / epochs / n_tokens, abs=1.5)
    assert share_in(caplog.text) < 99


def test_nothing_is_said_where_all_is_read(examples_of, texts, caplog):
    long = "of rivers and museums " * 500
    _, facts = examples_of([{"text": text} for text in [*texts, long, "企鹅。" * 9]])
    assert facts["n_blocks"] > 1000
    numbered = (TEXT.replace(".", f" {i}.").replace("!", f" {i}!") for i in range(20))
    examples_of(
        [{"text": text} for text in numbered], objective="ict", per_device_train_batch_size=10
    )
    assert caplog.text == ""


def test_a_window_of_a_long_block_of_token_ids_is_said_to_be_a_part(examples_of, caplog):
    examples_of([{"input_ids": [40] * 30}, {"input_ids": [40] * 90}])
    assert "An epoch reads 50.0 % of the 120 tokens of the text: a random window" in caplog.text


def test_documents_blocks_and_tokens_without_a_pair_are_counted(examples_of, caplog):
    rows = [{"text": TEXT}, {"text": "Why?"}, {"text": ""}]
    settings: dict[str, Any] = {"objective": "ict", "per_device_train_batch_size": 1}
    _, facts = examples_of(rows, max_length=16, **settings)
    assert (facts["n_documents_left_out"], facts["n_blocks_left_out"]) == (2, 1)
    assert facts["n_tokens_left_out"] == 2
    n_blocks = facts["n_blocks"] + 1
    assert f"2 of 3 documents, 1 of {n_blocks} blocks and 2 of" in caplog.text
    with pytest.raises(ValueError, match="None of the 2 documents can be cut in two"):
        examples_of(rows[1:], **settings)


def test_padding_of_token_ids_is_removed_by_their_mask_or_refused(examples_of, bert_folder):
    tokenizer = AutoTokenizer.from_pretrained(bert_folder)
    padded = dict(tokenizer(["The river left.", "Why?"], padding="max_length", max_length=20))
    rows = [dict(zip(padded, row, strict=True)) for row in zip(*padded.values(), strict=True)]
    examples, facts = examples_of(rows)
    alone, of_text = examples_of([{"text": "The river left."}, {"text": "Why?"}])
    assert facts == of_text
    assert fingerprint_examples(examples) == fingerprint_examples(alone)
    assert np.array_equal(examples[0]["input_ids"], alone[0]["input_ids"])
    with pytest.raises(ValueError, match="padding token .*no attention_mask: keep this column"):
        examples_of([{"input_ids": row["input_ids"]} for row in rows])


@pytest.mark.parametrize("streaming", [False, True])
def test_a_text_that_the_tokenizer_does_not_know_gives_a_warning_with_the_share(
    streaming, bert_folder, tmp_path, caplog
):
    arguments = CondenserTrainingArguments(str(tmp_path), **SETTINGS)
    tokenizer = AutoTokenizer.from_pretrained(bert_folder)
    for text, is_known in (("Why? " * 12 + "ქართული ენა", True), ("Why? ქართული ენა " * 9, False)):
        rows = Dataset.from_list([{"text": text}])
        rows = rows.to_iterable_dataset() if streaming else rows
        examples, *_ = make_examples(rows, tokenizer, arguments)
        next(iter(examples))
        assert ("50 % of the tokens of the text are [UNK]" not in caplog.text) == is_known
