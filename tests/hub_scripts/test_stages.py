"""The commands, one after another, as a person types them."""

import pytest

from hub_scripts.main import main
from modeling_condenser.publishing.export import export_encoder


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a command in an empty folder: the lines that it prints."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        capsys.readouterr()
        assert main([str(word) for word in words]) == 0
        return capsys.readouterr().out.splitlines()

    return run


def test_push_lists_the_files_and_makes_a_branch(bert_run, monkeypatch, loopback_hub, run):
    monkeypatch.setattr("modeling_condenser.publishing.push.find_opening_error", lambda _: None)
    encoder = export_encoder(bert_run, "encoder")
    words = ["push", "encoder", "owner/encoder", "--license", "mit", "--private"]
    lines = run(*words, "--dry-run")
    size = (encoder / "model.safetensors").stat().st_size
    assert f"{size:>14,} bytes  model.safetensors" in lines
    assert "license: mit" in lines and lines[-1].startswith("dry run: nothing was sent")
    assert not loopback_hub.repositories
    lines = run(*words, "--revision", "trial", "--message", "As tried")
    repository = loopback_hub.repo("owner/encoder")
    commit = repository.commits("trial")[0]
    assert repository.private and commit.title == "As tried"
    assert lines[-1] == f"pin it: owner/encoder@{commit.sha}"
    assert repository.files("main").keys() == {".gitattributes"}
