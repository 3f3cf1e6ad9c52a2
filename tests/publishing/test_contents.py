"""What must not be published: found, named with file and line, and never shown in full."""

import gzip
import io
import json
import pickle
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from modeling_condenser.publishing.contents import find_refusals


@pytest.fixture
def look(tmp_path):
    """Looks at one file of a content and gives the refusals as text."""

    def look_at(content: str | bytes, name: str = "notes.md") -> list[str]:
        file = tmp_path / "looked_at" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return find_refusals({name: file})

    return look_at


def test_pickles_are_found_by_name_and_by_content(look, tmp_path):
    torch.save({"a": torch.zeros(2)}, tmp_path / "weights")
    archive = (tmp_path / "weights").read_bytes()
    objects = io.BytesIO()
    np.save(objects, np.array([{}]), allow_pickle=True)
    for name, content in {
        "optimizer.pt": b"x",
        "training_args.bin": b"x",
        "weights.dat": archive,
        "harmless.txt": pickle.dumps({"a": 1}),
        "array.npy": objects.getvalue(),
    }.items():
        assert look(content, name) == [
            f"{name}: a pickle, which can execute code: save it as safetensors"
        ]


def test_plain_arrays_and_archives_are_not_taken_for_pickles(look):
    numbers, archive = io.BytesIO(), io.BytesIO()
    np.save(numbers, np.arange(3))
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a.txt", "text")
    assert look(numbers.getvalue(), "array.npy") == look(archive.getvalue(), "a.zip") == []


# Pieced together, so that nothing here looks like what it stands for.
SECRETS = {
    "a Hugging Face token": "hf_" + "aB3dE6gH9" * 4,
    "an AWS key": "AKIA" + "ABCDEFGH12345678",
    "a GitHub token": "ghp_" + "a1B2" * 9,
    "a Google key": "AIza" + "a1B2c" * 7,
    "an API key": "sk-proj-" + "a1B2" * 10,
    "a Slack token": "xoxb-" + "123456789012-abcdef",
    "a private key": "-----BEGIN RSA " + "PRIVATE KEY-----",
    "a login in an address": "https://user:" + "pa55word@example.org/x",
    "a password or key": '"api_key": "' + 'q8w7e6r5t4y3u2"',
}


@pytest.mark.parametrize("kind", SECRETS)
def test_secrets_are_found_with_their_line_and_not_shown(look, kind):
    secret = SECRETS[kind]
    (found,) = look(f"first\nsecond\n  x = {secret}\n")
    assert found.startswith(f"notes.md, line 3: {kind} (")
    assert secret not in found


@pytest.mark.parametrize(
    "path",
    [
        "/home/somebody/data/corpus.jsonl",
        "/Users/somebody/model",
        "/root/.cache/model",
        "/mnt/disk/encoder",
        r"C:\Users\somebody\model",
        "file:///data/x",
    ],
)
def test_paths_of_a_machine_are_found_with_their_line(look, path):
    (found,) = look(json.dumps({"a": 1, "corpus": path}, indent=2), "run.json")
    assert found.startswith("run.json, line 3: a local path (")


def test_this_machines_own_folders_are_found_wherever_they_are(look, tmp_path, monkeypatch):
    own = tmp_path / "work" / "project"
    own.mkdir(parents=True)
    monkeypatch.chdir(own)
    assert f"({own}" in look(f"see {own}/runs")[0]
    assert "tokenizer.json, line 1" in look(f'["{own}"]', "tokenizer.json")[0]


def test_the_token_that_is_logged_in_is_found_whatever_it_looks_like(look, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "no-usual-token-at-all")
    (found,) = look("a\nb no-usual-token-at-all c")
    assert found == "notes.md, line 2: the token that is logged in (no-u…)"


@pytest.mark.parametrize(
    "text",
    [
        "https://example.org/home/page",
        "see runs/retriever/model and owner/name",
        "either/or, and/or, 1/2",
        "`encoding_contract.json`; tokens; password; secret sauce",
        '"mask_token": "[MASK]", "pad_token": "[PAD]"',
        "token = os.environ['HF_TOKEN']",
        "sk-learn, hf_hub_download, hf_transfer",
        "the path /usr/bin/env python",
    ],
)
def test_ordinary_text_is_let_through(look, text):
    assert look(text) == []


def test_compressed_runs_are_looked_into(look):
    line = f"q1 Q0 p1 1 0.5 {SECRETS['a Hugging Face token']}\n"
    content = gzip.compress(("q0 Q0 p1 1 0.5 x\n" + line).encode())
    (found,) = look(content, "evaluation/run.trec.gz")
    assert found.startswith("evaluation/run.trec.gz, line 2: a Hugging Face token (hf_a…")


def test_the_metadata_of_weights_is_looked_into(look, tmp_path):
    save_file({"a": torch.zeros(1)}, tmp_path / "w", metadata={"from": "/home/me/run"})
    (found,) = look((tmp_path / "w").read_bytes(), "model.safetensors")
    assert found == "model.safetensors, line 1: a local path (/home/me/run)"
    (torn,) = look(b"\x10\0\0\0\0\0\0\0{", "model.safetensors")
    assert torn.startswith("model.safetensors: not a complete safetensors file")
