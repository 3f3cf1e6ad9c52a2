"""Which encoders can be fine-tuned; and the stage on data small enough to learn by heart."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from transformers import AutoModel

from modeling_condenser.collection.load import load_collection
from modeling_condenser.finetuning.finetune import finetune, open_encoder
from modeling_condenser.hub.contract import EncodingContract
from modeling_condenser.hub.provenance import read_provenance
from tests.encoding.making import save_modules
from tests.hub.making import plain_vectors

DOT = {"similarity": "dot"}


@pytest.fixture(scope="module")
def settings(encoder, collection, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finetuned") / "run"
    given = {"encoder": str(encoder), "collection": str(collection), "output_dir": str(folder)}
    own = {"query_max_length": 16, "similarity": "cosine", "temperature": 0.05}
    schedule = {"per_device_train_batch_size": 20, "num_train_epochs": 12, "learning_rate": 3e-3}
    quick = {"logging_steps": 2, "use_cpu": True, "disable_tqdm": True, "seed": 3}
    return {**given, **own, **schedule, **quick}


@pytest.fixture(scope="module")
def retriever(settings):
    return finetune(settings)


def share_found_first(model: Path, collection: Path) -> float:
    """The share of training queries whose passage comes first, by sentence-transformers alone."""
    opened = SentenceTransformer(str(model), device="cpu")
    train = load_collection(collection, split="train")
    texts = [f"{p['title']} : {p['text']}" if p["title"] else p["text"] for p in train.passages]
    queries = opened.encode_query(list(train.queries.values()))
    first = opened.similarity(queries, opened.encode_document(texts)).argmax(1).tolist()
    found = zip(train.qrels.values(), train.passages[first]["_id"], strict=True)
    return float(np.mean([grades.get(passage, 0) > 0 for grades, passage in found]))


def test_training_lowers_the_loss_and_lifts_the_ranking(retriever, encoder, collection):
    log = json.loads((retriever.parent / "log.json").read_text())
    losses = [entry["loss"] for entry in log if "loss" in entry]
    assert len(losses) == 12
    assert sum(losses[-3:]) < 0.5 * sum(losses[:3])
    gain = share_found_first(retriever, collection) - share_found_first(encoder, collection)
    assert gain > 0.3


def check_vectors(retriever: Path, texts: list[str], pooling: str) -> None:
    """sentence-transformers gives the unit vectors that transformers alone gives."""
    model = SentenceTransformer(str(retriever), device="cpu")
    assert model.similarity_fn_name == "cosine"
    plain = plain_vectors(retriever, texts, 56, pooling)
    expected = torch.nn.functional.normalize(plain, dim=-1)
    assert torch.allclose(torch.tensor(model.encode_document(texts)), expected, atol=1e-5)


def test_a_retriever_opens_as_an_export_does(retriever, texts):
    names = {file.name for file in retriever.iterdir()}
    assert names >= {"README.md", "evaluate_retrieval.py", "model.safetensors", "modules.json"}
    model, info = AutoModel.from_pretrained(retriever, output_loading_info=True)
    assert type(model).__name__ == "BertModel"
    assert not info["missing_keys"] and not info["unexpected_keys"]
    expected = EncodingContract(16, 56, similarity="cosine", title_separator=" : ")
    assert EncodingContract.load(retriever) == expected
    saved = json.loads((retriever / "tokenizer.json").read_text())
    assert saved["truncation"] is None and saved["padding"] is None  # not those of the last batch
    check_vectors(retriever, texts[:6], "cls")


def test_provenance_names_both_stages(retriever):
    first, second = read_provenance(retriever)
    assert (first.name, second.name) == ("Pre-training", "Fine-tuning")
    assert first.recipe["corpus"] == "owner/corpus"
    recipe = {"encoder": "local: encoder", "collection": "local: small", "temperature": 0.05}
    run = {"objective": "contrastive", "seed": 3, "n_examples": 40, "steps": 24}
    assert recipe.items() <= second.recipe.items()
    assert run.items() <= second.run.items()


def test_a_plain_encoder_learns_a_cross_encoders_scores(train, write_jsonl, texts):
    row = {"negative_1": "a museum", "negative_2": "a railway", "scores": [5.0, 2.0, 1.0]}
    data = write_jsonl([{"query": text[:30], "positive": text, **row} for text in texts[:24]])
    scored = {"format": "scored", "objective": "kl", "similarity": "cosine", "n_negatives": 1}
    folder = train(**scored, data=str(data), passage_max_length=56)
    check_vectors(folder, texts[:6], "mean")


def test_a_wrong_setting_stops_before_the_folder_is_touched(settings, bert_folder, tmp_path):
    for wrong, message in (
        ({"encoder": str(bert_folder)}, "state pooling"),
        ({"matryoshka_dims": [4], "similarity": "dot"}, "is for similarity: cosine, .*got dot"),
        ({"train_size": 41}, "train_size is 41, but .* has 40 training examples"),
    ):
        with pytest.raises(ValueError, match=message):
            finetune({**settings, **wrong, "output_dir": str(tmp_path / "run")})
    assert not (tmp_path / "run").exists()


def test_an_export_says_all_and_the_recipe_changes_it(encoder):
    opened = open_encoder(str(encoder), {**DOT, "query_max_length": 12, "pooling": "mean"})
    assert opened.contract == EncodingContract(12, 56, pooling="mean", title_separator=" : ")
    assert [type(module) for module in opened.model] == [modules.Transformer, modules.Pooling]
    assert opened.model[1].pooling_mode in ("mean", ["mean"], ("mean",))
    assert {parameter.dtype for parameter in opened.model.parameters()} == {torch.float32}


def test_a_sentence_transformers_model_is_trained_without_its_normalisation(bert_folder, tmp_path):
    further = [modules.Pooling(32, pooling_mode="mean"), modules.Normalize()]
    folder = save_modules(tmp_path / "st", bert_folder, lambda _: further, length=40)
    opened = open_encoder(str(folder), DOT)
    assert opened.contract == EncodingContract(40, 40, "mean", "dot", token_type_ids=True)
    assert [type(module) for module in opened.model] == [modules.Transformer, modules.Pooling]
    expected = SentenceTransformer(str(folder), device="cpu").encode(["a river"])
    own = opened.model.encode(["a river"], normalize_embeddings=True)
    assert torch.allclose(torch.tensor(own), torch.tensor(expected), atol=1e-6)


def test_encoders_that_an_export_cannot_hold_are_refused(bert_folder, bert_run, tmp_path):
    further = [modules.Pooling(32, "mean"), modules.Dense(32, 8)]
    folder = save_modules(tmp_path / "dense", bert_folder, lambda _: further)
    with pytest.raises(ValueError, match="the modules Transformer, Pooling, Dense and"):
        open_encoder(str(folder), DOT)
    with pytest.raises(ValueError, match="is a Condenser checkpoint: .*condenser export"):
        open_encoder(str(bert_run / "model"), DOT)


def test_a_pooler_is_not_trained_and_a_new_one_becomes_the_identity(bert_folder):
    opened = open_encoder(str(bert_folder), {**DOT, "pooling": "cls"})  # a masked LM has none
    pooler = opened.model[0].model.pooler
    assert pooler.dense.weight.equal(torch.eye(32)) and not pooler.dense.bias.any()
    assert not any(parameter.requires_grad for parameter in pooler.parameters())
