"""Publishing: what is refused, what is sent, and that others can use it by its name alone."""

import json
import shutil
from pathlib import Path

import pytest
from huggingface_hub import HfApi

from modeling_condenser import publishing
from modeling_condenser.hub.errors import HubError
from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.publishing.push import opening_problems, push
from modeling_condenser.repository.card import PLACEHOLDER
from modeling_condenser.runs.checkpoints import seal_checkpoint
from tests.hub.elsewhere import elsewhere
from tests.hub.loopback_hub import LoopbackHub

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
    """Leaves out the process that opens the repository, for tests about something else."""
    monkeypatch.setattr(f"{publishing.__name__}.push.opening_problems", lambda *_: [])


def files_of(hub: LoopbackHub, name: str = NAME) -> dict[str, bytes]:
    files = hub.repo(name).files()
    del files[".gitattributes"]
    return files


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def test_an_encoder_is_pushed_once_and_used_by_its_name(loopback_hub, folder, tmp_path):
    before = contents(folder)
    report = push(folder, NAME, license="apache-2.0", private=True)
    assert report.committed is not None and report.committed.is_new
    sent = files_of(loopback_hub)
    assert sent.keys() == before.keys() == report.sizes.keys()
    assert {n: sent[n] for n in sent if n != "README.md"} == {
        n: before[n] for n in before if n != "README.md"
    }
    assert contents(folder) == before  # the folder itself is left as it was
    card = sent["README.md"].decode()
    assert NAME in card and PLACEHOLDER not in card and "license: apache-2.0" in card

    again = push(folder, NAME, license="apache-2.0", private=True)
    assert not again.committed.is_new and again.committed.sha == report.committed.sha
    assert len(loopback_hub.repo(NAME).commits("main")) == 2  # the Hub's own first, and ours

    script = f"""
import json, torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer
model, info = AutoModel.from_pretrained("{NAME}", output_loading_info=True)
tokenizer = AutoTokenizer.from_pretrained("{NAME}")
batch = tokenizer(["A text."], return_tensors="pt")
with torch.no_grad():
    plain = model(**batch).last_hidden_state[0, 0]
found = torch.as_tensor(SentenceTransformer("{NAME}").encode_document(["A text."])[0])
pinned = AutoModel.from_pretrained("{NAME}", revision="{report.committed.sha}")
print(json.dumps([type(model).__name__, len(info["missing_keys"]), len(info["unexpected_keys"]),
                  (plain - found).abs().max().item(), type(pinned).__name__]))
"""
    printed = elsewhere(loopback_hub, script, tmp_path / "elsewhere", token=loopback_hub.token)
    kind, missing, unexpected, difference, pinned = json.loads(printed.splitlines()[-1])
    assert (kind, missing, unexpected, pinned) == ("BertModel", 0, 0, "BertModel")
    assert difference < 1e-6


def test_a_checkpoint_is_pushed_with_its_code_and_continued_elsewhere(
    loopback_hub, bert_run, tmp_path
):
    report = push(bert_run, "owner/condenser", license="mit")
    assert report.differences == []
    names = files_of(loopback_hub, "owner/condenser").keys()
    assert names >= {"configuration_condenser.py", "modeling_condenser.py", "model.safetensors"}
    assert not [name for name in names if name.endswith((".bin", ".pt", ".pth"))]
    script = """
import pathlib, torch
from transformers import AutoModel, AutoModelForPreTraining
try:
    AutoModelForPreTraining.from_pretrained("owner/condenser", trust_remote_code=False)
except ValueError as error:
    assert "trust_remote_code" in str(error), error
else:
    raise SystemExit("opened without asking")
assert not list(pathlib.Path("cache").rglob("modeling_condenser.py")), "code came unasked"
whole = AutoModelForPreTraining.from_pretrained("owner/condenser", trust_remote_code=True)
ids = torch.tensor([[2, 7, 8, 9, 3]])
loss = whole.train()(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss
loss.backward()
encoder = AutoModel.from_pretrained("owner/condenser", trust_remote_code=True)
print(type(whole).__name__, type(encoder).__name__, torch.isfinite(loss).item())
"""
    printed = elsewhere(loopback_hub, script, tmp_path / "elsewhere")
    assert printed.split()[-3:] == ["CondenserForPreTraining", "CondenserModel", "True"]
    assert not push(bert_run, "owner/condenser", license="mit").committed.is_new


def test_a_trainers_checkpoint_leaves_its_training_state_behind(
    loopback_hub, bert_run, tmp_path, opens_at_once
):
    run = tmp_path / "run"
    checkpoint = Path(shutil.copytree(bert_run / "model", run / "checkpoint-7"))
    shutil.copy(bert_run / "recipe.yaml", run)
    for name in ("optimizer.pt", "rng_state.pth", "training_args.bin", "trainer_state.json"):
        (checkpoint / name).write_bytes(b"{}")
    seal_checkpoint(checkpoint)
    report = push(run, NAME, license="mit")
    assert set(report.left_out) == {
        *("optimizer.pt", "rng_state.pth", "training_args.bin", "trainer_state.json"),
        "checkpoint_manifest.json",
    }
    assert not set(report.left_out) & files_of(loopback_hub).keys()


