"""Publishing: what is refused, what is sent, and that others can use it by its name alone."""

import json
import shutil
from pathlib import Path

import pytest

from modeling_condenser.hub.commits import Target, commit_folder
from modeling_condenser.publishing import push as module
from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.publishing.push import opening_problems, push
from modeling_condenser.repository.card import PLACEHOLDER
from modeling_condenser.runs.checkpoints import seal_checkpoint
from tests.hub.elsewhere import elsewhere

NAME = "owner/encoder"


@pytest.fixture(scope="module")
def exported(bert_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_encoder(bert_run, tmp_path_factory.mktemp("exports") / "encoder")


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    """An export that a test may change."""
    return Path(shutil.copytree(exported, tmp_path / "encoder"))


@pytest.fixture
def opens_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips the process that opens the repository, for tests about something else."""
    monkeypatch.setattr(module, "opening_problems", lambda *_: [])


def contents(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


@pytest.mark.slow
def test_an_encoder_is_pushed_once_and_used_by_its_name(loopback_hub, folder, tmp_path):
    before = contents(folder)
    report = push(folder, NAME, license="apache-2.0", private=True)
    assert report.committed is not None and report.committed.is_new
    sent = loopback_hub.repo(NAME).files()
    del sent[".gitattributes"]
    card = sent.pop("README.md").decode()
    assert sent == {name: content for name, content in before.items() if name != "README.md"}
    assert contents(folder) == before
    assert NAME in card and PLACEHOLDER not in card and "license: apache-2.0" in card
    again = push(folder, NAME, license="apache-2.0", private=True)
    assert again.committed.sha == report.committed.sha and not again.committed.is_new

    script = f"""
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer
model = AutoModel.from_pretrained("{NAME}", revision="{report.committed.sha}")
batch = AutoTokenizer.from_pretrained("{NAME}")(["A text."], return_tensors="pt")
with torch.no_grad():
    plain = model(**batch).last_hidden_state[0, 0]
found = torch.as_tensor(SentenceTransformer("{NAME}").encode_document(["A text."])[0])
print(type(model).__name__, (plain - found).abs().max().item() < 1e-6)
"""
    printed = elsewhere(loopback_hub, script, tmp_path / "elsewhere", token=loopback_hub.token)
    assert printed.split()[-2:] == ["BertModel", "True"]


@pytest.mark.slow
def test_a_checkpoint_is_pushed_with_its_code(loopback_hub, bert_run, tmp_path):
    push(bert_run, "owner/condenser", license="mit")
    names = loopback_hub.repo("owner/condenser").files().keys()
    assert names >= {"configuration_condenser.py", "modeling_condenser.py", "model.safetensors"}
    script = """
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModelForPreTraining
whole = AutoModelForPreTraining.from_pretrained("owner/condenser", trust_remote_code=True)
ids = torch.tensor([[2, 7, 8, 9, 3]])
loss = whole.train()(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss
loss.backward()
sentences = SentenceTransformer("owner/condenser", trust_remote_code=True)
batch = sentences.tokenizer(["A text."], return_tensors="pt")
with torch.no_grad():
    cls = whole.eval().condenser(**batch).last_hidden_state[:, 0]
same = torch.allclose(torch.as_tensor(sentences.encode(["A text."])), cls, atol=1e-6)
print(type(whole).__name__, torch.isfinite(loss).item(), same)
"""
    printed = elsewhere(loopback_hub, script, tmp_path / "elsewhere")
    assert printed.split()[-3:] == ["CondenserForPreTraining", "True", "True"]


def test_the_license_on_the_hub_is_kept_by_the_next_push(loopback_hub, folder, opens_at_once):
    push(folder, NAME, license="apache-2.0")
    (folder / "notes.md").write_text("more\n")
    assert push(folder, NAME).committed.is_new
    files = loopback_hub.repo(NAME).files()
    assert files["notes.md"] == b"more\n" and b"license: apache-2.0" in files["README.md"]


def test_a_trainers_checkpoint_is_pushed_without_its_training_state(
    loopback_hub, bert_run, tmp_path, opens_at_once
):
    run = tmp_path / "run"
    checkpoint = Path(shutil.copytree(bert_run / "model", run / "checkpoint-7"))
    shutil.copy(bert_run / "recipe.yaml", run)
    state = {"optimizer.pt", "rng_state.pth", "training_args.bin", "trainer_state.json"}
    for name in state:
        (checkpoint / name).write_bytes(b"{}")
    seal_checkpoint(checkpoint)
    report = push(run, NAME, license="mit")
    assert set(report.left_out) == {*state, "checkpoint_manifest.json"}
    assert not set(report.left_out) & loopback_hub.repo(NAME).files().keys()


def test_a_dry_run_sends_nothing(loopback_hub, folder, opens_at_once):
    report = push(folder, NAME, license="mit", dry_run=True)
    assert report.committed is None and "model.safetensors" in report.sizes
    assert not loopback_hub.has_repo(NAME)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("training_args.bin", "x", "training_args.bin: a pickle, which can execute code"),
        ("notes.md", "a\nsee /home/me/x\n", "notes.md, line 2: a local path (/home/me/x)"),
        ("run.json", '{\n"t": "hf_' + "aB3dE6gH9" * 4 + '"}', "run.json, line 2: a Hugging Face"),
    ],
)
def test_what_must_not_be_published_is_refused(loopback_hub, folder, name, content, message):
    (folder / name).write_text(content)
    with pytest.raises(ValueError, match="cannot be published") as error:
        push(folder, NAME, license="mit")
    assert message in str(error.value)
    assert loopback_hub.requests == []


def test_a_card_without_a_license_is_refused(loopback_hub, folder):
    with pytest.raises(ValueError, match="names no license"):
        push(folder, NAME)
    assert not loopback_hub.has_repo(NAME)


@pytest.mark.slow
def test_what_does_not_open_is_refused(folder):
    pooling = folder / "1_Pooling" / "config.json"
    original = pooling.read_text()
    pooling.write_text(json.dumps({**json.loads(original), "pooling_mode": "mean"}))
    (problem,) = opening_problems(folder, "encoder")
    assert problem == "sentence-transformers and the encoding contract give different vectors"
    pooling.write_text(original)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 6}))
    assert "32 weights are missing" in opening_problems(folder, "encoder")[0]


def test_a_folder_without_a_model_of_ours_is_refused(tmp_path, bert_folder):
    with pytest.raises(FileNotFoundError, match="There is no model in"):
        push(tmp_path / "nowhere", NAME)
    with pytest.raises(ValueError, match="has no encoding_contract.json"):
        push(bert_folder, NAME)


def test_a_repository_of_the_hub_with_other_files_keeps_them(loopback_hub, folder, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "theirs.txt").write_text("kept")
    commit_folder(tmp_path / "other", Target(NAME), message="Theirs")
    commit_folder(folder, Target(NAME), message="Ours")
    assert loopback_hub.repo(NAME).files().keys() >= {"theirs.txt", "model.safetensors"}
