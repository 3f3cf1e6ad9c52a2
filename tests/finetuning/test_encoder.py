"""Which encoders can be fine-tuned, and what each says about how it encodes."""

import shutil
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from transformers import AutoModel

from modeling_condenser.finetuning.encoder import open_encoder
from modeling_condenser.hub.contract import EncodingContract

DOT = {"similarity": "dot"}


def save_st(folder: Path, encoder: Path, *further: torch.nn.Module) -> Path:
    """A sentence-transformers model of an encoder and further modules."""
    model = SentenceTransformer(
        modules=[modules.Transformer(str(encoder), max_seq_length=40), *further]
    )
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


def test_an_export_says_all_and_the_recipe_changes_it(encoder):
    opened = open_encoder(str(encoder), {**DOT, "query_max_length": 12, "pooling": "mean"})
    assert opened.contract == EncodingContract(12, 56, pooling="mean", title_separator=" : ")
    assert [type(module) for module in opened.model] == [modules.Transformer, modules.Pooling]
    assert opened.model[1].pooling_mode in ("mean", ["mean"], ("mean",))
    assert {parameter.dtype for parameter in opened.model.parameters()} == {torch.float32}


def test_a_sentence_transformers_model_is_trained_without_its_normalisation(bert_folder, tmp_path):
    folder = save_st(
        tmp_path / "st", bert_folder, modules.Pooling(32, pooling_mode="mean"), modules.Normalize()
    )
    opened = open_encoder(str(folder), DOT)
    assert opened.contract == EncodingContract(40, 40, "mean", "dot", token_type_ids=True)
    assert [type(module) for module in opened.model] == [modules.Transformer, modules.Pooling]
    assert open_encoder(str(folder), {**DOT, "pooling": "cls"}).contract.pooling == "cls"
    expected = SentenceTransformer(str(folder), device="cpu").encode(["a river"])
    own = opened.model.encode(["a river"], normalize_embeddings=True)
    assert torch.allclose(torch.tensor(own), torch.tensor(expected), atol=1e-6)


def test_encoders_that_an_export_cannot_hold_are_refused(bert_folder, bert_run, tmp_path):
    pooling, dense = modules.Pooling(32, "mean"), modules.Dense(32, 8)
    folder = save_st(tmp_path / "dense", bert_folder, pooling, dense)
    with pytest.raises(ValueError, match="the modules Transformer, Pooling, Dense and"):
        open_encoder(str(folder), DOT)
    with pytest.raises(ValueError, match="is a Condenser checkpoint: .*condenser export"):
        open_encoder(str(bert_run / "model"), DOT)


def test_a_pooler_is_not_trained_and_a_new_one_becomes_the_identity(bert_folder, tmp_path):
    def pooler(folder: Path) -> torch.nn.Module:
        return open_encoder(str(folder), {**DOT, "pooling": "cls"}).model[0].model.pooler

    added = pooler(bert_folder)  # a masked LM, which has none
    assert added.dense.weight.equal(torch.eye(32)) and not added.dense.bias.any()
    assert not any(parameter.requires_grad for parameter in added.parameters())
    model = AutoModel.from_pretrained(bert_folder)
    torch.nn.init.normal_(model.pooler.dense.bias)
    model.save_pretrained(tmp_path / "pooled")
    for file in bert_folder.glob("tok*"):
        shutil.copy(file, tmp_path / "pooled")
    assert pooler(tmp_path / "pooled").dense.weight.equal(model.pooler.dense.weight)
