"""What is left out of text, and what the log says of it."""

from typing import Any

import pytest
from datasets import Dataset
from transformers import AutoTokenizer

from modeling_condenser import CondenserTrainingArguments
from modeling_condenser.pretraining.examples import make_examples
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


def test_documents_without_a_pair_are_counted_and_left_out(examples_of, caplog):
    rows = [{"text": TEXT}, {"text": "Why?"}, {"text": ""}]
    settings: dict[str, Any] = {"objective": "ict", "per_device_train_batch_size": 1}
    _, facts = examples_of(rows, max_length=16, **settings)
    assert (facts["n_documents"], facts["n_documents_left_out"]) == (3, 2)
    assert "2 of 3 documents cannot be cut in two" in caplog.text
    with pytest.raises(ValueError, match="None of the 2 documents can be cut in two"):
        examples_of(rows[1:], **settings)


def test_a_text_that_the_tokenizer_does_not_know_gives_a_warning_with_the_share(
    examples_of, caplog
):
    for text, is_known in (("Why? " * 12 + "ქართული ენა", True), ("Why? ქართული ენა " * 9, False)):
        examples_of([{"text": text}])
        assert ("50 % of the tokens (texts: " not in caplog.text) == is_known
