"""Fingerprints: the same for the same vectors, and for nothing else."""

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer

from modeling_condenser.encoding.fingerprints import (
    encoding_files,
    fingerprint_files,
    fingerprint_retriever,
)
from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.repository.contract import EncodingContract
from tests.publishing.making import make_run

CONTRACT = EncodingContract(16, 32)


@pytest.fixture(scope="module")
def export(bert_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports")
    return export_encoder(make_run(bert_folder, folder / "run"), folder / "encoder")


def change_json(file: Path, **fields: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def test_files_are_told_apart_by_content_and_order(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"one")
    second.write_bytes(b"two")
    digests = hashlib.sha256(b"one").digest() + hashlib.sha256(b"two").digest()
    assert fingerprint_files([first, second]) == hashlib.sha256(digests).hexdigest()
    assert fingerprint_files([second, first]) != fingerprint_files([first, second])


def test_neither_path_nor_card_nor_the_libraries_versions_count(
    export: Path, tmp_path: Path
) -> None:
    before = fingerprint_retriever(export, CONTRACT)
    assert len(before) == 64
    copy = shutil.copytree(export, tmp_path / "elsewhere" / "copy")
    (copy / "README.md").write_text("Another card.")
    (copy / "provenance.json").write_text("[]")
    (copy / "trainer_state.json").write_text("{}")
    (copy / "evaluate_retrieval.py").unlink()
    change_json(copy / "config.json", transformers_version="0.0")
    change_json(copy / "config_sentence_transformers.json", __version__={"pytorch": "0.0"})
    (copy / "tokenizer.json").write_text(
        json.dumps(json.loads((copy / "tokenizer.json").read_text()), indent=7)
    )
    assert fingerprint_retriever(copy, CONTRACT) == before


def test_each_of_weights_tokenizer_config_and_contract_counts(export: Path, tmp_path: Path) -> None:
    prints = [fingerprint_retriever(export, CONTRACT)]

    def changed(name: str) -> Path:
        return shutil.copytree(export, tmp_path / name)

    weights = load_file(export / "model.safetensors")
    weights["encoder.layer.0.output.dense.bias"][3] += 1e-6
    save_file(weights, changed("weights") / "model.safetensors")
    tokenizer = json.loads((export / "tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = False
    (changed("tokenizer") / "tokenizer.json").write_text(json.dumps(tokenizer))
    change_json(changed("config") / "config.json", hidden_act="relu")
    prints += [
        fingerprint_retriever(tmp_path / name, CONTRACT)
        for name in ("weights", "tokenizer", "config")
    ]
    changes = {
        "query_max_length": 17,
        "passage_max_length": 33,
        "pooling": "mean",
        "similarity": "cosine",
        "title_separator": "",
        "query_prompt": "q",
        "passage_prompt": "q",
        "token_type_ids": True,
    }
    assert set(changes) == {field.name for field in dataclasses.fields(EncodingContract)}
    prints += [
        fingerprint_retriever(export, dataclasses.replace(CONTRACT, **{name: value}))
        for name, value in changes.items()
    ]
    assert len(set(prints)) == len(prints)


def test_the_modules_behind_the_encoder_count(bert_folder: Path, tmp_path: Path) -> None:
    encoder = Transformer(str(bert_folder))
    modules = [encoder, Pooling(32, pooling_mode="cls"), Dense(32, 8)]
    model = SentenceTransformer(modules=modules, device="cpu", similarity_fn_name="dot")
    model.save_pretrained(str(tmp_path / "model"))
    before = fingerprint_retriever(tmp_path / "model", CONTRACT)
    dense = tmp_path / "model" / "2_Dense" / "model.safetensors"
    weights = load_file(dense)
    save_file({name: 2 * weight for name, weight in weights.items()}, dense)
    assert fingerprint_retriever(tmp_path / "model", CONTRACT) != before
    save_file(weights, dense)
    assert fingerprint_retriever(tmp_path / "model", CONTRACT) == before


MODULES = [
    {"path": "", "type": "sentence_transformers.models.Transformer"},
    {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"path": "2_Dense", "type": "sentence_transformers.models.Dense"},
]


def test_the_files_that_vectors_depend_on(tmp_path: Path) -> None:
    wanted = [
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
        "config.json",
        "config_sentence_transformers.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "modules.json",
        "sentence_bert_config.json",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    ]
    others = [
        "2_Dense/pytorch_model.bin",
        "README.md",
        "evaluate_retrieval.py",
        "model.safetensors.index.json",
        "notes.txt",
        "optimizer.pt",
        "provenance.json",
        "pytorch_model.bin",
        "trainer_state.json",
        "checkpoint-5/config.json",
    ]
    for name in [*wanted, *others]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(MODULES) if name == "modules.json" else "{}")
    found = [str(file.relative_to(tmp_path)) for file in encoding_files(tmp_path)]
    assert sorted(found) == wanted
    for name in wanted:
        if name.endswith(".safetensors"):
            (tmp_path / name).unlink()
    found = [str(file.relative_to(tmp_path)) for file in encoding_files(tmp_path)]
    assert "pytorch_model.bin" in found and "2_Dense/pytorch_model.bin" in found
