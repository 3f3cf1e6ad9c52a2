"""The contracts of three kinds of models, what must be stated and is refused, and fingerprints."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    Transformer,
)
from transformers import T5Config, T5EncoderModel

from modeling_condenser.encoding.opening import encoding_files, fingerprint_retriever
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.files.contract import EncodingContract
from modeling_condenser.publishing.export import export_encoder
from tests.encoding.making import change_json, save_mapped, save_modules, save_pooled


@pytest.fixture
def pooled(bert_folder: Path, tmp_path: Path) -> Path:
    """A sentence-transformers model with CLS pooling and the dot product."""
    return save_pooled(tmp_path / "model", bert_folder, "cls")


def test_a_plain_encoder_needs_a_stated_pooling(bert_folder, roberta_folder, tmp_path):
    with pytest.raises(ValueError, match="plain encoder.*state pooling, one of cls, mean, max.*"):
        Retriever(bert_folder)
    for name, value in {"pooling": "last", "similarity": "l2"}.items():
        with pytest.raises(ValueError, match=f"{name} is '{value}', .* expected .*'c[lo]s"):
            Retriever(bert_folder, **{"pooling": "cls", name: value})
    for settings, message in (
        ({"poling": "cls"}, "Did you mean 'pooling'"),
        ({"dtype": "float16"}, "dtype is 'float16', expected one of float32, bfloat16"),
        ({"device": "gpu"}, "no device 'gpu'; this machine has cpu"),
        ({"token_budget": 0}, "token_budget is 0, expected at least 1"),
        ({"query_max_length": 0}, "query_max_length is 0, but .* 1 to 64 tokens"),
        ({"query_max_length": 65}, "query_max_length is 65, but .* 1 to 64 tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            Retriever(bert_folder, **{"pooling": "cls", **settings})
    with pytest.raises(ValueError, match="passage_max_length is 65, but"):
        Retriever(roberta_folder, pooling="cls", passage_max_length=65)  # its table has 66 rows
    with pytest.raises(FileNotFoundError, match="holds no encoder: expected"):
        Retriever(tmp_path, pooling="cls")
    run = shutil.copytree(bert_folder, tmp_path / "model")  # whose folder stands for its model
    assert Retriever(tmp_path, pooling="cls").folder == run


def test_a_checkpoint_points_to_its_export_and_encodes_as_it_does(bert_run, tmp_path, texts):
    run = Path(shutil.copytree(bert_run, tmp_path / "run"))
    checkpoint = run / "model"
    change_json(checkpoint / "tokenizer_config.json", model_max_length=512)  # 64 positions
    change_json(checkpoint / "config.json", encoding={"similarity": "cosine"})
    with pytest.raises(ValueError, match=f"checkpoint: `condenser export {checkpoint} ENCODER`"):
        Retriever(checkpoint)
    own = Retriever(checkpoint, pooling="cls")
    exported = Retriever(export_encoder(run, tmp_path / "encoder"))
    assert own.contract == exported.contract == EncodingContract(64, 64, similarity="cosine")
    long = [" ".join(texts[:20])]
    np.testing.assert_allclose(own.encode_passages(long), exported.encode_passages(long), atol=1e-6)
    assert Retriever(checkpoint, pooling="cls", similarity="dot").contract.similarity == "dot"


def test_prompts_and_lengths_are_read_from_a_sentence_transformers_model(pooled):
    for prompts, length, read in (
        ({"query": "Q: ", "document": "", "corpus": "C: "}, 50, ("Q: ", "C: ", 50, 50)),
        ({"other": "O: "}, 514, ("", "", 64, 64)),  # of the positions
        ({}, None, ("", "", 64, 64)),
    ):
        change_json(pooled / "config_sentence_transformers.json", prompts=prompts)
        change_json(pooled / "sentence_bert_config.json", max_seq_length=length)
        change_json(pooled / "tokenizer_config.json", model_max_length=length)
        contract = Retriever(pooled).contract
        assert (contract.query_prompt, contract.passage_prompt) == read[:2]
        assert (contract.query_max_length, contract.passage_max_length) == read[2:]


def test_a_missing_or_unsupported_similarity_must_be_stated(bert_folder, pooled, tmp_path):
    config = pooled / "config_sentence_transformers.json"
    change_json(config, similarity_fn_name="manhattan")
    with pytest.raises(ValueError, match="the similarity 'manhattan': state one of dot, cosine"):
        Retriever(pooled)
    change_json(config, model_type="SparseEncoder")
    with pytest.raises(ValueError, match="is a SparseEncoder: name"):
        Retriever(pooled)
    config.unlink()  # as of a model of long ago
    with pytest.raises(ValueError, match="the similarity None: state one"):
        Retriever(pooled)
    assert Retriever(pooled, similarity="dot").contract.similarity == "dot"
    modules = [Pooling(32, pooling_mode="cls"), Normalize()]
    normal = save_modules(tmp_path / "normal", bert_folder, lambda _: modules)
    (normal / "config_sentence_transformers.json").unlink()
    assert Retriever(normal).contract.similarity == "cosine"


def test_a_stated_pooling_replaces_that_of_the_model(bert_folder, tmp_path):
    stated = Retriever(save_mapped(tmp_path / "dense", bert_folder), pooling="max")
    assert [type(module) for module in stated.model] == [Transformer, Dense, Pooling]
    assert stated.model[2].pooling_mode in ("max", ["max"], ("max",))
    unpooled = save_modules(tmp_path / "unpooled", bert_folder, lambda _: [])
    with pytest.raises(ValueError, match="does not pool token vectors: leave out pooling=cls"):
        Retriever(unpooled, pooling="cls")


def test_incomplete_tokenizers_and_missing_weights_are_refused(bert_folder, pooled, tmp_path):
    weights = load_file(pooled / "model.safetensors")
    del weights["encoder.layer.2.output.dense.weight"]
    save_file(weights, pooled / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks 1 of .* encoder.layer.2.output.dense.weight"):
        Retriever(pooled)
    (pooled / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(ValueError, match="weights of .* cannot be read .*Git LFS"):
        Retriever(pooled)
    folder = shutil.copytree(bert_folder, tmp_path / "encoder")
    config = folder / "tokenizer_config.json"
    change_json(config, pad_token=None, tokenizer_class="PreTrainedTokenizerFast")
    with pytest.raises(ValueError, match="has no padding token.*set `pad_token`"):
        Retriever(folder, pooling="cls")
    for file in folder.glob("*token*"):
        file.unlink()
    with pytest.raises(ValueError, match="or only special tokens: save the whole tokenizer"):
        Retriever(folder, pooling="cls")


def test_the_encoder_of_an_encoder_decoder_is_enough(sentencepiece_tokenizer, tmp_path):
    config = T5Config(
        d_model=16, d_kv=8, d_ff=8, num_layers=1, num_heads=2, vocab_size=600, pad_token_id=1
    )
    T5EncoderModel(config).save_pretrained(tmp_path)
    sentencepiece_tokenizer.save_pretrained(tmp_path)
    retriever = Retriever(tmp_path, pooling="mean", passage_max_length=1000)
    assert retriever.contract.query_max_length == 64  # the tokenizer's; positions are relative
    expected = T5EncoderModel.from_pretrained(tmp_path)
    ids = sentencepiece_tokenizer("Why is the river old?", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        vector = expected(ids).last_hidden_state[0].mean(0)
    found = retriever.encode_queries(["Why is the river old?", "Why?"])[0]
    torch.testing.assert_close(torch.from_numpy(found), vector, rtol=0, atol=1e-5)


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
