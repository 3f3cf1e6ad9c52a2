"""Settings of a fine-tuning recipe that fit, and errors for those that do not."""

from typing import Any

import pytest

from modeling_condenser.biencoder.recipe import FinetuningRecipe
from modeling_condenser.runs.recipe import fill

PAIRS = {"data": "pairs.jsonl", "format": "pairs"}
TRIPLES = {"data": "t.tsv", "format": "triples", "objective": "triplet"}
GRADED = {"data": "s.csv", "format": "graded_pairs", "objective": "mse_cosine"}
SCORED = {"data": "s.jsonl", "format": "scored", "objective": "kl"}


def recipe(**settings: Any) -> FinetuningRecipe:
    return FinetuningRecipe(encoder="owner/encoder", **settings)


@pytest.mark.parametrize(
    ("settings", "similarity"),
    [
        ({"collection": "c"}, "dot"),
        ({"collection": "c", "similarity": "cosine"}, "cosine"),
        (GRADED, "cosine"),
        (TRIPLES, "euclidean"),
        ({**TRIPLES, "similarity": "cosine"}, "cosine"),
        (SCORED, "dot"),
        ({**SCORED, "objective": "margin_mse", "similarity": "cosine"}, "cosine"),
    ],
)
def test_an_objective_has_its_similarity(settings: dict[str, Any], similarity: str) -> None:
    made = recipe(**settings)
    assert made.trained_similarity == similarity
    assert made.contract_changes == {"similarity": similarity}


def test_only_what_is_stated_changes_the_contract() -> None:
    changes = {
        "pooling": "mean",
        "query_max_length": 8,
        "title_separator": "",
        "query_prompt": "q: ",
    }
    made = recipe(collection="c", **changes)
    assert made.contract_changes == {**changes, "similarity": "dot"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**PAIRS, "margin": 1.0}, "margin is for objective triplet, but .* contrastive"),
        ({**SCORED, "gather_across_devices": True}, "gather_across_devices is for"),
        ({**PAIRS, "n_negatives": 2}, "n_negatives is for a file of negatives, or"),
        ({**PAIRS, "negatives": "n.jsonl"}, "negatives is for the judged pairs"),
        ({"collection": "c", "format": "pairs"}, "format is for data, which"),
        ({**PAIRS, "collection": "c"}, "format is pairs and collection is 'c'"),
        ({"data": "d.tsv", "format": "id_triples"}, "needs the collection that has the texts"),
        ({"data": "d", "format": "dpr", "columns": {"query": "q"}}, "not supported for format dpr"),
        ({}, "has no training data"),
        ({"data": "d.jsonl"}, "format is None, but objective contrastive trains on"),
        ({**GRADED, "format": "pairs"}, "format is 'pairs', but .* graded_pairs, stsb"),
        ({**PAIRS, "similarity": "euclidean"}, "'euclidean' is not supported .* dot, cosine"),
        ({"collection": "c", "objective": "mse_cosine"}, "mse_cosine needs graded pairs"),
        ({"collection": "c", "objective": "kl"}, "needs negatives with a cross-encoder's scores"),
        ({**TRIPLES, "format": "negatives", "n_negatives": 2}, "A triplet has one negative"),
        ({**SCORED, "n_negatives": 0}, "n_negatives is 0, but objective kl"),
        ({**PAIRS, "order": "sequential"}, "order: sequential is not supported"),
        ({**PAIRS, "temperature": float("nan")}, "temperature is nan"),
        ({**TRIPLES, "margin": -1.0}, "margin is -1.0, expected at least 0"),
        ({**PAIRS, "train_size": 0}, "train_size is 0, expected at least 1"),
        ({**GRADED, "score_range": [5, 0]}, r"score_range is \[5, 0\], expected the lowest and"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recipe(**settings)


def test_columns_are_known_names_and_the_nearest_is_offered() -> None:
    recipe(**PAIRS, columns={"query": "question"})
    recipe(data="d", format="negatives", columns={"negative_12": "hard_12"})
    recipe(data="d", format="scored", objective="kl", columns={"negative_score_3": "s3"})
    recipe(**TRIPLES, columns=["query", "positive", "negative"])
    with pytest.raises(
        ValueError, match="has 'qery', but .* query, positive. Did you mean 'query'"
    ):
        recipe(**PAIRS, columns={"qery": "question"})
    for columns in ("query", [1, 2], {}):
        with pytest.raises(ValueError, match="columns is .*, expected our names"):
            recipe(**PAIRS, columns=columns)


def test_a_recipe_is_filled_from_a_file_with_the_types_checked() -> None:
    (made,) = fill({"encoder": "e", "collection": "c", "temperature": 1}, FinetuningRecipe)
    assert made.temperature == 1.0
    with pytest.raises(ValueError, match="objective is 'contrast', expected one of 'contrastive'"):
        fill({"encoder": "e", "collection": "c", "objective": "contrast"}, FinetuningRecipe)
