"""bfloat16: close to float32, the same bits again, and never mistaken for it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset

from modeling_condenser.encoding.encode import encode_collection
from modeling_condenser.encoding.fingerprints import fingerprint_retriever
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.encoding.token_batches import plan_batches
from modeling_condenser.retrieval.systems import parse_system
from tests.backbones.encoders import BACKBONES
from tests.encoding.encoders import MIXED


@pytest.fixture(scope="module")
def passages(texts: list[str]) -> Dataset:
    some = [*texts[:40], *MIXED]
    return Dataset.from_dict(
        {"_id": [f"p{i}" for i in range(len(some))], "title": [""] * len(some), "text": some}
    )


def opened(folder: Path, pooling: str = "cls", **settings: Any) -> Retriever:
    return Retriever(folder, pooling=pooling, device="cpu", **settings)


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return (first * second).sum(axis=1) / norms


@pytest.mark.parametrize("encoder", ["bert_folder", "roberta_folder"])
@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_vectors_point_where_those_of_float32_do(
    encoder: str, pooling: str, passages: Dataset, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(encoder)
    half = opened(folder, pooling, dtype="bfloat16")
    assert {weight.dtype for weight in half.model.parameters()} == {torch.bfloat16}
    found = half.encode_passages(passages)
    expected = opened(folder, pooling).encode_passages(passages)
    assert found.dtype == np.float32
    assert cosines(found, expected).min() > 0.999
    assert np.abs(found - expected).max() > 1e-4  # else nothing was rounded


def test_the_same_texts_give_the_same_bits(bert_folder: Path, passages: Dataset) -> None:
    first = opened(bert_folder, dtype="bfloat16", token_budget=300)
    vectors = first.encode_passages(passages)
    first.encode_queries(MIXED)
    again = opened(bert_folder, dtype="bfloat16", token_budget=300)
    assert np.array_equal(first.encode_passages(passages), vectors)
    assert np.array_equal(again.encode_passages(passages), vectors)


def test_unit_vectors_have_length_one_to_the_digits_of_float32(bert_folder: Path) -> None:
    retriever = opened(bert_folder, "mean", similarity="cosine", dtype="bfloat16")
    lengths = np.linalg.norm(retriever.encode_queries(MIXED), axis=1)
    np.testing.assert_allclose(lengths, 1, rtol=0, atol=1e-6)


def test_fingerprints_tell_it_from_float32_whose_own_stay_as_they_were(bert_folder: Path) -> None:
    single, half = opened(bert_folder), opened(bert_folder, dtype="bfloat16")
    assert single.fingerprint == fingerprint_retriever(bert_folder, single.contract)
    assert half.fingerprint != single.fingerprint
    assert opened(bert_folder, dtype="bfloat16").fingerprint == half.fingerprint
    assert "dtype" not in single.settings
    again = Retriever(half.folder, device="cpu", **half.settings)
    assert (again.dtype, again.fingerprint) == ("bfloat16", half.fingerprint)


@pytest.mark.parametrize(("there", "now"), [("float32", "bfloat16"), ("bfloat16", "float32")])
def test_vectors_of_the_other_type_are_refused(
    there: str, now: str, bert_folder: Path, passages: Dataset, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"shard_size": 20, "n_processes": 1, "progress": False}
    made = encode_collection(opened(bert_folder, dtype=there), passages, tmp_path, **settings)
    assert made.record["computation"]["dtype"] == there
    with pytest.raises(ValueError, match=f"dtype is '{there}' there and '{now}' now"):
        encode_collection(opened(bert_folder, dtype=now), passages, tmp_path, **settings)


def test_an_unknown_type_is_refused_with_those_there_are(bert_folder: Path) -> None:
    with pytest.raises(ValueError, match="dtype is 'float16', expected one of float32, bfloat16"):
        opened(bert_folder, dtype="float16")
    with pytest.raises(ValueError, match="dtype is 'half', expected one of float32, bfloat16"):
        parse_system("owner/bert,pooling=cls,dtype=half")
    with pytest.raises(ValueError, match="dtype is 'half', expected one of float32, bfloat16"):
        parse_system("owner/bert,pooling=cls").in_dtype("half")  # type: ignore[arg-type]


def test_a_system_takes_a_type_only_where_it_states_none() -> None:
    system = parse_system("owner/bert,pooling=cls")
    half = system.in_dtype("bfloat16")
    assert (half.name, half.settings["dtype"]) == ("bert-cls-bfloat16", "bfloat16")
    assert half.word == "owner/bert,pooling=cls,dtype=bfloat16"
    assert parse_system(half.word) == half
    assert system.in_dtype("float32") == system
    stated = parse_system("owner/bert,dtype=float32,name=mine")
    assert stated.in_dtype("bfloat16") == stated
    assert parse_system("owner/bert,name=mine").in_dtype("bfloat16").name == "mine"
    assert parse_system("bm25").in_dtype("bfloat16") == parse_system("bm25")


def shapes_of(
    retriever: Retriever, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> set[tuple[int, ...]]:
    """Of the batches that ever more texts make."""
    shapes, forward = set(), retriever.model.forward

    def spy(features: dict, **kwargs: object) -> dict:
        shapes.add(tuple(features["input_ids"].shape))
        return forward(features, **kwargs)

    monkeypatch.setattr(retriever.model, "forward", spy)
    for n in range(1, 60, 5):
        retriever.encode_queries(texts[:n])
    return shapes


def test_a_cpu_meets_few_shapes_of_padded_batches(
    texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = BACKBONES["MPNet"].save(tmp_path, texts)
    half, single = (
        shapes_of(opened(folder, dtype=dtype, token_budget=300), texts, monkeypatch)
        for dtype in ("bfloat16", "float32")
    )
    assert all(length % 8 == 0 and length <= 64 for _, length in half)
    # Full batches, and last ones of a power of two.
    assert all(rows == 300 // length or rows.bit_count() == 1 for rows, length in half)
    assert all(rows * length <= 300 for rows, length in half)
    assert len(half) < 0.6 * len(single)


def test_a_cpu_meets_few_shapes_of_packed_batches(
    bert_folder: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    half = opened(bert_folder, dtype="bfloat16", token_budget=300)
    assert shapes_of(half, texts, monkeypatch) == {(1, 64), (1, 128), (1, 192), (1, 256)}


def test_a_budget_counts_lengths_that_are_rounded_up() -> None:
    batches = plan_batches(np.array([9, 9, 9, 9, 3]), token_budget=32, multiple=8)
    assert [list(rows) for rows in batches] == [[0, 1], [2, 3], [4]]
