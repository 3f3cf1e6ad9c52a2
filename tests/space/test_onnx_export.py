"""The encoder as ONNX, computed by onnx's own reference implementation."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.space.onnx_export import write_encoder
from tests.backbones.encoders import BACKBONES
from tests.publishing.making import plain_vectors

TEXTS = ["glacier", "The old museum near Oslo repairs the engine.", "one two three " * 9]


def run_onnx(folder: Path, *, by_runtime: bool = False) -> np.ndarray:
    """The vectors of `TEXTS`, of up to 40 tokens, one at a time."""
    if by_runtime:
        from onnxruntime import InferenceSession as Graph
    else:
        from onnx.reference import ReferenceEvaluator as Graph

    graph = Graph(str(folder / "onnx" / "model.onnx"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = [tokenizer(text, truncation=True, max_length=40)["input_ids"] for text in TEXTS]
    return np.concatenate([graph.run(None, {"input_ids": np.array([row])})[0] for row in ids])


def test_onnx_is_asked_for_with_an_install_hint(bert_folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    hint = r'onnxscript is not installed: pip install -c constraints.txt -e "\.\[onnx\]"'
    with pytest.raises(ValueError, match=hint):
        write_encoder(tmp_path / "x", Retriever(bert_folder, pooling="cls", device="cpu"))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_the_graph_pools_truncates_and_normalises_as_the_contract_says(
    pooling, bert_folder, tmp_path
):
    pytest.importorskip("onnxscript")
    settings = {"pooling": pooling, "similarity": "cosine", "truncate_dim": 20}
    opened = Retriever(bert_folder, device="cpu", **settings)
    write_encoder(tmp_path / "x", opened, weights="float32")
    found = run_onnx(tmp_path / "x")
    expected = plain_vectors(bert_folder, TEXTS, 40, pooling)[:, :20].numpy()
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    content = (tmp_path / "x" / "onnx" / "model.onnx").read_bytes()
    assert str(Path.home()).encode() not in content and b".py" not in content


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKBONES)
def test_onnx_runtime_gives_the_vectors_of_all_encoder_types(name, texts, tmp_path):
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    folder = BACKBONES[name].save(tmp_path / "encoder", texts)
    write_encoder(tmp_path / "x", Retriever(folder, pooling="cls", device="cpu"), weights="float32")
    found = run_onnx(tmp_path / "x", by_runtime=True)
    np.testing.assert_allclose(found, plain_vectors(folder, TEXTS, 40).numpy(), atol=1e-5)


@pytest.mark.slow
def test_float16_weights_halve_the_file_and_round_the_weights_only(bert_folder, tmp_path):
    pytest.importorskip("onnxscript")
    retriever = Retriever(bert_folder, pooling="cls", device="cpu")
    for weights in ("float16", "float32"):
        write_encoder(tmp_path / weights, retriever, weights=weights)
    files = [tmp_path / name / "onnx" / "model.onnx" for name in ("float16", "float32")]
    sizes = [file.stat().st_size for file in files]
    assert sizes[0] < 0.75 * sizes[1]  # the rest of so small a graph is its structure

    model = AutoModel.from_pretrained(bert_folder)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.numel() >= 1024:
                parameter.copy_(parameter.half())
    model.save_pretrained(tmp_path / "rounded")
    AutoTokenizer.from_pretrained(bert_folder).save_pretrained(tmp_path / "rounded")
    found = run_onnx(tmp_path / "float16")
    rounded = plain_vectors(tmp_path / "rounded", TEXTS, 40).numpy()
    np.testing.assert_allclose(found, rounded, atol=1e-5)
    assert np.abs(found - plain_vectors(bert_folder, TEXTS, 40).numpy()).max() > 1e-5


@pytest.mark.slow
def test_int8_weights_give_vectors_near_those_of_float32(bert_folder, tmp_path):
    pytest.importorskip("onnxruntime")
    how = {"pooling": "mean", "similarity": "cosine", "query_max_length": 40}
    opened = Retriever(bert_folder, device="cpu", **how)
    write_encoder(tmp_path / "x", opened, weights="int8")
    found = run_onnx(tmp_path / "x", by_runtime=True)
    cosines = (found * opened.encode_queries(TEXTS)).sum(axis=1)
    assert 0.99 < cosines.min() < 1 - 1e-6
