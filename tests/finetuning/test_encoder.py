"""Which encoders can be fine-tuned, and what each says about how it encodes."""

import shutil
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    Transformer,
)
from transformers import AutoModel

from modeling_condenser.finetuning.encoder import open_encoder
from modeling_condenser.hub.contract import EncodingContract

DOT = {"similarity": "dot"}


def save_st(folder: Path, encoder: Path, *modules: torch.nn.Module, **settings: object) -> Path:
    """A sentence-transformers model of an encoder and further modules."""
    first = Transformer(str(encoder), max_seq_length=40)
    model = SentenceTransformer(modules=[first, *modules], **settings)  # type: ignore[arg-type]
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


def test_an_export_says_all_and_the_recipe_changes_it(encoder: Path) -> None:
    opened = open_encoder(str(encoder), {**DOT, "query_max_length": 12, "pooling": "mean"})
    assert opened.contract == EncodingContract(
        12, 56, pooling="mean", title_separator=" : ", token_type_ids=False
    )
    assert [type(module) for module in opened.model] == [Transformer, Pooling]
    assert opened.model[1].pooling_mode in ("mean", ["mean"], ("mean",))
    assert {parameter.dtype for parameter in opened.model.parameters()} == {torch.float32}


def test_a_sentence_transformers_model_says_it_by_its_modules(
    bert_folder: Path, tmp_path: Path
) -> None:
    prompts = {"query": "query: ", "document": "passage: "}
    folder = save_st(
        tmp_path / "st", bert_folder, Pooling(32, pooling_mode="mean"), Normalize(), prompts=prompts
    )
    opened = open_encoder(str(folder), DOT)
    assert opened.contract == EncodingContract(
        *(40, 40, "mean", "dot"),
        query_prompt="query: ",
        passage_prompt="passage: ",
        token_type_ids=True,
    )
    assert [type(module) for module in opened.model] == [Transformer, Pooling]
    assert open_encoder(str(folder), {**DOT, "pooling": "cls"}).contract.pooling == "cls"
    expected = SentenceTransformer(str(folder), device="cpu").encode(["a river"])
    own = opened.model.encode(["a river"], normalize_embeddings=True)
    assert torch.allclose(torch.tensor(own), torch.tensor(expected), atol=1e-6)


def test_modules_that_an_export_cannot_hold_are_refused(bert_folder: Path, tmp_path: Path) -> None:
    dense = save_st(tmp_path / "dense", bert_folder, Pooling(32, "mean"), Dense(32, 8))
    with pytest.raises(ValueError, match="the modules Transformer, Pooling, Dense; expected"):
        open_encoder(str(dense), DOT)
    weighted = save_st(tmp_path / "weighted", bert_folder, Pooling(32, "weightedmean"))
    with pytest.raises(ValueError, match="pools by 'weightedmean', which is not supported"):
        open_encoder(str(weighted), DOT)


def test_a_pooler_that_is_not_there_becomes_the_identity_and_is_not_trained(
    bert_folder: Path, tmp_path: Path
) -> None:
    # The fixture is a masked LM, which has no pooler.
    opened = open_encoder(str(bert_folder), {**DOT, "pooling": "cls"})
    pooler = opened.model[0].model.pooler
    assert pooler.dense.weight.equal(torch.eye(32)) and not pooler.dense.bias.any()
    assert not any(parameter.requires_grad for parameter in pooler.parameters())
    # One that is there stays.
    model = AutoModel.from_pretrained(bert_folder)
    torch.nn.init.normal_(model.pooler.dense.weight)
    model.save_pretrained(tmp_path / "pooled")
    for file in bert_folder.glob("tok*"):
        shutil.copy(file, tmp_path / "pooled")
    kept = open_encoder(str(tmp_path / "pooled"), {**DOT, "pooling": "cls"}).model[0].model.pooler
    assert kept.dense.weight.equal(model.pooler.dense.weight)


def test_a_condenser_checkpoint_is_to_be_exported_first(bert_run: Path) -> None:
    with pytest.raises(ValueError, match="is a Condenser checkpoint: .*condenser export"):
        open_encoder(str(bert_run / "model"), {**DOT, "pooling": "cls"})
