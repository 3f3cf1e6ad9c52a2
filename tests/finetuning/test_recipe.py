"""Settings of a fine-tuning recipe that fit, and errors for those that do not."""

from typing import Any

import pytest

from modeling_condenser.finetuning.recipe import FinetuningRecipe
from modeling_condenser.runs.recipe import fill

PAIRS = {"data": "pairs.jsonl", "format": "pairs"}
TRIPLES = {"data": "t.tsv", "format": "triples", "objective": "triplet"}
GRADED = {"data": "s.csv", "format": "graded_pairs", "objective": "mse_cosine"}
SCORED = {"data": "s.jsonl", "format": "scored", "objective": "kl"}


def recipe(**settings: Any) -> FinetuningRecipe:
    return fill({"encoder": "owner/encoder", **settings}, FinetuningRecipe)[0]


@pytest.mark.parametrize(
    ("settings", "similarity"),
    [({"collection": "c"}, "dot"), (GRADED, "cosine"), (TRIPLES, "euclidean"), (SCORED, "dot")],
)
def test_an_objective_has_its_similarity(settings: dict[str, Any], similarity: str) -> None:
    assert recipe(**settings).contract_changes == {"similarity": similarity}


def test_only_what_is_stated_changes_the_contract() -> None:
    changes = {"pooling": "mean", "query_max_length": 8, "title_separator": "", "similarity": "dot"}
    assert recipe(collection="c", **changes).contract_changes == changes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**PAIRS, "margin": 1.0}, "margin is not for objective contrastive"),
        ({**PAIRS, "n_negatives": 2}, "n_negatives is for a file of negatives, or"),
        ({**PAIRS, "negatives": "n.jsonl"}, "negatives is for the judged pairs"),
        ({**PAIRS, "collection": "c"}, "format is pairs and collection is 'c'"),
        ({}, "has no training data"),
        ({**GRADED, "format": "pairs"}, "format is 'pairs', but .* graded_pairs, stsb"),
        ({**PAIRS, "similarity": "euclidean"}, "'euclidean' is not supported .* dot, cosine"),
        ({"collection": "c", "objective": "kl"}, "needs negatives with a cross-encoder's scores"),
        ({**TRIPLES, "format": "negatives", "n_negatives": 2}, "A triplet has one negative"),
        ({**PAIRS, "order": "sequential"}, "order: sequential is not supported"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recipe(**settings)
