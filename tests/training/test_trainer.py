"""Training that pushes: one commit of a whole repository at its end."""

import json

import pytest
import torch
from huggingface_hub import ModelCard

from modeling_condenser import CondenserForPreTraining, CondenserTrainingArguments
from modeling_condenser.files.run_folder import read_json, write_json
from modeling_condenser.pretraining.pretrain import CondenserTrainer, pretrain
from tests.pretraining.short_runs import SETTINGS
from tests.publishing.loopback_hub import contents
from tests.publishing.making import run_isolated

pytestmark = pytest.mark.slow

NAME = "owner/run"
PUSHING = {"push_to_hub": True, "hub_model_id": NAME}
PICKLES = (".bin", ".pt", ".pth")


def pushed(hub) -> list:
    """The commits of the run, oldest first, without the Hub's own first one."""
    return hub.repo(NAME).commits()[-2::-1]


def test_one_commit_at_the_end_holds_a_whole_repository(
    loopback_hub, bert_folder, corpus_file, tmp_path, caplog
):
    caplog.set_level("INFO", "modeling_condenser")
    settings = {
        **SETTINGS,
        "encoder": str(bert_folder),
        "corpus": str(corpus_file),
        "output_dir": str(tmp_path / "run"),
        "save_strategy": "steps",
        "save_steps": 1,
        "hub_strategy": "every_save",
    }
    folder = pretrain(**settings | PUSHING)
    assert "Checkpoints are not pushed" in caplog.text
    [commit] = pushed(loopback_hub)
    assert commit.title == "End of training"
    assert commit.tree.keys() == {".gitattributes", *contents(folder)}
    assert commit.tree.keys() >= {"tokenizer.json", "README.md", "provenance.json"}
    assert not [name for name in commit.tree if name.endswith(PICKLES)]
    card = commit.tree["README.md"].decode()
    assert NAME in card and "OWNER/NAME" not in card
    script = f"""
from transformers import AutoModelForPreTraining
model, info = AutoModelForPreTraining.from_pretrained(
    "{NAME}", trust_remote_code=True, output_loading_info=True)
assert not info["missing_keys"] and not info["unexpected_keys"], info
print(model.head[0].output.dense.weight.double().sum().item())
"""
    online = {"HF_ENDPOINT": loopback_hub.url, "HF_HUB_OFFLINE": "0"}
    printed = run_isolated(script, scratch=tmp_path / "elsewhere", **online)
    weights = CondenserForPreTraining.from_pretrained(folder).head[0].output.dense.weight
    assert float(printed.splitlines()[-1]) == pytest.approx(weights.double().sum().item())


def test_a_script_without_a_recipe_pushes_a_card_of_its_arguments(
    loopback_hub, bert_folder, texts, tmp_path
):
    arguments = CondenserTrainingArguments(
        str(tmp_path / "run"),
        max_length=32,
        max_steps=2,
        logging_steps=1,
        learning_rate=3e-4,
        disable_tqdm=True,
        use_cpu=True,
        hub_model_id=NAME,
    )
    examples = [{"text": text} for text in texts[:40]]
    model = CondenserForPreTraining.from_encoder(str(bert_folder))
    trainer = CondenserTrainer(model, arguments, train_dataset=examples)
    trainer.train()
    trainer.write_model()
    model_folder, own = tmp_path / "run" / "model", "\n## Use\n\nMy own words.\n"
    for name, content in {"README.md": own, "evaluation_results.json": "[]"}.items():
        with (model_folder / name).open("a") as file:
            file.write(content)
    words = {"license": "mit", "tags": "my-tag", "dataset": "my texts"}
    done = trainer.push_to_hub("As trained", private=True, **words)
    assert loopback_hub.repo(NAME).private
    assert [(c.title, c.sha) for c in pushed(loopback_hub)] == [("As trained", done.oid)]
    files = loopback_hub.repo(NAME).files()
    assert b"My own words." in files["README.md"] and files["evaluation_results.json"] == b"[]"
    metadata = ModelCard(files["README.md"].decode()).data
    assert metadata.license == "mit" and metadata.tags == ["my-tag", "condenser", "dense-retrieval"]
    (stage,) = json.loads(files["provenance.json"])
    assert stage["recipe"]["learning_rate"] == stage["run"]["learning_rate"] == 3e-4
    assert stage["run"]["steps"] == 2
    assert not [name for name, data in files.items() if str(tmp_path).encode() in data]
    assert not [name for name in files if name.endswith(PICKLES)]
    repository = loopback_hub.repo(NAME)
    repository.add("main", "Edit model card", {**files, "README.md": files["README.md"] + b"Mine."})
    with pytest.raises(ValueError, match="card of owner/run on the Hub has text .* lacks"):
        trainer.push_to_hub()
    with torch.no_grad():
        next(model.parameters()).add_(1)
    trainer.write_model()
    assert not (model_folder / "evaluation_results.json").exists()  # of other weights
    changed = read_json(model_folder / "provenance.json", [])
    changed[-1]["run"]["data_sha256"] = "of other data"
    write_json(model_folder / "provenance.json", changed)
    trainer.write_model()
    card = (model_folder / "README.md").read_text()
    assert "My own words." in card and "license: mit" not in card
