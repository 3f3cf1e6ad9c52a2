"""The last layer for CLS alone: the same vectors from one row a text, and only where exact."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling
from transformers import AutoTokenizer

from modeling_condenser.encoding.cls_layer import ClsLayer
from modeling_condenser.encoding.retriever import Retriever
from tests.backbones.encoders import BACKBONES
from tests.encoding.encoders import MIXED, save_modules
from tests.publishing.making import plain_vectors

NARROW = ["BERT", "CamemBERT", "DistilBERT", "ELECTRA", "RoBERTa", "XLM-RoBERTa"]


def narrow(folder: Path, **settings: Any) -> Retriever:
    """A retriever that uses the layer in float32, too, in which exactness can be seen."""
    retriever = Retriever(folder, **settings)
    retriever._cls_layer = ClsLayer.of(retriever.model)
    return retriever


@contextmanager
def rows_of_last_output(retriever: Retriever) -> Iterator[list[int]]:
    """How many rows a text each batch's last hidden state has."""
    rows: list[int] = []
    transformer: Any = retriever.model[0]
    hook = transformer.register_forward_hook(
        lambda _, args, output: rows.append(output["token_embeddings"].shape[1])
    )
    yield rows
    hook.remove()


@pytest.mark.parametrize("name", sorted(BACKBONES))
def test_the_vectors_are_those_of_transformers_and_only_cls_is_computed_where_it_can_be(
    name: str, texts: list[str], tmp_path: Path
) -> None:
    folder = BACKBONES[name].save(tmp_path, texts)
    retriever = narrow(folder, pooling="cls", token_budget=60, device="cpu")
    expected = plain_vectors(folder, MIXED, pooling="cls").numpy()
    with rows_of_last_output(retriever) as rows:
        found = retriever.encode_queries(MIXED)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert len(rows) > 2
    assert (set(rows) == {1}) == (name in NARROW)


def test_vectors_with_and_without_it_agree_to_a_millionth(
    bert_folder: Path, texts: list[str]
) -> None:
    retriever = narrow(bert_folder, pooling="cls", device="cpu")
    found = retriever.encode_queries([*MIXED, *texts])
    assert retriever._cls_layer is not None
    retriever._cls_layer = None
    np.testing.assert_allclose(found, retriever.encode_queries([*MIXED, *texts]), rtol=0, atol=1e-6)


def test_the_model_computes_all_rows_for_others_again_afterwards(bert_folder: Path) -> None:
    retriever = narrow(bert_folder, pooling="cls", device="cpu")
    vectors = retriever.encode_queries(MIXED)
    with rows_of_last_output(retriever) as rows:
        theirs = retriever.model.encode(MIXED, show_progress_bar=False)
    assert min(rows) > 1
    np.testing.assert_allclose(vectors, theirs, rtol=0, atol=2e-6)
    transformer: Any = retriever.model[0]
    assert transformer.model.config._attn_implementation == "sdpa"


def test_an_error_leaves_the_layer_as_it_was(bert_folder: Path) -> None:
    layer = narrow(bert_folder, pooling="cls", device="cpu")._cls_layer
    assert layer is not None
    before = layer.attention.config
    with layer.alone():
        assert layer.attention.config is layer.config
    with pytest.raises(ZeroDivisionError), layer.alone():
        1 / 0  # noqa: B018
    assert layer.attention.config is before
    assert not layer.layer._forward_pre_hooks


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_other_poolings_get_all_rows(pooling: str, bert_folder: Path) -> None:
    retriever = narrow(bert_folder, pooling=pooling, device="cpu")
    with rows_of_last_output(retriever) as rows:
        retriever.encode_queries(MIXED)
    assert min(rows) > 1


def test_modules_behind_the_pooling_read_the_same_vector(bert_folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    folder = save_modules(
        tmp_path / "dense",
        bert_folder,
        lambda size: [Pooling(size, pooling_mode="cls"), Dense(size, 12), Normalize()],
        similarity_fn_name="cosine",
    )
    retriever = narrow(folder, device="cpu")
    with rows_of_last_output(retriever) as rows:
        found = retriever.encode_queries(MIXED)
    assert set(rows) == {1}
    expected = retriever.model.encode(MIXED, show_progress_bar=False)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_cls_behind_a_prompt_that_is_left_out_gets_all_rows(
    bert_folder: Path, tmp_path: Path
) -> None:
    folder = save_modules(
        tmp_path / "prompted",
        bert_folder,
        lambda size: [Pooling(size, pooling_mode="cls", include_prompt=False)],
        prompts={"query": "In words: "},
        similarity_fn_name="dot",
    )
    retriever = narrow(folder, device="cpu")
    expected = retriever.model.encode(MIXED, prompt_name="query", show_progress_bar=False)
    np.testing.assert_allclose(retriever.encode_queries(MIXED), expected, rtol=0, atol=2e-6)
    assert retriever._cls_layer is None


def test_texts_that_are_padded_on_the_left_get_all_rows(bert_folder: Path, tmp_path: Path) -> None:
    folder = save_modules(
        tmp_path / "left",
        bert_folder,
        lambda size: [Pooling(size, pooling_mode="cls")],
        similarity_fn_name="dot",
    )
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    tokenizer.save_pretrained(folder)
    retriever = narrow(folder, device="cpu")
    assert retriever.model.tokenizer.padding_side == "left"
    assert retriever._cls_layer is None


def test_bfloat16_uses_it_and_float32_keeps_the_bits_of_the_evaluation_script(
    bert_folder: Path,
) -> None:
    half = Retriever(bert_folder, pooling="cls", device="cpu", dtype="bfloat16")
    with rows_of_last_output(half) as rows:
        half.encode_queries(MIXED)
    assert set(rows) == {1}
    single = Retriever(bert_folder, pooling="cls", device="cpu")
    with rows_of_last_output(single) as rows:
        single.encode_queries(MIXED)
    assert min(rows) > 1
