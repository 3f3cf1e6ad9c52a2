"""The words of all commands, and what the command itself does."""

import logging
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainingArguments

import modeling_condenser
from hub_scripts.main import COMMANDS, main
from modeling_condenser.files.settings import read_settings

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Fields:
    """Fields of a stage.

    Attributes:
        systems: to compare,
            at most 95 % of them.
        depth: of the search.
    """

    systems: list[str]
    out: str
    depth: int = 100
    rate: float | None = None
    dry_run: bool = False
    is_private: bool | None = None
    corpus: str | dict | list | None = None
    columns: dict[str, str] = field(default_factory=dict)


def read(words: str | list[str], *classes: type) -> dict[str, Any]:
    listed = words.split() if isinstance(words, str) else words
    return read_settings("verb", listed, Fields, *classes, positional=("systems", "out"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("a --depth 5 b,k=1 --dry-run out", {"systems": ["a", "b,k=1"], "depth": 5}),
        ("--dry_run a out", {"systems": ["a"], "dry_run": True}),
        ("--systems a b --out=out --rate 1e-4", {"systems": ["a", "b"], "rate": 1e-4}),
        ("a out --is_private", {"is_private": True}),
        ("a out --is_private false", {"is_private": False}),
        ("own.yaml --depth 3", {"systems": ["r"], "depth": 3}),
        ("a out --recipe own.yaml", {"systems": ["a"], "depth": 7}),
        (f"{'a' * 300} out", {"systems": ["a" * 300]}),  # too long for the name of a file
        ("a out --corpus 0123", {"corpus": "0123"}),
    ],
)
def test_words_and_fields_become_settings(words, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text("systems: [r]\nout: out\ndepth: 7\n")
    settings = read(words)
    assert settings.items() >= {**expected, "out": "out"}.items()
    assert "recipe" not in settings and "rate" not in settings.keys() - expected.keys()


def test_a_verb_may_have_no_words():
    assert read("") == {}


def test_mappings_are_written_in_yaml():
    settings = read(["a", "o", "--corpus", "[{path: 'a: b'}]", "--columns", "{query: question}"])
    assert settings["corpus"] == [{"path": "a: b"}]
    assert settings["columns"] == {"query": "question"}


def test_fields_of_the_trainer_are_read():
    settings = read("a out --bf16 --learning_rate 1e-4 --run_name 1.0", TrainingArguments)
    expected = {"bf16": True, "learning_rate": 1e-4, "run_name": "1.0"}
    assert settings == {"systems": ["a"], "out": "out", **expected}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("a out --depth", "--depth: expected one argument"),
        ("a out --depth x", "--depth: invalid int value: 'x'"),
        ("a out --columns {query:", "--columns: '{query:' is not valid YAML"),
        ("a out --dept 3", "no field 'dept'. Did you mean 'depth'?"),
        ("none.yaml a out", "There is no recipe 'none.yaml'"),
        ("--systems a --out b c", "unexpected word 'c'"),
    ],
)
def test_a_mistake_is_explained(words, message):
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        read(words)
    assert message in str(error.value)


def test_a_pattern_that_the_shell_replaced_by_files_is_explained(tmp_path):
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text("{}")
    words = ["--out", *map(str, sorted(tmp_path.glob("*.jsonl")))]
    with pytest.raises(ValueError, match="b.jsonl is no recipe .* pattern of files in quotes"):
        read_settings("verb", words, Fields)


def test_a_folder_named_like_a_recipe_is_not_taken_for_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("pretrain/own-text").mkdir(parents=True)
    assert read("pretrain/own-text out") == {"systems": ["pretrain/own-text"], "out": "out"}


def test_help_explains_the_fields_of_the_stage(capsys):
    with pytest.raises(SystemExit):
        read("--help", TrainingArguments)
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("usage: condenser verb [RECIPE.yaml] SYSTEMS OUT [--field value ...]")
    assert "--systems VALUE [VALUE ...] to compare, at most 95 % of them." in printed
    assert "--depth VALUE of the search. (default: 100)" in printed
    assert "adam" not in printed  # of the many fields of the trainer


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    printed = capsys.readouterr().out
    assert printed.startswith(f"usage: condenser {name} [RECIPE.yaml] ")
    assert ("--max_steps" in printed) == (name in ("pretrain", "finetune"))


def test_an_error_is_one_line_and_status_2(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["evaluate", "bm25", "no/such/folder"]
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ")
    assert "no collection at no/such/folder" in captured.err
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("CONDENSER_DEBUG", "1")
    with pytest.raises(OSError, match="no collection"):
        main(words)


def test_a_misspelt_verb_and_an_interrupt_are_one_line(capsys, monkeypatch):
    with pytest.raises(SystemExit):
        main(["serach", "bm25"])
    assert "invalid choice: 'serach'" in capsys.readouterr().err

    def interrupt(_):
        """Stop."""
        raise KeyboardInterrupt

    def interrupt_while_others_work(_):
        """Stop."""
        try:
            raise KeyboardInterrupt
        finally:
            raise TimeoutError  # as `datasets` does, whose processes do not answer

    for stopped in (interrupt, interrupt_while_others_work):
        monkeypatch.setitem(COMMANDS, "search", stopped)
        assert main(["search"]) == 130
        assert capsys.readouterr().err.startswith("interrupted: ")


def test_the_bare_command_prints_its_help(capsys):
    with pytest.raises(SystemExit):
        main([])
    assert "condenser VERB" in capsys.readouterr().out


@pytest.mark.slow
def test_bm25_starts_without_torch_and_no_help_imports_sentence_transformers(tmp_path):
    """Each takes seconds to import."""
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "corpus.jsonl").write_text('{"_id": "p", "text": "a red fox"}\n')
    code = """if True:
        import os, sys
        from contextlib import suppress
        from hub_scripts.main import COMMANDS
        from hub_scripts.main import main

        for words in (["--help"], ["--version"], ["search", "bm25", "c", "xylophone"]):
            with suppress(SystemExit):
                main(words)
        assert not {"torch", "sklearn"} & set(sys.modules)
        assert "CONDENSER_LAZY" not in os.environ  # processes that a command starts would read it
        for verb in COMMANDS:
            with suppress(SystemExit):
                main([verb, "--help"])
            assert "sentence_transformers" not in sys.modules, verb
    """
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    printed = subprocess.check_output(command, text=True, cwd=tmp_path, env=environment)
    for shown in ("  export ", "condenser 0.", "nothing found"):
        assert shown in printed


def test_a_machine_on_which_nothing_was_written_ends_without_an_error(monkeypatch, capsys):
    stage = "modeling_condenser.finetuning.finetune.finetune"
    monkeypatch.setattr(stage, lambda **_: Path("model"))
    assert main(["finetune", "--encoder", "a", "--data", "b.csv", "--output_dir", "c"]) == 0
    assert capsys.readouterr().out == "retriever: model\n"


def test_all_public_names_can_be_imported():
    for name in modeling_condenser.__all__:
        assert getattr(modeling_condenser, name).__name__ == name


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_message_is_written_once(is_terminal, tmp_path, monkeypatch, capsys):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("Text.")
    (tmp_path / "in" / "b.csv").write_text("nr,x\n1,2\n")
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    assert main(["collect", str(tmp_path / "in"), str(tmp_path / "out")]) == 0
    assert capsys.readouterr().err.count("b.csv") == 1
