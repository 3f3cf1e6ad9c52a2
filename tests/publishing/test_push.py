"""Publishing: what is refused, and what is sent."""

import io
import json
import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from modeling_condenser import CondenserForMaskedLM, CondenserForPreTraining, losses
from modeling_condenser.publishing import push as module
from modeling_condenser.publishing.card import PLACEHOLDER, write_card
from modeling_condenser.publishing.push import (
    commit_folder,
    find_opening_error,
    find_refusals,
    push,
)
from tests.encoding.making import change_json
from tests.publishing.loopback_hub import contents

NAME = "owner/encoder"


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    """An export that a test may change."""
    without = shutil.ignore_patterns("__pycache__")  # of a test that imports its script
    return Path(shutil.copytree(exported, tmp_path / "encoder", ignore=without))


@pytest.mark.slow
def test_an_encoder_is_pushed_once_as_it_is(loopback_hub, folder):
    before = contents(folder)
    report = push(folder=folder, name=NAME, license="apache-2.0", language="no", private=True)
    assert report.commit is not None
    sent = loopback_hub.repo(NAME).files()
    del sent[".gitattributes"]
    card = sent.pop("README.md").decode()
    assert sent == {name: content for name, content in before.items() if name != "README.md"}
    assert contents(folder) == before
    assert NAME in card and PLACEHOLDER not in card and "license: apache-2.0" in card
    assert ModelCard(card).data.language == "no"


@pytest.mark.slow
def test_text_that_was_added_to_the_card_on_the_hub_is_not_lost(loopback_hub, folder):
    push(folder=folder, name=NAME, license="mit")
    repository, card = loopback_hub.repo(NAME), folder / "README.md"
    files = repository.files()
    files["README.md"] += b"\n## Use\n\nIn tests."
    repository.add("main", "Edit model card", files)
    with pytest.raises(ValueError, match="card of owner/encoder on the Hub has text .* lacks"):
        push(folder=folder, name=NAME, license="mit")
    files["README.md"] = files["README.md"].replace(b"license: mit", b"license: mit\nthumbnail: a")
    files["README.md"] = files["README.md"].replace(b"tags:", b"tags:\n- medical")
    repository.add("main", "Edit model card", files)
    with pytest.raises(ValueError, match="has the metadata thumbnail, tags: medical that .* lacks"):
        push(folder=folder, name=NAME, license="mit")
    files["README.md"] = files["README.md"].replace(b"\nthumbnail: a", b"")
    files["README.md"] = files["README.md"].replace(b"\n- medical", b"")
    repository.add("main", "Edit model card", files)
    assert len(repository.commits()) == 2 + 3  # the first two are of create_repo and push
    card.write_text(card.read_text() + "\n## Use\n\nIn tests.\n\nAnd here.\n")
    push(folder=folder, name=NAME, license="mit")
    assert b"In tests.\n\nAnd here." in repository.files()["README.md"]
    card.write_text(card.read_text().replace("And here.", ""))  # a person's own change
    push(folder=folder, name=NAME, license="mit", replace_card=True)
    assert b"And here." not in repository.files()["README.md"]
    files = repository.files()
    files["README.md"] = files["README.md"].replace(b"license: mit", b"license: apache-2.0")
    repository.add("main", "Edit model card", files)
    card.write_text(card.read_text().replace("---\n", "---\nlicense: mit\n", 1))
    with pytest.raises(ValueError, match="has the metadata license: apache-2.0 that .* lacks"):
        push(folder=folder, name=NAME)
    push(folder=folder, name=NAME, license="mit")


@pytest.mark.parametrize("links", [True, False])
def test_a_dry_run_checks_and_prints_the_card_without_the_network(links, folder, monkeypatch):
    def refuse(*_):
        raise OSError("A required privilege is not held by the client")

    if not links:
        monkeypatch.setattr("os.symlink", refuse)  # as Windows does
    monkeypatch.setattr(module, "find_opening_error", lambda _: None)
    monkeypatch.setattr("socket.socket.connect", None)  # any use of it fails
    write_card(folder, metadata={"license": "mit"})
    for stated, expected in (({}, "mit"), ({"license": "gpl-3.0"}, "gpl-3.0")):
        report = push(folder=folder, name=NAME, dry_run=True, **stated)
        assert report.commit is None and report.sizes.keys() == contents(folder).keys()
        assert ModelCard(report.card).data.license == expected
    assert ModelCard.load(folder / "README.md").data.license == "mit"


