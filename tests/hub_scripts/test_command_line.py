"""The grammar of all commands, and what the command itself does."""

import logging
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import modeling_condenser
from hub_scripts.command_line import CommandLine
from hub_scripts.commands import COMMANDS
from hub_scripts.main import main
from modeling_condenser.evaluation.evaluate import EvaluationRecipe

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Fields:
    systems: list[str]
    out: str
    depth: int = 100
    dry_run: bool = False
    columns: dict[str, str] = field(default_factory=dict)
    corpus: str | dict[str, str] | list[str] | None = None


def line(words):
    return CommandLine("verb", words.split())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("a --depth 5 b,k=1 --dry-run out", {"systems": ["a", "b,k=1"], "depth": 5}),
        ("--dry-run a out", {"systems": ["a"], "dry_run": True}),
        ("--systems [a,b] --out=out --learning_rate 1e-4", {"learning_rate": 1e-4}),
        ("--bf16 --systems [a] --out out --use-cpu", {"bf16": True, "use_cpu": True}),
        ("own.yaml --depth 3", {"systems": ["r"], "depth": 3}),
        ("a out --recipe own.yaml", {"systems": ["a"], "depth": 7}),
        (f"{'a' * 300} out", {"systems": ["a" * 300]}),  # too long for the name of a file
    ],
)
def test_words_and_fields_become_settings(words, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text("systems: [r]\nout: out\ndepth: 7\n")
    settings = line(words).read(Fields, plain=("systems", "out"))
    assert settings.items() >= {**expected, "out": "out"}.items()
    assert "recipe" not in settings


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("a", r"out is not given: condenser verb \[RECIPE.yaml\] SYSTEMS OUT \[--field value"),
        ("a out --depth", "--depth needs a value"),
        ("a out --depth --dry-run", "--depth needs a value"),
        ("none.yaml a out", "There is no recipe 'none.yaml'"),
        ("--systems [a] b c", "unexpected word 'c'"),
        ("--systems [a out", "The value of --systems is not valid YAML"),
    ],
)
def test_a_mistake_is_explained(words, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        line(words).read(Fields, plain=("systems", "out"))


def test_a_folder_named_like_a_recipe_is_not_taken_for_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("pretrain/own-text").mkdir(parents=True)
    settings = line("./pretrain/own-text out").read(Fields, plain=("systems", "out"))
    assert settings == {"systems": ["./pretrain/own-text"], "out": "out"}
    with pytest.raises(
        ValueError, match="pretrain/own-text is a recipe .* write ./pretrain/own-text for the"
    ):
        line("pretrain/own-text out").read(Fields, plain=("systems", "out"))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((text, text) for text in ("query: ", " | ", "#2", "1.0", "", "2024_05", "0123", "*.txt")),
        ("null", None),
        ("'query: '", "query: "),
        ('"a,b",name="c"', '"a,b",name="c"'),
    ],
)
def test_text_is_taken_as_it_stands(value, expected):
    for name in ("out", "corpus", "systems"):
        assert CommandLine("verb", [f"--{name}", value]).read(Fields)[name] == expected
    assert CommandLine("verb", ["--out", "[draft] first"]).read(Fields)["out"] == "[draft] first"


def test_a_structure_is_read_where_a_field_may_be_one_unless_it_is_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for value, expected in (("{path: 'a: b'}", {"path": "a: b"}), ("[a, 'b c']", ["a", "b c"])):
        assert CommandLine("verb", ["--corpus", value]).read(Fields)["corpus"] == expected
    long = CommandLine("verb", ["--corpus", f"[{'a' * 5000}]"]).read(Fields)["corpus"]
    assert long == ["a" * 5000]
    Path("[a]").touch()
    assert CommandLine("verb", ["--corpus", "[a]"]).read(Fields)["corpus"] == "[a]"


def test_the_trainers_text_fields_are_text_in_finetune(monkeypatch):
    called = []

    def stop(**settings):
        called.append(settings)
        raise ValueError("stop")

    monkeypatch.setattr("modeling_condenser.finetuning.finetune.finetune", stop)
    main("finetune --encoder 1e5 --output_dir 2024 --data 0123 --run_name 1.0 --seed 3".split())
    text = {"encoder": "1e5", "output_dir": "2024", "data": "0123", "run_name": "1.0"}
    assert called == [{**text, "seed": 3}]


