"""Fingerprints: the same for the same vectors, and for nothing else."""

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from modeling_condenser.encoding.fingerprints import (
    encoding_files,
    fingerprint_files,
    fingerprint_retriever,
)
from modeling_condenser.hub.contract import EncodingContract
from modeling_condenser.hub.export import export_encoder

CONTRACT = EncodingContract(16, 32)


@pytest.fixture
def export(bert_run: Path, tmp_path: Path) -> Path:
    return export_encoder(bert_run, tmp_path / "encoder")


def change_json(file: Path, **fields: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}, indent=7))


def test_files_differ_by_content_and_order(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"one")
    second.write_bytes(b"two")
    digests = hashlib.sha256(b"one").digest() + hashlib.sha256(b"two").digest()
    assert fingerprint_files([first, second]) == hashlib.sha256(digests).hexdigest()
    assert fingerprint_files([second, first]) != fingerprint_files([first, second])


def test_path_card_and_library_versions_do_not_count(export: Path, tmp_path: Path) -> None:
    before = fingerprint_retriever(export, CONTRACT)
    copy = shutil.copytree(export, tmp_path / "elsewhere" / "copy")
    for name in ("README.md", "provenance.json", "trainer_state.json"):
        (copy / name).write_text("{}")
    change_json(copy / "config.json", transformers_version="0.0")
    change_json(copy / "config_sentence_transformers.json", __version__={"pytorch": "0.0"})
    change_json(copy / "tokenizer.json")
    assert fingerprint_retriever(copy, CONTRACT) == before


def test_weights_tokenizer_config_contract_and_dtype_count(export: Path, tmp_path: Path) -> None:
    def changed(name: str) -> Path:
        return shutil.copytree(export, tmp_path / name)

    weights = load_file(export / "model.safetensors")
    weights["encoder.layer.0.output.dense.bias"][3] += 1e-6
    save_file(weights, changed("weights") / "model.safetensors")
    tokenizer = json.loads((export / "tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = False
    (changed("tokenizer") / "tokenizer.json").write_text(json.dumps(tokenizer))
    change_json(changed("config") / "config.json", hidden_act="relu")
    folders = [export, *(tmp_path / name for name in ("weights", "tokenizer", "config"))]
    prints = [fingerprint_retriever(folder, CONTRACT) for folder in folders]
    for field in dataclasses.fields(EncodingContract):
        contract = dataclasses.replace(CONTRACT, **{field.name: "another"})
        prints.append(fingerprint_retriever(export, contract))
    prints.append(fingerprint_retriever(export, CONTRACT, dtype="bfloat16"))
    assert len(set(prints)) == len(prints)


MODULES = [
    {"path": "", "type": "sentence_transformers.models.Transformer"},
    {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"path": "2_Dense", "type": "sentence_transformers.models.Dense"},
]
WANTED = (
    "1_Pooling/config.json 2_Dense/config.json 2_Dense/model.safetensors config.json "
    "config_sentence_transformers.json model-00001-of-00002.safetensors "
    "model-00002-of-00002.safetensors modules.json sentence_bert_config.json "
    "special_tokens_map.json tokenizer.json tokenizer_config.json vocab.txt"
).split()
OTHERS = (
    "2_Dense/pytorch_model.bin README.md evaluate_retrieval.py model.safetensors.index.json "
    "notes.txt optimizer.pt provenance.json pytorch_model.bin trainer_state.json "
    "checkpoint-5/config.json"
).split()


def test_the_files_that_vectors_depend_on(tmp_path: Path) -> None:
    for name in [*WANTED, *OTHERS]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(MODULES) if name == "modules.json" else "{}")
    found = [str(file.relative_to(tmp_path)) for file in encoding_files(tmp_path)]
    assert sorted(found) == WANTED
    for name in WANTED:
        if name.endswith(".safetensors"):
            (tmp_path / name).unlink()
    found = [str(file.relative_to(tmp_path)) for file in encoding_files(tmp_path)]
    assert {"pytorch_model.bin", "2_Dense/pytorch_model.bin"} <= set(found)
