"""What `condenser finetune` says comes next."""

from typing import Any

import pytest

from hub_scripts.finetune import evaluated_on
from modeling_condenser.runs.recipe import read_recipe


@pytest.mark.parametrize(
    ("recipe", "changes", "words"),
    [
        ("contrastive", {"collection": "my-collection"}, "my-collection"),
        ("stsb", {"data": "train.csv"}, "TEST_PAIRS.csv --task graded_pairs"),
        ("wikipedia-sections", {"data": "train.csv"}, "TEST_TRIPLETS.csv --task triplets"),
        ("thesis-triplets", {"data": "triples.tsv"}, "COLLECTION"),
        ("nq", {"data": "nq.json"}, "COLLECTION"),
        ("msmarco-passage", {"collection": "marco", "negatives": "n.tsv"}, "marco"),
    ],
)
def test_the_evaluation_fits_what_was_trained(
    recipe: str, changes: dict[str, Any], words: str
) -> None:
    assert evaluated_on({**read_recipe(f"finetune/{recipe}"), **changes}) == words
