"""The verdict about a retriever and its start."""

import json

import pytest

from modeling_condenser.collection.load import load_collection
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.evaluation.verdict import compare_with_start


def test_a_model_is_judged_on_dev_queries_against_its_start(bert_folder, collection, retriever):
    dev = load_collection(collection, split="test")
    start, result = Retriever(bert_folder, pooling="mean"), Retriever(retriever)
    actual = compare_with_start(start, result, dev)
    back = compare_with_start(result, start, dev)
    assert actual.comparison.difference == pytest.approx(-back.comparison.difference)
    assert json.dumps(actual.to_dict())
    same = compare_with_start(start, start, dev)
    assert (same.outcome, same.comparison.difference) == ("no difference", 0.0)
