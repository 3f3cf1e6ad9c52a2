"""A card's metadata: what follows from the record, and what a person wrote beside it."""

from typing import Any

import pytest
from huggingface_hub import ModelCardData

from modeling_condenser.repository.metadata import (
    find_base_model,
    find_datasets,
    make_metadata,
    merge_metadata,
)
from modeling_condenser.repository.provenance import Stage
from modeling_condenser.repository.results import EvaluationResult

RESULT = EvaluationResult(
    "scifact", "test", 100, 300, {"nDCG@10": 0.65125, "R@100": 0.9}, source="BeIR/scifact"
)


def stage(name: str = "Pre-training", **recipe: Any) -> Stage:
    return Stage(name, recipe, {})


def make(*results: EvaluationResult, stages: tuple[Stage, ...] = ()) -> dict[str, Any]:
    return make_metadata(stages, results, model_name="my-model", is_checkpoint=False)


def test_the_hub_reads_the_same_values_back() -> None:
    deeper = EvaluationResult("scifact", "test", 1000, 300, {"R@1000": 1.0}, source="BeIR/scifact")
    local = EvaluationResult("mine", "dev", 100, 3, {"MRR@10": 1 / 3}, search={"index": "HNSW32"})
    data = ModelCardData(**make(RESULT, deeper, local))
    assert data.model_name == "my-model"
    found = [
        (r.dataset_type, r.dataset_name, r.dataset_split, r.metric_type, r.metric_value)
        for r in data.eval_results
    ]
    assert found == [
        ("BeIR/scifact", "scifact", "test", "nDCG@10", 0.6512),
        ("BeIR/scifact", "scifact", "test", "R@100", 0.9),
        ("BeIR/scifact", "scifact", "test", "R@1000", 1.0),
        ("mine", "mine", "dev", "MRR@10", 0.3333),
    ]
    assert [r.metric_args for r in data.eval_results[1:]] == [
        {"depth": 100},
        {"depth": 1000},
        {"depth": 100, "index": "HNSW32"},
    ]


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ([], None),
        ([stage(encoder="google-bert/bert-base-uncased")], "google-bert/bert-base-uncased"),
        ([stage(encoder="owner/name@abc123")], "owner/name"),
        ([stage(encoder="bert-base-uncased")], None),
        ([stage(encoder="local: start")], None),
        ([stage(encoder="a/b"), stage("Fine-tuning", encoder="local: x")], "a/b"),
        ([stage(encoder="a/b"), stage("Fine-tuning", encoder="c/d")], "c/d"),
    ],
)
def test_the_base_model_is_the_nearest_ancestor_on_the_hub(
    stages: list[Stage], expected: str | None
) -> None:
    assert find_base_model(stages) == expected


def test_the_data_sets_are_those_on_the_hub() -> None:
    stages = [
        stage(corpus=[{"path": "wikimedia/wikipedia", "name": "en"}, "local: a.txt", "b/c"]),
        stage("Fine-tuning", collection="BeIR/scifact@main", data=["b/c", "d/train.jsonl"]),
        stage("Fine-tuning", data="e/f"),
    ]
    assert find_datasets(stages) == ["wikimedia/wikipedia", "b/c", "BeIR/scifact", "e/f"]


@pytest.mark.parametrize(
    ("stages", "is_checkpoint", "library", "task"),
    [
        ((stage(),), True, "transformers", "fill-mask"),
        ((stage(),), False, "sentence-transformers", "feature-extraction"),
        ((stage(), stage("Fine-tuning")), False, "sentence-transformers", "sentence-similarity"),
    ],
)
def test_the_hub_is_told_what_the_model_is_for(
    stages: tuple[Stage, ...], is_checkpoint: bool, library: str, task: str
) -> None:
    made = make_metadata(stages, [], model_name="x", is_checkpoint=is_checkpoint)
    assert (made["library_name"], made["pipeline_tag"]) == (library, task)
    assert made["tags"][:2] == ["condenser", "dense-retrieval"]
    assert ("sentence-transformers" in made["tags"]) is not is_checkpoint
    assert "model-index" not in made


def test_what_a_person_wrote_stays() -> None:
    written = {
        "license": "mit",
        "language": "no",
        "tags": ["law", "condenser"],
        "datasets": "me/private",
        "pipeline_tag": "feature-extraction",
        "base_model": "me/older",
    }
    made = make(stages=(stage("Fine-tuning", encoder="a/b", collection="c/d"),))
    merged = merge_metadata(written, made)
    assert merged["license"] == "mit" and merged["language"] == "no"
    assert merged["pipeline_tag"] == "feature-extraction"
    assert merged["datasets"] == ["me/private", "c/d"]
    assert merged["tags"] == [
        *("law", "condenser", "dense-retrieval", "sentence-transformers", "feature-extraction")
    ]
    assert merged["base_model"] == "a/b"  # the record knows
    assert merge_metadata(merged, made) == merged
    assert merge_metadata({"base_model": "me/older"}, make())["base_model"] == "me/older"


def test_our_results_are_replaced_and_those_of_others_kept() -> None:
    theirs = {
        "task": {"type": "Retrieval"},
        "dataset": {"type": "mteb/nfcorpus", "name": "MTEB NFCorpus"},
        "metrics": [{"type": "ndcg_at_10", "value": 31.4}],
    }
    before = make(RESULT)
    before["model-index"][0]["results"].append(theirs)
    later = EvaluationResult("scifact", "dev", 100, 30, {"R@100": 0.5}, source="BeIR/scifact")
    merged = merge_metadata(before, make(later))
    data = ModelCardData(**merged)
    found = [(r.dataset_type, r.dataset_split, r.metric_value) for r in data.eval_results]
    assert found == [("BeIR/scifact", "dev", 0.5), ("mteb/nfcorpus", None, 31.4)]
    assert [m["name"] for m in merged["model-index"]] == ["my-model"]
    only_theirs = merge_metadata(merged, make())
    assert [r["dataset"]["type"] for r in only_theirs["model-index"][0]["results"]] == [
        "mteb/nfcorpus"
    ]
    assert "model-index" not in merge_metadata(make(RESULT), make())
