"""condenser push: what it prints, and what a person has to type."""

import json
from pathlib import Path

import pytest

from hub_scripts.main import main
from modeling_condenser import publishing
from modeling_condenser.publishing.export import export_encoder


@pytest.fixture
def encoder(bert_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loopback_hub) -> Path:
    monkeypatch.setattr(f"{publishing.__name__}.push.opening_problems", lambda *_: [])
    return export_encoder(bert_run, tmp_path / "encoder")


def test_a_dry_run_lists_every_file_and_its_size(encoder, capsys, loopback_hub):
    words = ["push", str(encoder), "owner/encoder", "--license", "mit", "--dry-run"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    size = (encoder / "model.safetensors").stat().st_size
    assert f"{size:>14,} bytes  model.safetensors" in lines
    n_files = sum(file.is_file() for file in encoder.rglob("*"))
    assert lines[-2].endswith(f"bytes in {n_files} files")
    assert lines[-1] == f"dry run: nothing was sent to {loopback_hub.url}/owner/encoder"
    assert not loopback_hub.has_repo("owner/encoder")


def test_pushing_twice_says_that_there_is_nothing_to_do(encoder, capsys, loopback_hub):
    words = ["push", str(encoder), "owner/encoder", "--license", "mit", "--private"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    sha = loopback_hub.repo("owner/encoder").commits("main")[0].sha
    assert f"pushed: {loopback_hub.url}/owner/encoder/commit/{sha}" in printed
    assert f"pin it: owner/encoder@{sha}" in printed
    assert loopback_hub.repo("owner/encoder").private
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert (
        printed.splitlines()[-1] == f"nothing changed: {loopback_hub.url}/owner/encoder is at {sha}"
    )


def test_a_branch_a_message_and_a_pull_request(encoder, capsys, loopback_hub):
    words = ["push", str(encoder), "owner/encoder", "--license", "mit"]
    assert main([*words, "--revision", "trial", "--message", "As tried"]) == 0
    repository = loopback_hub.repo("owner/encoder")
    assert repository.commits("trial")[0].title == "As tried"
    assert repository.files("main").keys() == {".gitattributes"}
    assert main([*words, "--create-pr"]) == 0
    assert "discussions/1" in capsys.readouterr().out


def test_a_refusal_names_file_and_line_and_ends_with_status_2(encoder, capsys, loopback_hub):
    (encoder / "notes.md").write_text("one\ntwo /home/me/data\n")
    assert main(["push", str(encoder), "owner/encoder", "--license", "mit"]) == 2
    error = capsys.readouterr().err
    assert "notes.md, line 2: a local path (/home/me/data)" in error
    assert "Traceback" not in error and loopback_hub.requests == []


def test_what_is_pushed_is_what_the_card_says(encoder, loopback_hub):
    assert main(["push", str(encoder), "owner/encoder", "--license", "mit"]) == 0
    files = loopback_hub.repo("owner/encoder").files()
    contract = json.loads(files["encoding_contract.json"])
    assert f"{contract['passage_max_length']} tokens" in files["README.md"].decode()
