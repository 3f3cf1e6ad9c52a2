"""The contracts of three kinds of models, what must be stated and is refused, and fingerprints."""

import json
import shutil
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling
from transformers import AutoTokenizer, T5Config, T5EncoderModel

from modeling_condenser import CondenserForMaskedLM
from modeling_condenser.encoding.retriever import Retriever, fingerprint_model
from modeling_condenser.files.models import EncodingContract
from modeling_condenser.publishing.export import export_encoder
from tests.encoding.making import change_json, save_modules, save_pooled

SEGMENTS = {"token_type_ids": True}  # which BERT's tokenizer makes


@pytest.fixture
def pooled(bert_folder: Path, tmp_path: Path) -> Path:
    """A sentence-transformers model with CLS pooling and the dot product."""
    return save_pooled(tmp_path / "pooled", bert_folder, "cls")


def test_a_plain_encoder_needs_a_stated_pooling(bert_folder, roberta_folder, tmp_path):
    with pytest.raises(ValueError, match=r"plain encoder.*state pooling, one of cls, mean, max.*"):
        Retriever(bert_folder)
    for settings, message in (
        ({"pooling": "last"}, "pooling is 'last', .* expected .*'cls"),
        ({"poling": "cls"}, "Did you mean 'pooling'"),
        ({"dtype": "float16"}, "dtype is 'float16', expected one of float32, bfloat16"),
        ({"query_max_length": 65}, "query_max_length is 65, but .* 1 to 64 tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            Retriever(bert_folder, **{"pooling": "cls", **settings})
    with pytest.raises(ValueError, match="passage_max_length is 65, but"):
        Retriever(roberta_folder, pooling="cls", passage_max_length=65)  # its table has 66 rows
    with pytest.raises(FileNotFoundError, match="holds no encoder: expected"):
        Retriever(tmp_path, pooling="cls")


def test_a_checkpoint_encodes_as_its_export(bert_run, tmp_path, texts):
    run = Path(shutil.copytree(bert_run, tmp_path / "run"))
    change_json(run / "model" / "tokenizer_config.json", model_max_length=512)  # 64 positions
    checkpoint, exported = Retriever(run), Retriever(export_encoder(run, tmp_path / "encoder"))
    assert checkpoint.folder == run / "model"
    assert checkpoint.contract == exported.contract == EncodingContract(64, 64)
    long = [" ".join(texts[:20])]
    np.testing.assert_allclose(
        checkpoint.encode_passages(long), exported.encode_passages(long), atol=1e-6
    )


CONTRACTS = (
    EncodingContract(8, 20, title_separator=" | ", query_prompt="q: ", similarity="cosine"),
    EncodingContract(16, 12, pooling="max", passage_prompt="p: ", **SEGMENTS),
    EncodingContract(24, 24, pooling="mean", similarity="euclidean"),
)


@pytest.mark.parametrize("contract", CONTRACTS)
def test_the_files_of_an_export_state_its_contract(contract, bert_run, tmp_path):
    folder = export_encoder(bert_run, tmp_path / "export", contract=contract)
    assert EncodingContract.load(folder) == Retriever(folder).contract == contract


def test_prompts_and_lengths_are_read_from_a_sentence_transformers_model(pooled):
    for prompts, length, expected in (
        ({"query": "Q: ", "document": "", "corpus": "C: "}, 50, ("Q: ", "C: ", 50, 50)),
        ({"other": "O: "}, 514, ("", "", 64, 64)),  # of the positions
        ({}, None, ("", "", 64, 64)),
    ):
        change_json(pooled / "config_sentence_transformers.json", prompts=prompts)
        change_json(pooled / "sentence_bert_config.json", max_seq_length=length)
        change_json(pooled / "tokenizer_config.json", model_max_length=length)
        contract = Retriever(pooled).contract
        assert (contract.query_prompt, contract.passage_prompt) == expected[:2]
        assert (contract.query_max_length, contract.passage_max_length) == expected[2:]
        assert contract.token_type_ids


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}, "cls+max"),
        ({"pooling_mode": ["lasttoken", "cls"]}, "lasttoken+cls"),
    ],
)
def test_the_pooling_of_any_sentence_transformers_model_is_named(config, name, pooled):
    (pooled / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 32, **config})
    )
    retriever = Retriever(pooled)
    assert retriever.contract.pooling == name
    expected = retriever.model.encode(["Why?", "The river left."], show_progress_bar=False)
    actual = retriever.encode_queries(["Why?", "The river left."])
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


def test_a_pooling_that_excludes_prompts_is_refused_if_there_is_one(bert_folder, tmp_path):
    folder = save_modules(
        tmp_path / "prompted",
        bert_folder,
        lambda size: [Pooling(size, pooling_mode="mean", include_prompt=False)],
        prompts={"query": "In words: "},
    )
    for pooling in (None, "cls"):
        with pytest.raises(ValueError, match="excludes its prompts from pooling"):
            Retriever(folder, pooling=pooling)
    assert Retriever(folder, query_prompt="").contract.pooling == "mean"