def act(name: str, *, private: bool | None = None, depth: int = 3, token: str | None = None):
    """Act.

    Args:
        name: of whom, at
            most 95 % of it.
        private: whether nobody sees it.
        depth: of the act.
        token: a secret.
    """
    return {"name": name, "private": private, "depth": depth, "token": token}


def test_a_function_is_called_with_its_parameters_as_fields_which_help_explains(capsys):
    found = line("me --private --depth 5").call(act, without=("token",))
    assert found == {"name": "me", "private": True, "depth": 5, "token": None}
    with pytest.raises(SystemExit):
        line("--help").call(act, without=("token",))
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("usage: condenser verb [RECIPE.yaml] NAME [--field value ...] ")
    for explanation in (
        "--name VALUE of whom, at most 95 % of it.",
        "--private [true|false] whether nobody sees it.",
        "--depth VALUE of the act. (default: 3)",
    ):
        assert explanation in printed
    assert "token" not in printed


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    printed = capsys.readouterr().out
    assert printed.startswith(f"usage: condenser {name} [RECIPE.yaml] ")
    assert ("--max_steps" in printed) == (name in ("pretrain", "finetune"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("evaluate bm25 no/such/folder", "no collection at no/such/folder"),
        ("push folder owner/name --licence mit", "Did you mean 'license'?"),
    ],
)
def test_an_error_is_one_line_and_status_2(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    assert not logging.getLogger("huggingface_hub").propagate  # its warnings would be shown twice
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ")
    assert message in captured.err and "Traceback" not in captured.err
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("CONDENSER_DEBUG", "1")
    with pytest.raises((ValueError, OSError)):
        main(words.split())


def test_a_misspelt_verb_and_an_interrupt_are_one_line(capsys, monkeypatch):
    with pytest.raises(SystemExit):
        main(["serach", "bm25"])
    assert "no verb 'serach'. Did you mean search?" in capsys.readouterr().err

    def interrupt(_):
        """Stop."""
        raise KeyboardInterrupt

    monkeypatch.setitem(COMMANDS, "search", interrupt)
    assert main(["search"]) == 130
    assert capsys.readouterr().err.startswith("interrupted: ")


@pytest.mark.slow
def test_bm25_starts_without_torch_and_no_help_imports_sentence_transformers(tmp_path):
    """Each takes seconds to import."""
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "corpus.jsonl").write_text('{"_id": "p", "text": "a red fox"}\n')
    code = """if True:
        import os, sys
        from contextlib import suppress
        from hub_scripts.commands import COMMANDS
        from hub_scripts.main import main

        for words in (["--help"], ["--version"], ["search", "bm25", "c", "xylophone"]):
            with suppress(SystemExit):
                main(words)
        assert not {"torch", "transformers", "sklearn"} & set(sys.modules)
        assert "CONDENSER_LAZY" not in os.environ  # processes that a command starts would read it
        for verb in COMMANDS:
            with suppress(SystemExit):
                main([verb, "--help"])
            assert "sentence_transformers" not in sys.modules, verb
    """
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    printed = subprocess.check_output(command, text=True, cwd=tmp_path, env=environment)
    for shown in ("  export            ", "condenser 0.", "nothing found"):
        assert shown in printed


def test_all_public_names_can_be_imported():
    for name in modeling_condenser.__all__:
        assert getattr(modeling_condenser, name).__name__ == name


def test_an_environment_variable_hides_all_bars():
    code = (
        "from modeling_condenser.files.progress import bar\n"
        "list(bar(range(3), 'shown', unit='step', delay=0))"
    )
    settings = os.environ | {"CONDENSER_LAZY": "1", "TQDM_DISABLE": "1", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True)
    assert (ran.returncode, ran.stderr) == (0, b"")


def test_some_lists_take_all_words_up_to_the_next_field():
    read = {"systems": ["a"], "collection": "c", "measures": ["MRR@10", "R(rel=2)@20"]}
    for words in ("a c --measures MRR@10 R(rel=2)@20", "--measures [MRR@10,R(rel=2)@20] a c"):
        line = CommandLine("evaluate", words.split())
        assert line.read(EvaluationRecipe, plain=("systems", "collection")) == read


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_message_is_written_once(is_terminal, tmp_path, monkeypatch, capsys):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("Text.")
    (tmp_path / "in" / "b.csv").write_text("nr,x\n1,2\n")
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    assert main(["collect", str(tmp_path / "in"), str(tmp_path / "out")]) == 0
    assert capsys.readouterr().err.count("in/b.csv cannot be read") == 1
