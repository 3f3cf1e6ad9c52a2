"""Packed batches give the vectors of padded ones, with fewer rows wherever that is exact."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from modeling_condenser.encoding.packed_encoder import use_packing
from modeling_condenser.encoding.retriever import Retriever
from tests.backbones.encoders import BACKBONES
from tests.encoding.encoders import MIXED, SEGMENTED, save_modules, save_pooled, with_template
from tests.hub.making import plain_vectors

PADDED_ONLY = ("DeBERTa-v2", "DeBERTa-v3", "MPNet")
NARROW = ("BERT", "CamemBERT", "DistilBERT", "ELECTRA", "RoBERTa", "XLM-RoBERTa")


def packed(folder: Path, **settings: Any) -> Retriever:
    """A retriever that packs in float32, too, in which exactness can be seen."""
    retriever = Retriever(folder, device="cpu", **settings)
    retriever._is_packed = use_packing(retriever.model)
    return retriever


@contextmanager
def shapes_of(retriever: Retriever) -> Iterator[list[tuple[int, int, int, int]]]:
    """The rows and columns of each batch's token ids, and of its last hidden states."""
    shapes: list[tuple[int, int, int, int]] = []
    transformer: Any = retriever.model[0]

    def note(_: Any, args: tuple, features: dict[str, Any]) -> None:
        states = features["token_embeddings"]
        shapes.append((*args[0]["input_ids"].shape, *states.shape[:2]))

    hook = transformer.register_forward_hook(note)
    yield shapes
    hook.remove()


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("name", sorted(BACKBONES))
def test_packed_vectors_are_those_of_transformers(
    name: str, pooling: str, texts: list[str], tmp_path: Path
) -> None:
    folder = BACKBONES[name].save(tmp_path, texts)
    retriever = packed(folder, pooling=pooling, token_budget=64)
    expected = plain_vectors(folder, MIXED, pooling=pooling).numpy()
    with shapes_of(retriever) as shapes:
        found = retriever.encode_queries(MIXED)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert len(shapes) > 2
    if name in PADDED_ONLY:
        assert not retriever._is_packed
        return
    assert {shape[:2] for shape in shapes} == {(1, 64)}
    reads_cls_only = pooling == "cls" and name in NARROW
    assert all((rows < 10) == reads_cls_only for *_, rows in shapes)


def test_the_model_takes_padded_batches_of_others_as_before(bert_folder: Path) -> None:
    retriever = packed(bert_folder, pooling="cls")
    vectors = retriever.encode_queries(MIXED)
    with shapes_of(retriever) as shapes:
        theirs = retriever.model.encode(MIXED, show_progress_bar=False)
    (n_texts, length, *states), *_ = shapes
    assert n_texts == len(MIXED)
    assert states == [n_texts, length]
    np.testing.assert_allclose(vectors, theirs, rtol=0, atol=2e-6)
    untouched = Retriever(bert_folder, pooling="cls").model.encode(MIXED, show_progress_bar=False)
    assert np.array_equal(theirs, untouched)


def test_modules_after_the_pooling_read_the_same_vector(bert_folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    folder = save_modules(
        tmp_path / "dense",
        bert_folder,
        lambda size: [Pooling(size, pooling_mode="cls"), Dense(size, 12), Normalize()],
        similarity_fn_name="cosine",
    )
    retriever = packed(folder)
    with shapes_of(retriever) as shapes:
        found = retriever.encode_queries(MIXED)
    assert [shape[3] for shape in shapes] == [len(MIXED) + 1]  # and the filler
    expected = retriever.model.encode(MIXED, show_progress_bar=False)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_prompts_are_excluded_and_segment_ids_are_packed_too(
    bert_folder: Path, wordpiece_tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    encoder = with_template(bert_folder, tmp_path / "encoder", wordpiece_tokenizer, SEGMENTED)
    folder = save_modules(
        tmp_path / "prompted",
        encoder,
        lambda size: [Pooling(size, pooling_mode="mean", include_prompt=False)],
        prompts={"query": "In words: "},
        similarity_fn_name="dot",
    )
    retriever = packed(folder)
    expected = retriever.model.encode(MIXED, prompt_name="query", show_progress_bar=False)
    with shapes_of(retriever) as shapes:
        found = retriever.encode_queries(MIXED)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)
    assert all(shape[:2] == shape[2:] and shape[0] == 1 for shape in shapes)
    retriever.token_budget = 64
    np.testing.assert_allclose(retriever.encode_queries(MIXED), expected, rtol=0, atol=2e-6)


def test_other_models_stay_padded(bert_folder: Path, tmp_path: Path) -> None:
    left = save_pooled(tmp_path / "left", bert_folder, "cls")
    AutoTokenizer.from_pretrained(left, padding_side="left").save_pretrained(left)
    causal = save_pooled(tmp_path / "causal", bert_folder, "cls")
    AutoConfig.from_pretrained(causal, is_decoder=True).save_pretrained(causal)
    to_tokens = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    dense = save_modules(
        tmp_path / "dense",
        bert_folder,
        lambda size: [Dense(size, 12, **to_tokens), Pooling(12, pooling_mode="mean")],
        similarity_fn_name="dot",
    )
    for folder in (left, causal, dense):
        half = Retriever(folder, device="cpu", dtype="bfloat16")
        assert not half._is_packed
        found, expected = half.encode_queries(MIXED), Retriever(folder).encode_queries(MIXED)
        norms = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
        assert ((found * expected).sum(axis=1) / norms).min() > 0.999


def test_bfloat16_is_packed_and_float32_keeps_the_bits_of_the_evaluation_script(
    bert_folder: Path,
) -> None:
    half = Retriever(bert_folder, pooling="cls", device="cpu", dtype="bfloat16")
    with shapes_of(half) as shapes:
        half.encode_queries(MIXED)
    assert [shape[3] for shape in shapes] == [len(MIXED) + 1]
    single = Retriever(bert_folder, pooling="cls", device="cpu")
    with shapes_of(single) as shapes:
        single.encode_queries(MIXED)
    assert [shape[0] for shape in shapes] == [len(MIXED)]
