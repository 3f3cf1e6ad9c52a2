"""The commands, one after another, as a person types them."""

import shlex

import pytest

from hub_scripts.main import main
from modeling_condenser.publishing.export import export_encoder
from tests.publishing.making import write_collection


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


def test_the_command_that_follows_mining_runs(bert_folder, tmp_path, run):
    """Where queries have 1 and 2 negatives."""
    texts = ["The river.", "The river and the old bridge.", "The bridge and the snow on the river."]
    passages = [{"_id": f"p{i}", "title": "", "text": text} for i, text in enumerate(texts)]
    queries = [{"_id": "q0", "text": "river"}, {"_id": "q1", "text": "bridge"}]
    judged = [("q0", "p0", 1), ("q1", "p1", 1)]
    collection = write_collection(tmp_path / "collection", passages, queries, dev=judged)
    mining = ("mine", "bm25", collection, "negatives", "--split", "dev")
    words = shlex.split(run(*mining)[-1])[2:]
    words[words.index("ENCODER")] = str(bert_folder)
    lengths = ("--query_max_length", 8, "--passage_max_length", 16)
    lines = run(*words, *lengths, "--pooling", "cls", "--max_steps", 1, "--use_cpu")
    assert lines[0] == "retriever: negatives-finetuned/model"