@pytest.mark.slow
def test_a_trainers_checkpoint_is_pushed_with_its_code_and_without_its_training_state(
    loopback_hub, bert_run, tmp_path
):
    checkpoint = Path(shutil.copytree(bert_run / "model", tmp_path / "run" / "checkpoint-7"))
    state = {"optimizer.pt", "rng_state.pth", "training_args.bin", "trainer_state.json"}
    state |= {"stream-0.json"}  # the places of a stream
    for name in state:
        (checkpoint / name).write_bytes(b'{"global_step": 7}')
    push(folder=tmp_path / "run", name=NAME, license="mit")  # opens it in a process of its own
    names = loopback_hub.repo(NAME).files().keys()
    assert names >= {"configuration_condenser.py", "modeling_condenser.py", "model.safetensors"}
    assert not names & state


@pytest.mark.slow
def test_a_checkpoint_of_an_earlier_version_gets_the_code_of_this_one(bert_run, tmp_path):
    checkpoint = Path(shutil.copytree(bert_run / "model", tmp_path / "checkpoint"))
    (checkpoint / "losses.py").write_text("raise RuntimeError('of an earlier version')")
    (checkpoint / "encoder_parts.py").unlink()
    report = push(folder=checkpoint, name=NAME, license="mit", dry_run=True)
    assert report.sizes["losses.py"] == Path(losses.__file__).stat().st_size
    (checkpoint / "other.py").write_text("")
    with pytest.raises(ValueError, match=r"other\.py: not the code of this version"):
        push(folder=checkpoint, name=NAME, license="mit", dry_run=True)


def test_all_reasons_not_to_publish_are_listed(loopback_hub, folder, bert_folder):
    (folder / "args.bin").write_text("x")
    (folder / "notes.md").write_text(f"a\nsee {TOKEN}\n")
    reasons = "args.bin: a pickle.*notes.md: an access token.*no license"
    with pytest.raises(ValueError, match=f"(?s)cannot be published.*{reasons}"):
        push(folder=folder, name=NAME)
    with pytest.raises(FileNotFoundError, match="There is no model in"):
        push(folder=folder / "nowhere", name=NAME)
    with pytest.raises(ValueError, match="is neither a pre-training checkpoint nor"):
        push(folder=bert_folder, name=NAME)
    names = {"bert-base-uncased": "expected owner/name", "owner/my name": "Repo id must use"}
    for name, reason in names.items():
        with pytest.raises(ValueError, match=reason):
            push(folder=folder, name=name, license="mit", dry_run=True)
    (folder / "README.md").write_text("---\nlicense: mit\n---\nOf another model.\n")
    (folder / "provenance.json").unlink()
    with pytest.raises(ValueError, match="has a model card of others"):
        push(folder=folder, name=NAME)
    (folder / "README.md").write_text("---\nlicense: [\n---\n")
    with pytest.raises(ValueError, match=f"metadata at the top of {folder}/README.md cannot be"):
        push(folder=folder, name=NAME)
    assert not loopback_hub.repositories


@pytest.mark.slow
def test_what_does_not_open_is_refused(folder):
    weights = folder / "model.safetensors"
    tensors = {name: w for name, w in load_file(weights).items() if "pooler" not in name}
    save_file(tensors, weights, metadata={"format": "pt"})  # as with add_pooling_layer=False
    assert find_opening_error(folder) is None
    change_json(folder / "config.json", num_hidden_layers=6)
    assert "32 weights are missing" in find_opening_error(folder)


@pytest.mark.slow
def test_a_model_whose_transformer_has_a_folder_is_pushed(folder):
    (folder / "0_Transformer").mkdir()
    stays = ("modules.json", "config_sentence_transformers.json", "provenance.json", "README.md")
    for file in folder.iterdir():
        if file.is_file() and file.name not in stays:
            file.rename(folder / "0_Transformer" / file.name)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    report = push(folder=folder, name=NAME, license="mit", dry_run=True)
    assert "0_Transformer/model.safetensors" in report.sizes and ", 32 numbers |" in report.card


def test_pickled_weights_beside_others_are_left_out(folder):
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({}))
    report = push(folder=folder, name=NAME, license="mit", dry_run=True)
    assert report.sizes.keys() == contents(folder).keys() - {"pytorch_model.bin"}


def test_a_process_that_dies_without_a_word_is_an_error(folder, monkeypatch):
    killed = SimpleNamespace(returncode=-9, stdout="", stderr="")
    monkeypatch.setattr("subprocess.run", lambda *_, **__: killed)
    assert "ended with the exit status -9" in find_opening_error(folder)


@pytest.mark.slow
def test_a_checkpoint_without_a_condenser_head_opens(bert_folder, tmp_path):
    CondenserForMaskedLM.from_encoder(bert_folder).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(bert_folder).save_pretrained(tmp_path)
    assert find_opening_error(tmp_path) is None


