"""What must not be published: found, named with file and line, and never shown in full."""

import io
import json
import pickle

import numpy as np
import pytest
import torch

from modeling_condenser.hub.push import find_refusals


@pytest.fixture
def look(tmp_path):
    """Looks at one file of a content and gives the refusals as text."""

    def look_at(content: str | bytes, name: str = "notes.md") -> list[str]:
        file = tmp_path / name
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return find_refusals({name: file})

    return look_at


def test_pickles_are_found_by_name_and_by_content(look):
    weights, numbers = io.BytesIO(), io.BytesIO()
    torch.save({"a": torch.zeros(2)}, weights)
    np.savez(numbers, a=np.arange(3))
    for name, content in {
        "training_args.bin": b"x",
        "weights.dat": weights.getvalue(),
        "harmless.txt": pickle.dumps({"a": 1}),
    }.items():
        assert look(content, name) == [
            f"{name}: a pickle, which can execute code: save it as safetensors"
        ]
    assert look(numbers.getvalue(), "arrays.npz") == []


# Pieced together, so that nothing here looks like what it stands for.
SECRETS = {
    "a Hugging Face token": "hf_" + "aB3dE6gH9" * 4,
    "an AWS key": "AKIA" + "ABCDEFGH12345678",
    "a GitHub token": "ghp_" + "a1B2" * 9,
    "an API key": "sk-proj-" + "a1B2" * 10,
    "a private key": "-----BEGIN RSA " + "PRIVATE KEY-----",
    "a login in an address": "https://user:" + "pa55word@example.org/x",
    "a password or key": '"WANDB_API_KEY": "' + 'q8w7e6r5t4y3u2"',
    "the token that is logged in": "no-usual-token-at-all",
}


@pytest.mark.parametrize("kind", SECRETS)
def test_secrets_are_found_with_their_line_and_not_shown(look, monkeypatch, kind):
    monkeypatch.setenv("HF_TOKEN", SECRETS["the token that is logged in"])
    secret = SECRETS[kind]
    (found,) = look(f"first\nsecond\n  x = {secret}\n")
    assert found.startswith(f"notes.md, line 3: {kind} (")
    assert secret not in found


def test_paths_of_a_machine_are_found(look, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = f"{tmp_path}/runs"
    for path in ("/home/me/corpus.jsonl", r"C:\Users\me\model", "file:///data/x", own):
        (found,) = look(json.dumps({"a": 1, "corpus": path}, indent=2), "run.json")
        assert found.startswith("run.json, line 3: a local path (")


def test_ordinary_text_is_accepted(look):
    text = """https://example.org/home/page
        see runs/retriever/model and owner/name, either/or, 1/2, /usr/bin/env python
        `encoding_contract.json`; tokens; password; secret sauce
        "mask_token": "[MASK]", "pad_token": "[PAD]"
        token = os.environ['HF_TOKEN']
        sk-learn, hf_hub_download, hf_transfer"""
    assert look(text) == []
