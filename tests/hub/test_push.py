"""Publishing: what is refused, what is sent, and that others can use it by its name alone."""

import json
import shutil
from pathlib import Path

import pytest

from modeling_condenser.hub import push as module
from modeling_condenser.hub.card import PLACEHOLDER
from modeling_condenser.hub.export import export_encoder
from modeling_condenser.hub.push import card_problems, commit_folder, opening_problems, push
from modeling_condenser.runs.checkpoints import seal_checkpoint
from tests.hub.making import run_isolated

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
    assert report.commit is not None
    sent = loopback_hub.repo(NAME).files()
    del sent[".gitattributes"]
    card = sent.pop("README.md").decode()
    assert sent == {name: content for name, content in before.items() if name != "README.md"}
    assert contents(folder) == before
    assert NAME in card and PLACEHOLDER not in card and "license: apache-2.0" in card
    again = push(folder, NAME, license="apache-2.0", private=True)
    assert again.commit.oid == report.commit.oid

    script = f"""
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer
model = AutoModel.from_pretrained("{NAME}", revision="{report.commit.oid}")
batch = AutoTokenizer.from_pretrained("{NAME}")(["A text."], return_tensors="pt")
with torch.no_grad():
    plain = model(**batch).last_hidden_state[0, 0]
found = torch.as_tensor(SentenceTransformer("{NAME}").encode_document(["A text."])[0])
print(type(model).__name__, (plain - found).abs().max().item() < 1e-6)
"""
    scratch = tmp_path / "elsewhere"
    settings = loopback_hub.environment(scratch, token=loopback_hub.token)
    printed = run_isolated(script, scratch=scratch, **settings)
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
    scratch = tmp_path / "elsewhere"
    printed = run_isolated(script, scratch=scratch, **loopback_hub.environment(scratch))
    assert printed.split()[-3:] == ["CondenserForPreTraining", "True", "True"]


def test_the_license_on_the_hub_is_kept_by_the_next_push(loopback_hub, folder, opens_at_once):
    push(folder, NAME, license="apache-2.0")
    (folder / "notes.md").write_text("more\n")
    push(folder, NAME)
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
    assert report.commit is None and "model.safetensors" in report.sizes
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


def test_links_on_the_card_must_lead_to_files(folder):
    file = folder / "README.md"
    card = file.read_text().replace("tags:\n", "license: mit\ntags:\n")
    more = "\n[a](https://x.org/y) [b](#training) [c](mailto:a@b.c)\n\n```\n[d](gone.txt)\n```\n"
    file.write_text(card + more)
    assert card_problems(folder) == []
    file.write_text(card + "\n![x](lost.png)\n")
    [problem] = card_problems(folder)
    assert "links lost.png, which does not exist" in problem


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A folder to commit, with a link in a subfolder."""
    root = tmp_path / "to_upload"
    (root / "1_Pooling").mkdir(parents=True)
    (root / "README.md").write_text("---\nlicense: mit\n---\n# An encoder\n")
    (root / "model.safetensors").write_bytes(bytes(range(256)) * 20)
    (root / "1_Pooling" / "config.json").symlink_to(root / "README.md")
    return root


def held(hub, revision: str = "main") -> set[str]:
    return hub.repo(NAME).files(revision).keys() - {".gitattributes"}


def test_one_commit_of_a_new_private_repository_and_none_for_the_same_files(loopback_hub, small):
    done = commit_folder(small, NAME, message="First", private=True)
    assert loopback_hub.repo(NAME).private
    assert held(loopback_hub) == {"README.md", "model.safetensors", "1_Pooling/config.json"}
    assert loopback_hub.repo(NAME).files()["1_Pooling/config.json"].startswith(b"---")
    newest, *_ = loopback_hub.repo(NAME).commits()
    assert (newest.title, newest.sha) == ("First", done.oid)
    assert commit_folder(small, NAME, message="Again", private=True).oid == done.oid
    assert len(loopback_hub.repo(NAME).commits()) == 2  # the Hub's own first one, and ours


def test_old_weights_are_deleted_in_the_same_commit_and_other_files_kept(loopback_hub, small):
    (small / "theirs.txt").write_text("kept")
    commit_folder(small, NAME, message="First")
    (small / "theirs.txt").unlink()
    (small / "model.safetensors").rename(small / "model-00001-of-00002.safetensors")
    commit_folder(small, NAME, message="Second")
    assert "model.safetensors" not in held(loopback_hub)
    assert held(loopback_hub) >= {"model-00001-of-00002.safetensors", "theirs.txt"}
    assert [c.title for c in loopback_hub.repo(NAME).commits()][:2] == ["Second", "First"]


def test_a_branch_and_a_pull_request_leave_main_unchanged(loopback_hub, small):
    commit_folder(small, NAME, message="Trial", revision="trial")
    assert held(loopback_hub) == set() and "README.md" in held(loopback_hub, "trial")
    done = commit_folder(small, NAME, message="Proposed", create_pr=True)
    assert held(loopback_hub) == set() and done.pr_url.endswith("discussions/1")


def test_errors_of_the_hub_are_reported_and_leave_the_repository_unchanged(loopback_hub, small):
    loopback_hub.fail_next("POST", "/commit/", status=400)
    with pytest.raises(OSError, match="Cannot push to owner/encoder: Bad request"):
        commit_folder(small, NAME, message="First")
    assert held(loopback_hub) == set()
    with pytest.raises(OSError, match="exists and is public"):
        commit_folder(small, NAME, message="Second", private=True)
    token = "hf_" + "wrongWRONG0123456789"
    with pytest.raises(OSError, match="401") as error:
        commit_folder(small, "owner/new", message="First", token=token)
    assert token not in str(error.value)