@pytest.mark.slow
def test_a_checkpoint_with_a_decoder_opens(bert_folder, tmp_path):
    CondenserForPreTraining.from_encoder(
        bert_folder, head_mlm_probability=0.5, n_head_layers=1
    ).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(bert_folder).save_pretrained(tmp_path)
    assert find_opening_error(tmp_path) is None


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A folder to commit, with a link."""
    root = tmp_path / "to_upload"
    root.mkdir()
    (root / "README.md").write_text("---\nlicense: mit\n---\n# An encoder\n")
    (root / "model.safetensors").write_bytes(bytes(range(256)) * 20)
    (root / "theirs.txt").write_text("kept")
    for name in (
        *("onnx/model_qint8.onnx", "evaluation_results.json"),
        "query_Router/query_0_Dense/config.json",  # of an adapted model
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("of these weights")
    (root / "linked.md").symlink_to(root / "README.md")
    return root


def test_old_weights_and_results_are_deleted_in_the_same_commit_and_other_files_kept(
    loopback_hub, small
):
    commit_folder(small, NAME, message="First", private=True)
    repository = loopback_hub.repo(NAME)
    assert repository.private
    assert repository.files() == {**contents(small), ".gitattributes": b"\n"}
    others = dict.fromkeys(("models/large/model.safetensors", "onnx/notes.md"), b"theirs")
    stale = ["onnx/model.onnx", "onnx/model.onnx_data", "openvino/openvino_model.bin"]
    files = {**repository.files(), **others, **dict.fromkeys([*stale, "tf_model.h5"], b"old")}
    repository.add("main", "By others", files)
    for name in ("theirs.txt", "evaluation_results.json"):
        (small / name).unlink()
    for name in ("onnx", "query_Router"):
        shutil.rmtree(small / name)
    (small / "model.safetensors").rename(small / "model-00001-of-00002.safetensors")
    done = commit_folder(small, NAME, message="Second")
    kept = {**others, "theirs.txt": b"kept", ".gitattributes": b"\n"}
    assert repository.files() == {**contents(small), **kept}
    assert commit_folder(small, NAME, message="Without a change").oid == done.oid
    assert [c.title for c in repository.commits()] == [
        "Second",
        "By others",
        "First",
        "initial commit",
    ]


def test_errors_of_the_hub_are_reported_and_leave_the_repository_unchanged(loopback_hub, small):
    loopback_hub.fails_next_commit = True
    with pytest.raises(OSError, match="Cannot push to owner/encoder: Bad request"):
        commit_folder(small, NAME, message="First")
    with pytest.raises(OSError, match="exists and is public"):
        commit_folder(small, NAME, message="Second", private=True)
    assert len(loopback_hub.repo(NAME).commits()) == 1  # the Hub's own
    with pytest.raises(OSError, match="Cannot push to owner/new: .*401") as error:
        commit_folder(small, "owner/new", message="First", token=TOKEN)
    assert TOKEN not in str(error.value)


TOKEN = "hf_" + "aB3dE6gH9" * 4  # pieced together, so that nothing here looks like one


def test_pickles_and_tokens_are_found_and_ordinary_text_is_accepted(tmp_path, monkeypatch):
    weights, numbers = io.BytesIO(), io.BytesIO()
    torch.save({"a": torch.zeros(2)}, weights)
    np.savez(numbers, a=np.arange(3))
    ordinary = """https://example.org/home/page and `modules.json`; tokens; password
        "mask_token": "[MASK]", token = os.environ['HF_TOKEN'], hf_hub_download"""
    monkeypatch.setenv("HF_TOKEN", "no-usual-token-at-all")
    files = {
        "args.bin": (b"x", "a pickle"),
        "openvino_model.bin": (b"x", None),
        "weights.dat": (weights.getvalue(), "a pickle"),
        "x.txt": (pickle.dumps({"a": 1}), "a pickle"),
        "arrays.npz": (numbers.getvalue(), None),
        "run.json": (json.dumps({"key": TOKEN}).encode(), "an access token"),
        "a.md": (b"https://user:pa55" + b"word@example.org/x", "an access token or password"),
        "b.md": (b"x = no-usual-token-at-all", "an access token"),
        "notes.md": (ordinary.encode(), None),
    }
    for name, (content, reason) in files.items():
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_bytes(content)
        found = find_refusals(folder)
        assert len(found) == (reason is not None), name
        assert not found or (found[0].startswith(f"{name}: {reason}") and TOKEN not in found[0])
