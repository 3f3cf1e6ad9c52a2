"""Training that pushes: whole repositories after each push, and training that goes on elsewhere."""

import json

import pytest
from huggingface_hub import ModelCard, snapshot_download

from modeling_condenser import CondenserForPreTraining, CondenserTrainingArguments
from modeling_condenser.finetuning.finetune import finetune
from modeling_condenser.pretraining.pretrain import CondenserTrainer, pretrain
from tests.pretraining.short_runs import SETTINGS
from tests.publishing.loopback_hub import contents
from tests.publishing.making import run_isolated

pytestmark = pytest.mark.slow

NAME = "owner/run"
PUSHING = {"push_to_hub": True, "hub_model_id": NAME, "hub_always_push": True}
PICKLES = (".bin", ".pt", ".pth")


@pytest.fixture
def train(tmp_path, bert_folder, corpus_file):
    """Pre-trains in a folder, with changed settings."""

    def run(folder: str, **changes):
        settings = {"encoder": str(bert_folder), "corpus": str(corpus_file), "max_steps": 6}
        saving = {"save_strategy": "steps", "save_steps": 2, "lr_scheduler_type": "constant"}
        place = {"output_dir": str(tmp_path / folder)}
        return pretrain(**{**SETTINGS, **settings, **saving, **place, **changes})

    return run


def pushed(hub) -> list:
    """The commits of the run, oldest first, without the Hub's own first one."""
    return hub.repo(NAME).commits()[-2::-1]


def test_the_repository_can_be_loaded_after_each_push(loopback_hub, train, tmp_path):
    folder = train("run", **PUSHING, hub_strategy="every_save")
    commits = pushed(loopback_hub)
    steps = [f"Training in progress, step {step}" for step in (2, 4, 6)]
    assert [commit.title for commit in commits] in ([*steps, "End of training"], steps)
    for commit in commits:
        assert commit.tree.keys() >= {"tokenizer.json", "README.md", "provenance.json"}
        assert not [name for name in commit.tree if name.endswith(PICKLES)]
        card = commit.tree["README.md"].decode()
        assert NAME in card and "OWNER/NAME" not in card
    script = f"""
import json
from transformers import AutoModelForPreTraining
sums = []
for revision in {[commit.sha for commit in commits]}:
    model, info = AutoModelForPreTraining.from_pretrained(
        "{NAME}", revision=revision, trust_remote_code=True, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    sums.append(model.head[0].output.dense.weight.double().sum().item())
print(json.dumps(sums))
"""
    online = {"HF_ENDPOINT": loopback_hub.url, "HF_HUB_OFFLINE": "0"}
    printed = run_isolated(script, scratch=tmp_path / "elsewhere", **online)
    assert len(set(json.loads(printed.splitlines()[-1]))) == 3  # three states of the training
    last = commits[-1].tree["model.safetensors"]
    assert last == (folder / "model.safetensors").read_bytes()
    stage = json.loads(commits[0].tree["provenance.json"])[-1]
    assert (stage["run"]["steps"], len(stage["log"])) == (2, 2)


def test_training_goes_on_from_the_hub_after_a_push_that_failed(
    loopback_hub, train, tmp_path, caplog
):
    loopback_hub.fails_next_commit = True
    train("first", **PUSHING, hub_strategy="checkpoint", max_steps=4)
    assert "Cannot push to owner/run" in caplog.text and "the training continues" in caplog.text
    assert pushed(loopback_hub)[0].title == "Training in progress, step 4"
    files = loopback_hub.repo(NAME).files()
    assert not files.keys() & {"optimizer.pt", "training_args.bin"}  # of the end of the training
    revision = pushed(loopback_hub)[0].sha
    assert pushed(loopback_hub)[0].tree.keys() >= {"optimizer.pt", "trainer_state.json"}

    folder = snapshot_download(NAME, revision=revision)
    train("second", resume_from_checkpoint=folder)
    state = json.loads((tmp_path / "second" / "checkpoint-6" / "trainer_state.json").read_text())
    steps = [entry["step"] for entry in state["log_history"] if "loss" in entry]
    assert steps == [1, 2, 3, 4, 5, 6]
    train("whole")
    weights = [tmp_path / run / "model" / "model.safetensors" for run in ("second", "whole")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_retriever_is_pushed_as_a_plain_encoder(loopback_hub, exported, collection, tmp_path):
    places = {"encoder": exported, "collection": collection, "output_dir": tmp_path / "tuned"}
    sizes = {"per_device_train_batch_size": 4, "max_steps": 2, "save_steps": 1, "use_cpu": True}
    settings = {name: str(place) for name, place in places.items()} | sizes | PUSHING
    folder = finetune({**settings, "hub_strategy": "every_save", "disable_tqdm": True})
    commits = pushed(loopback_hub)
    assert [c.title for c in commits][:2] == [f"Training in progress, step {s}" for s in (1, 2)]
    for commit in commits:
        assert commit.tree.keys() == {".gitattributes", *contents(folder)}
    assert commits[-1].tree["model.safetensors"] == (folder / "model.safetensors").read_bytes()


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
        hub_strategy="end",
        **PUSHING,
    )
    examples = [{"text": text} for text in texts[:40]]
    model = CondenserForPreTraining.from_encoder(str(bert_folder))
    trainer = CondenserTrainer(model, arguments, train_dataset=examples)
    trainer.train()
    done = trainer.push_to_hub("As trained", license="mit", tags="my-tag", dataset="my texts")
    assert [(c.title, c.sha) for c in pushed(loopback_hub)] == [("As trained", done.oid)]
    files = loopback_hub.repo(NAME).files()
    metadata = ModelCard(files["README.md"].decode()).data
    assert metadata.license == "mit" and metadata.tags == ["my-tag", "condenser", "dense-retrieval"]
    (stage,) = json.loads(files["provenance.json"])
    assert stage["recipe"]["learning_rate"] == stage["run"]["learning_rate"] == 3e-4
    assert stage["run"]["steps"] == 2
    assert not [name for name, data in files.items() if str(tmp_path).encode() in data]
    assert not [name for name in files if name.endswith(PICKLES)]
