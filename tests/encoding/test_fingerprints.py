"""Fingerprints: the same for the same vectors, and for nothing else."""

import dataclasses
import json
import shutil

from safetensors.torch import load_file, save_file

from modeling_condenser.encoding.fingerprints import encoding_files, fingerprint_retriever
from modeling_condenser.hub.contract import EncodingContract
from modeling_condenser.hub.export import export_encoder
from tests.encoding.making import change_json

CONTRACT = EncodingContract(16, 32)


def test_all_that_changes_vectors_counts_and_nothing_else(bert_run, tmp_path):
    export = export_encoder(bert_run, tmp_path / "export")
    folders = {
        name: shutil.copytree(export, tmp_path / "elsewhere" / name)
        for name in ("same", "weights", "tokenizer", "config")
    }
    for name in ("README.md", "provenance.json", "trainer_state.json"):
        (folders["same"] / name).write_text("{}")
    change_json(folders["same"] / "config.json", transformers_version="0.0")
    versions = {"__version__": {"pytorch": "0.0"}}
    change_json(folders["same"] / "config_sentence_transformers.json", **versions)
    change_json(folders["same"] / "tokenizer.json")

    weights = load_file(export / "model.safetensors")
    weights["encoder.layer.0.output.dense.bias"][3] += 1e-6
    save_file(weights, folders["weights"] / "model.safetensors")
    change_json(folders["tokenizer"] / "tokenizer.json", normalizer=None)
    change_json(folders["config"] / "config.json", hidden_act="relu")
    prints = [fingerprint_retriever(folder, CONTRACT) for folder in folders.values()]
    assert prints[0] == fingerprint_retriever(export, CONTRACT)
    for field in dataclasses.fields(EncodingContract):
        contract = dataclasses.replace(CONTRACT, **{field.name: "another"})
        prints.append(fingerprint_retriever(export, contract))
    prints.append(fingerprint_retriever(export, CONTRACT, dtype="bfloat16"))
    assert len(set(prints)) == len(prints)


def test_the_files_that_vectors_depend_on(tmp_path):
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"}
    modules = [{"path": path, "type": f"st.models.{kind}"} for path, kind in kinds.items()]
    wanted = (
        "1_Pooling/config.json 2_Dense/pytorch_model.bin config.json model-00001.safetensors "
        "modules.json sentence_bert_config.json tokenizer.json vocab.txt"
    ).split()
    others = (
        "README.md model.safetensors.index.json optimizer.pt provenance.json pytorch_model.bin "
        "checkpoint-5/config.json"
    ).split()
    for name in [*wanted, *others]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(modules) if name == "modules.json" else "{}")
    assert sorted(encoding_files(tmp_path)) == sorted(tmp_path / name for name in wanted)
