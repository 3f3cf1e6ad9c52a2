"""What a fine-tuning recipe may say: settings that fit, and errors for those that do not."""

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
        ({**PAIRS, "margin": 1.0}, "margin is only for objective triplet, but .* contrastive"),
        ({**TRIPLES, "temperature": 0.1}, "temperature is only for objective contrastive and kl"),
        ({**GRADED, "mini_batch_size": 8}, "mini_batch_size is only for objective contrastive"),
        ({**SCORED, "gather_across_devices": True}, "gather_across_devices is only for"),
        ({**PAIRS, "score_range": [0, 5]}, "score_range is only for objective mse_cosine"),
        ({**PAIRS, "n_negatives": 2}, "n_negatives is only for a file of negatives, or"),
        ({**PAIRS, "negatives": "n.jsonl"}, "negatives is only for the judged pairs of a coll"),
        ({"collection": "c", "columns": {"query": "q"}}, "columns is only for data, which"),
        ({"collection": "c", "format": "pairs"}, "format is only for data, which"),
        ({"collection": "c", "first_rows": 5}, "first_rows is only for data, which"),
        ({**PAIRS, "collection": "c"}, "both a collection and data"),
        (
            {"data": "d.json", "format": "dpr", "columns": {"query": "q"}},
            "columns is not for format dpr",
        ),
    ],
)
def test_a_setting_without_a_use_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recipe(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "names nothing to train on: add collection .* or data"),
        (
            {"data": "d.jsonl"},
            "names no format, but objective contrastive trains on data of format",
        ),
        (
            {**GRADED, "format": "pairs"},
            "format is 'pairs', but objective mse_cosine .* graded_pairs, stsb",
        ),
        (
            {**GRADED, "similarity": "dot"},
            "similarity is 'dot', but objective mse_cosine .* cosine",
        ),
        (
            {**PAIRS, "similarity": "euclidean"},
            "'euclidean', but objective contrastive .* dot or cosine",
        ),
        ({**TRIPLES, "similarity": "dot"}, "'dot', but objective triplet .* euclidean or cosine"),
        ({"collection": "c", "objective": "mse_cosine"}, "mse_cosine needs graded pairs"),
        ({"collection": "c", "objective": "triplet"}, "objective triplet needs negatives beside"),
        ({"collection": "c", "objective": "kl"}, "needs negatives with a cross-encoder's scores"),
        (
            {"data": "d.tsv", "format": "id_triples"},
            "id_triples holds ids only: name the collection",
        ),
        ({**TRIPLES, "format": "negatives", "n_negatives": 2}, "a triplet has one negative"),
        ({**SCORED, "n_negatives": 0}, "compares a positive with negatives"),
        ({**PAIRS, "order": "sequential"}, "order: sequential is not for objective contrastive"),
        ({**PAIRS, "temperature": 0.0}, "temperature is 0.0, expected a number above 0"),
        ({**PAIRS, "temperature": float("nan")}, "temperature is nan"),
        ({**TRIPLES, "margin": -1.0}, "margin is -1.0, expected at least 0"),
        ({**PAIRS, "train_size": 0}, "train_size is 0, expected at least 1"),
        ({**PAIRS, "mini_batch_size": 0}, "mini_batch_size is 0, expected at least 1"),
        ({**GRADED, "score_range": [5, 0]}, r"score_range is \[5, 0\], expected the lowest and"),
        ({**GRADED, "score_range": "0-5"}, "score_range is '0-5'"),
        ({**GRADED, "score_range": [0, 5, 6]}, "score_range is"),
    ],
)
def test_a_wrong_setting_says_what_was_expected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recipe(**settings)


def test_columns_are_known_names_and_the_nearest_is_offered() -> None:
    recipe(**PAIRS, columns={"query": "question"})
    recipe(data="d", format="negatives", columns={"negative_12": "hard_12"})
    recipe(data="d", format="scored", objective="kl", columns={"negative_score_3": "s3"})
    recipe(**TRIPLES, columns=["query", "positive", "negative"])
    with pytest.raises(
        ValueError, match="names 'qery', but .* query, positive. Did you mean 'query'"
    ):
        recipe(**PAIRS, columns={"qery": "question"})
    with pytest.raises(ValueError, match="names 'negative_1', but format pairs"):
        recipe(**PAIRS, columns={"negative_1": "n"})
    with pytest.raises(ValueError, match="columns is 'query', expected our names"):
        recipe(**PAIRS, columns="query")
    with pytest.raises(ValueError, match="names of all columns of a file without header"):
        recipe(**TRIPLES, columns=[1, 2])


def test_a_recipe_is_filled_from_a_file_with_the_types_checked() -> None:
    (made,) = fill({"encoder": "e", "collection": "c", "temperature": 1}, FinetuningRecipe)
    assert made.temperature == 1.0
    with pytest.raises(ValueError, match="objective is 'contrast', expected one of 'contrastive'"):
        fill({"encoder": "e", "collection": "c", "objective": "contrast"}, FinetuningRecipe)
    with pytest.raises(ValueError, match="pooling is 'avg', expected one of 'cls', 'mean', 'max'"):
        fill({"encoder": "e", "collection": "c", "pooling": "avg"}, FinetuningRecipe)
