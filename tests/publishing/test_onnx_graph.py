"""The int8 file of an encoder: what it holds, and its vectors beside those of float32."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from hub_scripts.main import main
from modeling_condenser import Index, Retriever
from modeling_condenser.files.models import INT8_FILE
from modeling_condenser.publishing.onnx_graph import add_int8
from tests.publishing.loopback_hub import contents
from tests.publishing.making import plain_vectors

TEXTS = ["glacier", "The old museum near Oslo repairs the engine.", "one two three " * 9]


@pytest.mark.slow
def test_an_int8_file_has_int8_weights_and_vectors_near_those_of_float32(
    exported, tmp_path, capsys, monkeypatch
):
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(exported), "int8", "--onnx", "int8"]) == 0
    assert "condenser search int8,dtype=int8 COLLECTION QUESTION" in capsys.readouterr().out
    int8, exact = Retriever("int8", dtype="int8"), Retriever(exported, device="cpu")
    found, expected = int8.encode_passages(TEXTS), plain_vectors(exported, TEXTS, 24).numpy()
    cosines = (found * expected).sum(1) / np.linalg.norm(found, axis=1)
    assert (cosines / np.linalg.norm(expected, axis=1)).min() > 0.99
    assert np.abs(found - expected).max() > 1e-4
    graph = onnx.load(f"int8/{INT8_FILE}").graph
    types = {each.data_type for each in graph.initializer if np.prod(each.dims) >= 1024}
    assert types <= {onnx.TensorProto.INT8, onnx.TensorProto.UINT8}
    assert [each.name for each in graph.input] == ["input_ids", "attention_mask"]
    assert [each.name for each in graph.output] == ["last_hidden_state"]

    files = contents(tmp_path / "int8")
    content = files.pop(INT8_FILE)
    assert b"model_qint8.onnx" in files.pop("README.md")
    before = contents(exported)
    del before["README.md"]
    assert files == before and b".py" not in content and bytes(tmp_path) not in content
    assert len({Retriever("int8", device="cpu").fingerprint, exact.fingerprint}) == 1
    assert int8.fingerprint != exact.fingerprint
    index = Index.build(dict(zip("abc", TEXTS, strict=True)), "int8,dtype=int8")
    [answer] = index.search(["engine"], k=3)
    scores = found @ int8.encode_queries(["engine"])[0]
    assert [passage.id for passage in answer] == ["abc"[i] for i in np.argsort(-scores)]


def test_what_int8_needs_is_named(exported, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"has no onnx/model_qint8.onnx.*condenser export"):
        Retriever(exported, dtype="int8")
    folder = Path(shutil.copytree(exported, tmp_path / "int8"))
    (folder / "onnx").mkdir()
    (folder / INT8_FILE).touch()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setitem(sys.modules, "onnxruntime.quantization", None)
    for need in (lambda: Retriever(folder, dtype="int8"), lambda: add_int8(folder)):
        with pytest.raises(ValueError, match=r"is not installed: pip install .*\[onnx\]"):
            need()
