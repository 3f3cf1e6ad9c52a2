"""The grammar of all commands, and what the command itself does."""

import importlib
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hub_scripts.command_line import fill_settings, read_settings
from hub_scripts.demo import scale_study
from hub_scripts.finetune import evaluated_on
from hub_scripts.main import COMMANDS, main
from modeling_condenser.runs.recipe import read_recipe

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Fields:
    """Fields of a test.

    Attributes:
        systems: what to evaluate, at
            most 95 % of it.
        out: folder to write.
        depth: passages to retrieve.
        dry_run: change nothing.
    """

    systems: list[str]
    out: str
    depth: int = 100
    dry_run: bool = False
    columns: dict[str, str] = field(default_factory=dict)


def read(*words: str) -> dict[str, Any]:
    return read_settings("verb", words, Fields, plain=("systems", "out"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("a out", {"systems": ["a"], "out": "out"}),
        ("a --depth 5 b,k=1 --dry-run out", {"systems": ["a", "b,k=1"], "depth": 5}),
        ("--dry-run a out", {"dry_run": True}),
        ("a b --out=out", {"systems": ["a", "b"]}),
        ("--systems [a,b] out --learning_rate 1e-4", {"learning_rate": 1e-4}),
        ("own.yaml --depth 3", {"systems": ["r"], "depth": 3}),
        ("a out --recipe own.yaml", {"systems": ["a"], "depth": 7}),
    ],
)
def test_words_and_fields_become_settings(
    words: str, expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text("systems: [r]\nout: out\ndepth: 7\n")
    settings = read(*words.split())
    assert settings.items() >= {**expected, "out": "out"}.items()
    assert settings["systems"] in (["a"], ["a", "b"], ["a", "b,k=1"], ["r"])
    assert "recipe" not in settings


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("a", r"out is not given: condenser verb \[RECIPE.yaml\] SYSTEMS OUT \[--field value"),
        ("a out --depth", "--depth needs a value"),
        ("none.yaml a out", "There is no recipe 'none.yaml'"),
        ("a out --dpeth 3", "Did you mean 'depth'?"),
        ("a out --depth many", "depth is 'many'"),
        ("--systems [a] b c", "unexpected word 'c'"),
    ],
)
def test_a_mistake_is_explained(words: str, message: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        fill_settings("verb", words.split(), Fields, plain=("systems", "out"))


def test_help_explains_each_field(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        read("a", "--help")
    assert end.value.code == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("usage: condenser verb [RECIPE.yaml] SYSTEMS OUT [--field value ...]")
    assert "--systems VALUE what to evaluate, at most 95 % of it." in printed
    assert "--depth VALUE passages to retrieve. (default: 100)" in printed
    assert "--dry_run [true|false] change nothing." in printed


def python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=ROOT)


def test_every_command_has_a_file_and_every_file_is_a_command() -> None:
    files = {file.stem.replace("_", "-") for file in (ROOT / "hub_scripts").glob("*.py")}
    assert files == {*COMMANDS, "--init--", "main", "command-line"}
    for name in COMMANDS:
        assert callable(importlib.import_module(f"hub_scripts.{name.replace('-', '_')}").run)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: condenser {name} [RECIPE.yaml] ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("pretrain no-such-recipe", "There is no recipe 'no-such-recipe'"),
        ("export no/such/folder out", ""),
        ("evaluate bm25 no/such/folder", "no collection at no/such/folder"),
        ("push folder owner/name --licence mit", "Did you mean 'license'?"),
        ("search no/such/study x", "no/such/study is not the folder of a finished study"),
        ("import-reference folder out", "skip_from"),
    ],
)
def test_an_error_is_one_line_and_status_2(
    words: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ")
    assert message in captured.err and "Traceback" not in captured.err
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("CONDENSER_DEBUG", "1")
    with pytest.raises((ValueError, OSError)):
        main(words.split())


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--help"], ["search", "bm25", "c", "xylophone"]])
def test_help_and_bm25_start_without_torch(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "corpus.jsonl").write_text('{"_id": "p", "text": "a red fox"}\n')
    code = (
        f"import os, sys\nsys.path.insert(0, {str(ROOT)!r})\nos.chdir({str(tmp_path)!r})\n"
        f"from hub_scripts.main import main\ntry:\n    main({words!r})\nexcept SystemExit: pass\n"
        "print('HEAVY', sorted({'torch', 'transformers', 'sklearn'} & set(sys.modules)))\n"
    )
    process = python("-c", code)
    assert process.stdout.endswith("HEAVY []\n"), process.stderr
    assert ("nothing found" if "bm25" in words else "  export            ") in process.stdout


@pytest.mark.slow
def test_importing_the_package_registers_the_model_unless_the_command_asked_not_to() -> None:
    code = (
        "import os\nfrom hub_scripts import main\n{}\nimport modeling_condenser\n"
        "from transformers import AutoModel, CONFIG_MAPPING\n"
        "print('condenser' in CONFIG_MAPPING, 'CONDENSER_LAZY' in os.environ)"
    )
    lazily = "main._import_without_model()"
    for first, printed in (("", "True False\n"), (lazily, "False False\n")):
        process = python("-c", code.format(first))
        assert process.stdout == printed, process.stderr


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("Retriever", "encoding.retriever"),
        ("evaluate", "evaluation.evaluate"),
        ("mine", "mining.mine"),
        ("push", "hub.push"),
    ],
)
def test_public_names_are_those_of_their_modules(name: str, module: str) -> None:
    import modeling_condenser

    public = getattr(modeling_condenser, name)
    assert public is getattr(importlib.import_module(f"modeling_condenser.{module}"), name)
    assert callable(public) and name in modeling_condenser.__all__


@pytest.mark.parametrize(
    ("recipe", "changes", "words"),
    [
        ("contrastive", {"collection": "my-collection"}, "my-collection"),
        ("stsb", {"data": "train.csv"}, "TEST_PAIRS.csv --task graded_pairs"),
        ("wikipedia-sections", {"data": "train.csv"}, "TEST_TRIPLETS.csv --task triplets"),
    ],
)
def test_the_evaluation_after_fine_tuning_fits_what_was_trained(
    recipe: str, changes: dict[str, Any], words: str
) -> None:
    assert evaluated_on({**read_recipe(f"finetune/{recipe}"), **changes}) == words


def test_the_demo_scales_steps_and_labels() -> None:
    recipe = read_recipe("study/demo")
    assert scale_study(recipe) == recipe
    assert scale_study({**recipe, "steps": 7, "labels": 9}) == {
        **recipe,
        "pretraining": {**recipe["pretraining"], "max_steps": 7},
        # The share of its steps, which are larger and fewer.
        "arms": {
            **recipe["arms"],
            "cocondenser": {**recipe["arms"]["cocondenser"], "max_steps": 1},
        },
        "finetuning": {**recipe["finetuning"], "train_size": 9},
    }
    assert recipe == read_recipe("study/demo")
