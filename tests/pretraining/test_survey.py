"""What is left out of a text, and what is said of it."""

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


def test_a_text_that_the_tokenizer_does_not_know_gives_a_warning_with_the_share(
    examples_of, caplog
):
    for text, is_known in (("Why? " * 12 + "ქართული ენა", True), ("Why? ქართული ენა " * 9, False)):
        examples_of([{"text": text}])
        assert ("50 % of the tokens of the text are [UNK]" not in caplog.text) == is_known
