"""Training that pushes: whole repositories after each push, and training that goes on elsewhere."""

import json

import pytest

from modeling_condenser import CondenserTrainingArguments, condenser_from_encoder
from modeling_condenser.finetuning.finetune import finetune
from modeling_condenser.hub.trainer import fetch_checkpoint
from modeling_condenser.pretraining.pretrain import CondenserTrainer, pretrain
from tests.hub.loopback_hub import contents
from tests.hub.making import run_isolated
from tests.pretraining.short_runs import SETTINGS

pytestmark = pytest.mark.slow

NAME = "owner/run"
PUSHING = {"push_to_hub": True, "hub_model_id": NAME, "hub_always_push": True}


@pytest.fixture
def settings(tmp_path, bert_folder, corpus_file):
    def make(folder: str = "run", **changes) -> dict:
        return {
            **SETTINGS,
            "encoder": str(bert_folder),
            "corpus": str(corpus_file),
            "output_dir": str(tmp_path / folder),
            "lr_scheduler_type": "constant",
            "max_steps": 6,
            "save_strategy": "steps",
            "save_steps": 2,
            **changes,
        }

    return make


def pushed(hub) -> list:
    """The commits of the run, oldest first, without the Hub's own first one."""
    return hub.repo(NAME).commits()[-2::-1]


def test_the_repository_can_be_loaded_after_each_push(loopback_hub, settings, tmp_path):
    folder = pretrain(settings(**PUSHING, hub_strategy="every_save"))
    titles = [commit.title for commit in pushed(loopback_hub)]
    steps = [f"Training in progress, step {step}" for step in (2, 4, 6)]
    assert titles == [*steps, "End of training"] or titles == steps
    revisions = [commit.sha for commit in pushed(loopback_hub)]
    for revision in revisions:
        files = loopback_hub.repo(NAME).files(revision)
        assert files.keys() >= {"tokenizer.json", "README.md", "provenance.json"}
        assert not [n for n in files if n.endswith((".bin", ".pt", ".pth"))]
        assert NAME.encode() in files["README.md"] and b"OWNER/NAME" not in files["README.md"]
    script = f"""
import json
from transformers import AutoModelForPreTraining
sums = []
for revision in {revisions}:
    model, info = AutoModelForPreTraining.from_pretrained(
        "{NAME}", revision=revision, trust_remote_code=True, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    sums.append(model.head[0].output.dense.weight.double().sum().item())
print(json.dumps(sums))
"""
    scratch = tmp_path / "elsewhere"
    printed = run_isolated(
        script, scratch=scratch, HF_ENDPOINT=loopback_hub.url, HF_HUB_OFFLINE="0"
    )
    assert len(set(json.loads(printed.splitlines()[-1]))) == 3  # three states of the training
    last = loopback_hub.repo(NAME).files()["model.safetensors"]
    assert last == (folder / "model.safetensors").read_bytes()
    stage = json.loads(loopback_hub.repo(NAME).files(revisions[0])["provenance.json"])[-1]
    assert (stage["run"]["steps"], len(stage["log"])) == (2, 2)
    assert not list(folder.parent.glob(".push-*"))


def test_training_goes_on_from_the_hub_on_another_machine(loopback_hub, settings, tmp_path):
    pretrain(settings("first", **PUSHING, hub_strategy="checkpoint", max_steps=4))
    files = loopback_hub.repo(NAME).files()
    assert {"last-checkpoint/optimizer.pt", "last-checkpoint/trainer_state.json"} <= files.keys()
    assert not [n for n in files if n.endswith("training_args.bin")]

    pretrain(settings("second", resume_from_checkpoint=NAME))
    state = json.loads((tmp_path / "second" / "checkpoint-6" / "trainer_state.json").read_text())
    steps = [entry["step"] for entry in state["log_history"] if "loss" in entry]
    assert steps == [1, 2, 3, 4, 5, 6]
    pretrain(settings("whole"))
    weights = [tmp_path / run / "model" / "model.safetensors" for run in ("second", "whole")]
    assert weights[0].read_bytes() == weights[1].read_bytes()

    # A local checkpoint that is as new is preferred.
    local = tmp_path / "first" / "checkpoint-4"
    local.with_name("checkpoint-9").mkdir()  # incomplete
    assert fetch_checkpoint(NAME, tmp_path / "first") == local
    assert fetch_checkpoint(NAME, tmp_path / "new").name == "last-checkpoint"


def test_a_push_that_fails_does_not_end_the_training(loopback_hub, settings, caplog):
    loopback_hub.fails_next_commit = True
    pretrain(settings(**PUSHING, hub_strategy="every_save"))
    assert "Cannot push to owner/run" in caplog.text and "the training continues" in caplog.text
    titles = [commit.title for commit in pushed(loopback_hub)]
    assert titles[:2] == [f"Training in progress, step {step}" for step in (4, 6)]
    with pytest.raises(FileNotFoundError, match="owner/run has no complete last-checkpoint/"):
        pretrain(settings("second", resume_from_checkpoint=NAME))


def test_a_retriever_is_pushed_as_a_plain_encoder(loopback_hub, exported, collection, tmp_path):
    settings = {
        "encoder": str(exported),
        "collection": str(collection),
        "output_dir": str(tmp_path / "tuned"),
        "per_device_train_batch_size": 4,
        "max_steps": 4,
        "save_steps": 2,
        "disable_tqdm": True,
        "use_cpu": True,
    }
    folder = finetune({**settings, **PUSHING, "hub_strategy": "every_save"})
    commits = pushed(loopback_hub)
    assert [c.title for c in commits][:2] == [f"Training in progress, step {s}" for s in (2, 4)]
    for commit in commits:
        files = loopback_hub.repo(NAME).files(commit.sha)
        assert files.keys() == {".gitattributes", *contents(folder)}
    weights = loopback_hub.repo(NAME).files()["model.safetensors"]
    assert weights == (folder / "model.safetensors").read_bytes()


def test_a_script_without_a_recipe_pushes_a_card_of_its_arguments(
    loopback_hub, bert_folder, texts, tmp_path
):
    trainer = CondenserTrainer(
        condenser_from_encoder(str(bert_folder)),
        CondenserTrainingArguments(
            str(tmp_path / "run"),
            max_length=32,
            max_steps=2,
            logging_steps=1,
            learning_rate=3e-4,
            disable_tqdm=True,
            use_cpu=True,
            **{**PUSHING, "hub_strategy": "end"},
        ),
        train_dataset=[{"text": text} for text in texts[:40]],
    )
    trainer.train()
    done = trainer.push_to_hub("As trained")
    assert [(c.title, c.sha) for c in pushed(loopback_hub)] == [("As trained", done.oid)]
    files = loopback_hub.repo(NAME).files()
    (stage,) = json.loads(files["provenance.json"])
    assert stage["recipe"]["learning_rate"] == 3e-4 and stage["run"]["steps"] == 2
    assert not [name for name, data in files.items() if str(tmp_path).encode() in data]
    assert not [name for name in files if name.endswith(".bin")]
