"""Fine-tuning on a collection small enough to learn by heart."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers.sentence_transformer.modules import Normalize
from transformers import AutoModel, AutoTokenizer

from modeling_condenser.biencoder import finetune as stage
from modeling_condenser.biencoder.finetune import finetune
from modeling_condenser.publishing.contract import EncodingContract
from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.publishing.provenance import read_provenance
from modeling_condenser.retrieval.evaluate import evaluate_system
from tests.publishing.making import make_run


@pytest.fixture(scope="module")
def settings(encoder: Path, collection: Path) -> dict[str, Any]:
    return {
        "encoder": str(encoder),
        "collection": str(collection),
        "per_device_train_batch_size": 20,
        "num_train_epochs": 12,
        "learning_rate": 3e-3,
        "logging_steps": 2,
        "use_cpu": True,
        "seed": 3,
    }


@pytest.fixture(scope="module")
def retriever(settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finetuned") / "run"
    changes = {"query_max_length": 16, "similarity": "cosine", "temperature": 0.05}
    return finetune({**settings, **changes, "output_dir": str(folder)})


def test_training_lowers_the_loss_and_lifts_the_ranking(
    retriever: Path, encoder: Path, collection: Path, tmp_path: Path
) -> None:
    log = json.loads((retriever.parent / "log.json").read_text())
    losses = [entry["loss"] for entry in log if "loss" in entry]
    assert len(losses) == 12
    assert sum(losses[-3:]) < 0.5 * sum(losses[:3])
    before, after = (
        evaluate_system(model, collection, tmp_path / name, split="train", progress=False)
        for name, model in (("before", encoder), ("after", retriever))
    )
    gain = after.evaluation.means["MRR@10"] - before.evaluation.means["MRR@10"]
    assert gain > 0.3


def test_a_retriever_opens_as_an_export_does(retriever: Path) -> None:
    names = {file.name for file in retriever.iterdir()}
    assert names >= {"README.md", "evaluate_retrieval.py", "model.safetensors", "modules.json"}
    model, info = AutoModel.from_pretrained(retriever, output_loading_info=True)
    assert type(model).__name__ == "BertModel"
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert list(AutoTokenizer.from_pretrained(retriever)("x")) == ["input_ids", "attention_mask"]
    assert type(SentenceTransformer(str(retriever))[2]) is Normalize
    # The sentence that training cut and padded last is no part of the tokenizer.
    saved = json.loads((retriever / "tokenizer.json").read_text())
    assert saved["truncation"] is None and saved["padding"] is None


def test_the_contract_is_the_encoders_with_the_recipes_changes(
    retriever: Path, encoder: Path
) -> None:
    before = EncodingContract.load(encoder)
    assert before == EncodingContract(48, 56, title_separator=" : ")
    expected = dataclasses.replace(before, query_max_length=16, similarity="cosine")
    assert EncodingContract.load(retriever) == expected


def test_provenance_names_both_stages(retriever: Path) -> None:
    first, second = read_provenance(retriever)
    assert (first.name, second.name) == ("Pre-training", "Fine-tuning")
    assert first.recipe["corpus"] == "owner/corpus"
    assert second.recipe["encoder"] == "local: encoder"
    assert second.recipe["collection"] == "local: small"
    assert second.recipe["temperature"] == 0.05
    assert {name: second.run[name] for name in ("seed", "n_pairs", "steps")} == {
        "seed": 3,
        "n_pairs": 40,
        "steps": 24,
    }
    card = (retriever / "README.md").read_text()
    assert card.index("## Pre-training") < card.index("## Fine-tuning")
    assert "# run\n" in card
    assert str(retriever.parent.parent) not in card


def test_the_same_seed_gives_the_same_weights(settings: dict[str, Any], tmp_path: Path) -> None:
    short = {**settings, "num_train_epochs": 2, "train_size": 20, "per_device_train_batch_size": 5}
    weights = [
        load_file(
            finetune({**short, "seed": seed, "output_dir": str(tmp_path / name)})
            / "model.safetensors"
        )
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    same, other = (
        {name for name in weights[0] if not weights[0][name].equal(weights[i][name])}
        for i in (1, 2)
    )
    assert same == set()
    assert "encoder.layer.0.output.dense.weight" in other


def test_a_finished_run_is_not_trained_again(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {**settings, "max_steps": 1, "output_dir": str(tmp_path / "run")}
    model = finetune(short)
    before = (model / "model.safetensors").read_bytes()

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(SentenceTransformerTrainer, "train", refuse)
    assert finetune(short) == model
    assert (model / "model.safetensors").read_bytes() == before
    with pytest.raises(ValueError, match="another recipe .*seed: 3 then, 4 now"):
        finetune({**short, "seed": 4})


def test_dot_product_training_does_not_normalise(
    bert_folder: Path, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An encoder exported for cosine brings a Normalize module along, which dot must not keep."""
    contract = EncodingContract(16, 32, similarity="cosine")
    run = make_run(bert_folder, tmp_path / "run")
    encoder = export_encoder(run, tmp_path / "cosine-encoder", contract=contract)
    trained = []

    class Recording(stage.MultipleNegativesRankingLoss):
        def __init__(self, model: SentenceTransformer, **kwargs: Any) -> None:
            super().__init__(model, **kwargs)
            trained.append(model)

    monkeypatch.setattr(stage, "MultipleNegativesRankingLoss", Recording)
    changes = {"encoder": str(encoder), "max_steps": 1, "output_dir": str(tmp_path / "tuned")}
    model = SentenceTransformer(str(finetune({**settings, **changes})))
    for one in (*trained, model):
        assert [type(module).__name__ for module in one] == ["Transformer", "Pooling"]
    assert model.similarity_fn_name == "dot"


def test_an_unknown_setting_names_the_nearest(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no field 'temprature'.*'temperature'"):
        finetune({**settings, "temprature": 0.1, "output_dir": str(tmp_path / "run")})
    assert not (tmp_path / "run").exists()


def test_a_run_needs_a_folder_and_an_encoder_with_a_contract(
    settings: dict[str, Any], bert_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="names no output_dir"):
        finetune(settings)
    changes = {"encoder": str(bert_folder), "output_dir": str(tmp_path / "run")}
    with pytest.raises(FileNotFoundError, match="no encoding_contract.json"):
        finetune({**settings, **changes})
    assert not (tmp_path / "run").exists()
