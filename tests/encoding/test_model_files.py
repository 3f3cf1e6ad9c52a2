"""Which files of a model its vectors depend on."""

import json
from pathlib import Path

from modeling_condenser.encoding.fingerprints import encoding_files

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
