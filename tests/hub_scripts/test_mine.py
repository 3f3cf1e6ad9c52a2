"""condenser mine, as a person types it."""

import json
from pathlib import Path

import pytest

from hub_scripts.main import main
from tests.mining.making import make_labelled, make_run_file, read_lines


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    make_run_file(tmp_path / "run")
    collection = make_labelled(tmp_path / "collection")
    return ["mine", str(tmp_path / "run"), str(collection), str(tmp_path / "out")]


def test_the_result_and_the_next_command_are_printed(words, tmp_path, capsys):
    changes = ["--first_rank", "3", "--last_rank=40", "--n_negatives", "5", "--answer_filter=true"]
    assert main([*words, *changes]) == 0
    printed = capsys.readouterr().out
    facts = json.loads((tmp_path / "out" / "run.json").read_text())
    lines = read_lines(tmp_path / "out" / "negatives.jsonl")
    assert len(lines) == 22 and max(len(line["negative_ids"]) for line in lines) == 5
    assert f"22 queries, {facts['mean_negatives']:.1f} negatives each" in printed
    assert "2 without any, 0 with fewer than asked for, 1 left out without a positive" in printed
    assert f"answer {facts['dropped']['answer']}" in printed
    assert f"negatives: {tmp_path / 'out' / 'negatives.jsonl'}" in printed
    assert f"--collection {words[2]} --negatives {tmp_path / 'out' / 'negatives.jsonl'}" in printed


def test_examples_lead_to_training_without_the_collection(words, tmp_path, capsys):
    assert main([*words, "--positives", "answers", "--with_text", "true"]) == 0
    examples = tmp_path / "out" / "examples.jsonl"
    assert f"--format negatives --data {examples}" in capsys.readouterr().out
    assert set(read_lines(examples)[0]) == {"query", "positive", "negatives"}


def test_a_recipe_is_taken_and_changed(words, tmp_path):
    recipe = tmp_path / "own.yaml"
    recipe.write_text("n_negatives: 2\nlast_rank: 20\nsampling: top\n")
    assert main([*words, "--recipe", str(recipe), "--n_negatives", "3"]) == 0
    lines = read_lines(tmp_path / "out" / "negatives.jsonl")
    assert max(len(line["negative_ids"]) for line in lines) == 3


def test_a_wrong_setting_is_said_without_a_traceback(words, tmp_path, capsys):
    assert main([*words, "--relative_magin", "0.1"]) == 2
    assert "Did you mean 'relative_margin'?" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