def test_a_dry_run_changes_nothing(loopback_hub, folder, opens_at_once):
    report = push(folder, NAME, license="mit", dry_run=True)
    assert report.committed is None and report.plan is not None
    assert report.plan.changed.keys() == report.sizes.keys()
    assert not loopback_hub.has_repo(NAME)
    push(folder, NAME, license="mit")
    loopback_hub.requests.clear()
    assert push(folder, NAME, license="mit", dry_run=True).plan.is_empty
    assert {record.method for record in loopback_hub.requests} == {"GET"}


def test_a_dry_run_without_a_hub_says_so(loopback_hub, folder, opens_at_once):
    loopback_hub.close()
    report = push(folder, NAME, license="mit", dry_run=True)
    assert report.plan is None and "the connection failed" in str(report.unasked)


def test_a_branch_and_a_pull_request(loopback_hub, folder, opens_at_once):
    push(folder, NAME, license="mit")
    (folder / "notes.md").write_text("more\n")
    push(folder, NAME, license="mit", revision="trial")
    push(folder, NAME, license="mit", create_pr=True)
    assert "notes.md" not in files_of(loopback_hub)
    for revision in ("trial", "refs/pr/1"):
        assert loopback_hub.repo(NAME).files(revision)["notes.md"] == b"more\n"


REFUSED = {
    "pickle": ("extra.pkl", "x", "extra.pkl: a .pkl file, which executes code"),
    "training arguments": ("training_args.bin", "x", "training_args.bin: a .bin file"),
    "optimizer": ("optimizer.pt", "x", "optimizer.pt: a .pt file"),
    "path": ("notes.md", "a\nsee /home/me/x\n", "notes.md, line 2: a path of a local machine"),
    "token": (
        "run.json",
        '{\n"t": "' + "hf_" + "aB3dE6gH9" * 4 + '"}',
        "run.json, line 2: a Hugging Face token (hf_a…)",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_must_not_be_published_is_refused_with_file_and_line(loopback_hub, folder, kind):
    name, content, message = REFUSED[kind]
    (folder / name).write_text(content)
    with pytest.raises(ValueError, match="is not fit to be published") as error:
        push(folder, NAME, license="mit")
    assert message in str(error.value) and "nothing was sent" in str(error.value)
    assert loopback_hub.requests == []


def test_a_card_without_a_licence_is_refused(loopback_hub, folder):
    with pytest.raises(ValueError, match=r"README.md: .*licen[cs]e"):
        push(folder, NAME)
    assert loopback_hub.requests == []


def test_what_does_not_open_is_refused(loopback_hub, folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 6}))
    with pytest.raises(ValueError, match="as a user would open it: it lacks 32 weights"):
        push(folder, NAME, license="mit")
    assert loopback_hub.requests == []


def test_modules_that_say_something_else_than_the_contract_are_refused(folder):
    pooling = folder / "1_Pooling" / "config.json"
    changed = json.loads(pooling.read_text())
    changed = {**changed, "pooling_mode": "mean"} if "pooling_mode" in changed else changed
    pooling.write_text(json.dumps(changed))
    (problem,) = opening_problems(folder, "encoder")
    assert problem == "sentence-transformers gives other vectors than the encoding contract says"


def test_code_that_differs_from_the_packages_is_reported(
    loopback_hub, bert_run, tmp_path, opens_at_once
):
    model = Path(shutil.copytree(bert_run / "model", tmp_path / "model"))
    with (model / "modeling_condenser.py").open("a") as file:
        file.write("# changed\n")
    (model / "more.py").write_text("x = 1\n")
    report = push(model, NAME, license="mit")
    assert report.differences == [
        "modeling_condenser.py differs from that of the installed package",
        "more.py is no file of this package",
    ]


def test_an_interrupted_push_leaves_the_repository_as_it_was(loopback_hub, folder, opens_at_once):
    push(folder, NAME, license="mit")
    before = files_of(loopback_hub)
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-4] + b"\0\0\0\0")
    loopback_hub.cut_next("PUT", "", times=99, after_bytes=1000)
    with pytest.raises(HubError, match="The repository is as it was"):
        push(folder, NAME, license="mit")
    assert files_of(loopback_hub) == before
    loopback_hub.faults.clear()
    assert push(folder, NAME, license="mit").committed.is_new
    assert files_of(loopback_hub)["model.safetensors"][-4:] == b"\0\0\0\0"


def test_a_wrong_token_is_said_and_never_shown(loopback_hub, folder, opens_at_once):
    HfApi().create_repo(NAME, private=True)
    token = "hf_" + "wrongWRONG0123456789"
    with pytest.raises(HubError, match="the Hub does not accept the token") as error:
        push(folder, NAME, license="mit", token=token)
    assert token not in str(error.value)
    assert files_of(loopback_hub) == {}


def test_what_is_no_model_is_said(tmp_path, bert_folder):
    with pytest.raises(FileNotFoundError, match="There is no folder .*nowhere"):
        push(tmp_path / "nowhere", NAME)
    with pytest.raises(FileNotFoundError, match="holds no model: expected config.json"):
        push(tmp_path, NAME)
    with pytest.raises(ValueError, match="is a model of type 'bert' without encoding_contract"):
        push(bert_folder, NAME)