def test_a_missing_similarity_is_the_cosine_and_an_unsupported_one_is_refused(
    bert_folder, pooled, tmp_path, caplog
):
    config = pooled / "config_sentence_transformers.json"
    change_json(config, similarity_fn_name="manhattan")
    with pytest.raises(ValueError, match="the similarity 'manhattan': state one of dot, cosine"):
        Retriever(pooled)
    change_json(config, model_type="SparseEncoder")
    with pytest.raises(ValueError, match="is a SparseEncoder: name"):
        Retriever(pooled)
    config.unlink()  # as of a model of long ago
    assert Retriever(pooled, similarity="dot").contract.similarity == "dot"
    assert "states no similarity" not in caplog.text
    retriever = Retriever(pooled)
    assert retriever.contract.similarity == retriever.model.similarity_fn_name == "cosine"
    assert f"{pooled} states no similarity: it compares by the cosine" in caplog.text
    caplog.clear()
    modules = [Pooling(32, pooling_mode="cls"), Normalize()]
    normal = save_modules(tmp_path / "normal", bert_folder, lambda _: modules)
    (normal / "config_sentence_transformers.json").unlink()
    assert Retriever(normal).contract.similarity == "cosine"
    assert "states no similarity" not in caplog.text


def test_incomplete_tokenizers_and_missing_weights_are_refused(bert_folder, pooled, tmp_path):
    weights = load_file(pooled / "model.safetensors")
    del weights["encoder.layer.2.output.dense.weight"]
    save_file(weights, pooled / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks 1 of .* encoder.layer.2.output.dense.weight"):
        Retriever(pooled)
    (pooled / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(ValueError, match=r"weights of .* cannot be read .*Git LFS"):
        Retriever(pooled)
    folder = shutil.copytree(bert_folder, tmp_path / "encoder")
    for file in folder.glob("*token*"):
        file.unlink()
    with pytest.raises(ValueError, match="or only special tokens: save the whole tokenizer"):
        Retriever(folder, pooling="cls")


def test_vectors_do_not_depend_on_neighbours_where_the_tokenizer_pads_at_the_left(
    bert_folder, tmp_path
):
    folder = shutil.copytree(bert_folder, tmp_path / "left")
    AutoTokenizer.from_pretrained(folder, padding_side="left").save_pretrained(folder)
    retriever, right = Retriever(folder, pooling="mean"), Retriever(bert_folder, pooling="mean")
    texts = ["Why?", "The river left the old harbour near Oslo, and nobody knew why it did so."]
    together = retriever.encode_queries(texts)
    np.testing.assert_allclose(together[:1], retriever.encode_queries(texts[:1]), atol=1e-6)
    np.testing.assert_allclose(together, right.encode_queries(texts), atol=1e-6)
    # Other libraries read the side from the files.
    exported = tmp_path / "exported"
    CondenserForMaskedLM.from_encoder(str(folder)).save_encoder(exported)
    assert AutoTokenizer.from_pretrained(exported).padding_side == "right"


def test_an_adapter_is_refused_as_no_whole_encoder(bert_folder, tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "owner/base"}')
    for open_it in (Retriever, CondenserForMaskedLM.from_encoder):
        with pytest.raises(ValueError, match="adapter .LoRA. of owner/base, .*merge_and_unload"):
            open_it(tmp_path)


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
    actual = retriever.encode_queries(["Why is the river old?", "Why?"])[0]
    torch.testing.assert_close(torch.from_numpy(actual), vector, rtol=0, atol=1e-5)


def test_all_that_changes_vectors_counts_and_nothing_else(bert_folder, tmp_path):
    folder = save_modules(
        tmp_path / "model", bert_folder, lambda n: [Pooling(n, pooling_mode="cls"), Dense(n, n)]
    )
    names = ("same", "weights", "tokenizer", "config", "dense", "modules")
    copies = {name: Path(shutil.copytree(folder, tmp_path / "copies" / name)) for name in names}
    for name in ("README.md", "provenance.json", "trainer_state.json"):
        (copies["same"] / name).write_text("{}")
    for name, file in (
        ("weights", copies["weights"] / "model.safetensors"),
        ("dense", copies["dense"] / "2_Dense" / "model.safetensors"),
    ):
        weights = load_file(file)
        bias = next(key for key in weights if key.endswith("bias"))
        weights[bias][3] += 1e-6
        save_file(weights, copies[name] / file.relative_to(copies[name]))
    change_json(copies["tokenizer"] / "tokenizer.json", normalizer=None)
    change_json(copies["config"] / "config.json", hidden_act="relu")
    modules = json.loads((folder / "modules.json").read_text())
    (copies["modules"] / "modules.json").write_text(json.dumps(modules[:2]))

    contract = EncodingContract(16, 32)
    prints = [fingerprint_model(copy, contract) for copy in copies.values()]
    (folder / "pytorch_model.bin").touch()  # which is not read beside safetensors
    assert prints[0] == fingerprint_model(folder, contract)
    for field in fields(EncodingContract):
        prints.append(fingerprint_model(folder, replace(contract, **{field.name: "another"})))
        is_of_queries = field.name in ("query_prompt", "query_max_length")
        assert (prints[-1][1] == prints[0][1]) == is_of_queries
    prints.append(fingerprint_model(folder, contract, dtype="bfloat16"))
    assert len(set(prints)) == len(prints)
    whole = Retriever(folder)
    assert Retriever(folder, truncate_dim=8).fingerprint != whole.fingerprint
