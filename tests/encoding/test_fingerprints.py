"""Fingerprints: the same for the same vectors, and for nothing else."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from modeling_condenser.encoding.fingerprints import encoding_files, fingerprint_retriever
from modeling_condenser.hub.contract import EncodingContract
from modeling_condenser.hub.export import export_encoder
from tests.encoding.making import change_json

CONTRACT = EncodingContract(16, 32)


@pytest.fixture(scope="module")
def export(bert_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_encoder(bert_run, tmp_path_factory.mktemp("export") / "encoder")


def test_path_card_and_library_versions_do_not_count(export: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(export, tmp_path / "elsewhere" / "copy")
    for name in ("README.md", "provenance.json", "trainer_state.json"):
        (copy / name).write_text("{}")
    change_json(copy / "config.json", transformers_version="0.0")
    change_json(copy / "config_sentence_transformers.json", __version__={"pytorch": "0.0"})
    change_json(copy / "tokenizer.json")
    assert fingerprint_retriever(copy, CONTRACT) == fingerprint_retriever(export, CONTRACT)


def test_weights_tokenizer_config_contract_and_dtype_count(export: Path, tmp_path: Path) -> None:
    names = ("same", "weights", "tokenizer", "config")
    folders = {name: shutil.copytree(export, tmp_path / name) for name in names}
    weights = load_file(export / "model.safetensors")
    weights["encoder.layer.0.output.dense.bias"][3] += 1e-6
    save_file(weights, folders["weights"] / "model.safetensors")
    change_json(folders["tokenizer"] / "tokenizer.json", normalizer=None)
    change_json(folders["config"] / "config.json", hidden_act="relu")
    prints = [fingerprint_retriever(folder, CONTRACT) for folder in folders.values()]
    for field in dataclasses.fields(EncodingContract):
        contract = dataclasses.replace(CONTRACT, **{field.name: "another"})
        prints.append(fingerprint_retriever(export, contract))
    prints.append(fingerprint_retriever(export, CONTRACT, dtype="bfloat16"))
    assert len(set(prints)) == len(prints)


def test_the_files_that_vectors_depend_on(tmp_path: Path) -> None:
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"}
    modules = [{"path": path, "type": f"st.models.{kind}"} for path, kind in kinds.items()]
    wanted = (
        "1_Pooling/config.json 2_Dense/model.safetensors config.json model-00001.safetensors "
        "modules.json sentence_bert_config.json tokenizer.json vocab.txt"
    ).split()
    others = (
        "2_Dense/pytorch_model.bin README.md model.safetensors.index.json optimizer.pt "
        "provenance.json pytorch_model.bin checkpoint-5/config.json"
    ).split()
    for name in [*wanted, *others]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(modules) if name == "modules.json" else "{}")
    assert sorted(encoding_files(tmp_path)) == sorted(tmp_path / name for name in wanted)
    for file in tmp_path.rglob("*.safetensors"):
        file.unlink()
    pickled = {tmp_path / "pytorch_model.bin", tmp_path / "2_Dense" / "pytorch_model.bin"}
    assert pickled <= set(encoding_files(tmp_path))
