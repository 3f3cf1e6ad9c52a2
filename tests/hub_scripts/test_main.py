"""The commands, as a person types them."""

import importlib
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from hub_scripts.demo import change_settings
from hub_scripts.main import COMMANDS, main
from modeling_condenser.evaluation.system_results import evaluate_system
from modeling_condenser.runs.recipe import read_recipe
from tests.publishing.making import make_collection

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def collection(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_collection(tmp_path_factory.mktemp("collections") / "small", texts)


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)


def test_help_lists_every_command_at_once_and_without_heavy_imports() -> None:
    code = (
        "import sys\nfrom hub_scripts.main import main\ntry:\n    main(['--help'])\n"
        "except SystemExit as end:\n    print('STATUS', end.code)\n"
        "print('HEAVY', sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))\n"
    )
    times = []
    for _ in range(2):  # the machine may be busy with something else once
        started = time.perf_counter()
        process = python(code)
        times.append(time.perf_counter() - started)
    assert process.stderr == ""
    assert process.stdout.endswith("STATUS 0\nHEAVY []\n")
    for name, text in COMMANDS.items():
        assert f"  {name:<18}{text}\n" in process.stdout
    assert min(times) < 1.5


def test_every_command_has_a_file_and_every_file_is_a_command() -> None:
    files = {file.stem.replace("_", "-") for file in (ROOT / "hub_scripts").glob("*.py")}
    assert files == {*COMMANDS, "--init--", "main", "recipe-command"}
    for name in COMMANDS:
        assert callable(importlib.import_module(f"hub_scripts.{name.replace('-', '_')}").run)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: condenser {name} ")


@pytest.mark.parametrize("words", [[], ["exprot"], ["search"]])
def test_words_that_are_no_command_line_give_status_2(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert "usage: condenser" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pretrain", "no-such-recipe"], "error: There is no recipe 'no-such-recipe'"),
        (["finetune", "no-such-recipe"], "error: There is no recipe 'no-such-recipe'"),
        (["demo", "--recipe", "no-such-recipe"], "error: There is no recipe 'no-such-recipe'"),
        (["export", "no/such/folder", "out"], "error: "),
        (["evaluate", "bm25", "no/such/folder"], "error: no collection at no/such/folder"),
        (["search", "no/such/study", "x"], "error: no/such/study holds no search.json"),
        (["search", "no/model", "no/collection", "x"], "error: no collection no/collection"),
    ],
)
def test_what_is_not_there_gives_status_2_and_one_line(
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONDENSER_DEBUG", raising=False)
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(message)
    assert "Traceback" not in captured.err
    assert list(tmp_path.iterdir()) == []


def test_an_error_can_be_seen_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDENSER_DEBUG", "1")
    with pytest.raises(FileNotFoundError):
        main(["pretrain", "no-such-recipe"])


def test_the_commands_lead_from_text_to_search(
    bert_folder: Path,
    collection: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> list[str]:
        """What a command prints beside the training log."""
        capsys.readouterr()
        assert main([str(word) for word in words]) == 0
        return [line for line in capsys.readouterr().out.splitlines() if not line.startswith("{")]

    shared = {"use_cpu": True, "per_device_train_batch_size": 8, "learning_rate": 1e-3, "seed": 1}
    (tmp_path / "pretrain.yaml").write_text(
        json.dumps({"encoder": str(bert_folder), "max_length": 32, "max_steps": 50, **shared})
    )
    lines = run(
        "pretrain",
        "pretrain.yaml",
        "--corpus",
        collection / "corpus.jsonl",
        "--output_dir=runs/cd",
        "--max_steps",
        "3",
    )
    assert lines == [
        "checkpoint: runs/cd/model",
        "next: condenser export runs/cd ENCODER_FOLDER",
    ]
    assert json.loads(Path("runs/cd/run.json").read_text())["steps"] == 3

    assert run("export", "runs/cd", "encoder") == ["encoder: encoder"]

    (tmp_path / "finetune.yaml").write_text(
        json.dumps({"encoder": "encoder", "num_train_epochs": 1, **shared})
    )
    lines = run("finetune", "finetune.yaml", "--collection", collection, "--output_dir", "runs/ft")
    assert lines == [
        "retriever: runs/ft/model",
        f"next: condenser evaluate runs/ft/model {collection}",
    ]

    lines = run("evaluate", "--baseline", "bm25", "runs/ft/model", collection)
    folder = Path("runs/evaluation/small/test")
    own = evaluate_system("runs/ft/model", collection, folder / "ft", progress=False)
    bm25 = evaluate_system("bm25", collection, folder / "bm25", progress=False)
    assert lines[:2] == ["small, test: 2 systems on 20 queries", "bm25:"]
    for name, c in own.compare_with(bm25).items():
        assert f"  {name:<7}  {c.mean_baseline:.4f}" in lines
        start = re.escape(f"  {name:<7}  {c.mean_system:.4f}   ")
        (found,) = [m for m in (re.match(rf"{start}(\S+) from bm25, p ", x) for x in lines) if m]
        assert float(found[1]) == pytest.approx(c.difference, abs=1.01e-4)
    assert lines[-1] == f"report: {folder}/report.md"
    card = Path("runs/ft/model/README.md").read_text()
    value = re.escape(f"{own.evaluation.means['MRR@10']:.4f}")
    assert re.search(rf"\| MRR@10 \| {value} \| [\d. to]+ \| bm25 \|", card)
    assert "condenser evaluate OWNER/NAME small --baseline bm25 --split test" in card
    assert str(collection) not in card and str(tmp_path) not in card

    first = json.loads(Path(collection / "corpus.jsonl").read_text().splitlines()[0])
    lines = run("search", "runs/ft/model", collection, first["text"], "-k", "2")
    assert len(lines) == 4
    assert [line.partition(".")[0] for line in lines[::2]] == ["1", "2"]
    passages = {
        row["_id"]: row["text"]
        for row in map(json.loads, Path(collection / "corpus.jsonl").read_text().splitlines())
    }
    for head, text in zip(lines[::2], lines[1::2], strict=True):
        assert text == "   " + " ".join(passages[head.split()[1]].split())[:160]
    # A second search finds the embeddings that the first one left.
    shard = Path("runs/ft/model-search-small/embeddings/shard-00000.npy")
    written = shard.stat().st_mtime_ns
    assert run("search", "runs/ft/model", collection, first["text"], "-k", "2") == lines
    assert shard.stat().st_mtime_ns == written


def test_two_retrievers_of_one_name_are_not_taken_for_each_other(
    bert_folder: Path, collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    from modeling_condenser.publishing.export import export_encoder
    from modeling_condenser.repository.contract import EncodingContract
    from tests.publishing.making import make_run

    monkeypatch.chdir(tmp_path)
    run = make_run(bert_folder, tmp_path / "run")
    for arm, contract in (("a", EncodingContract(8, 8)), ("b", EncodingContract(32, 64))):
        export_encoder(run, tmp_path / arm / "encoder", contract=contract)
    assert main(["evaluate", "a/encoder", str(collection)]) == 0
    assert main(["evaluate", "b/encoder", str(collection)]) == 2
    assert "choose another output_dir" in capsys.readouterr().err
    assert main(["evaluate", "b/encoder", str(collection), "--output_dir", "elsewhere"]) == 0


def test_the_demo_changes_only_what_it_is_told_to() -> None:
    recipe = read_recipe("study/demo")
    nothing = dict.fromkeys(("encoder", "collection", "steps", "labels"))
    unchanged = {**nothing, "output_dir": "runs/x"}
    assert change_settings(recipe, unchanged) == {**recipe, "output_dir": "runs/x"}
    changed = change_settings(
        recipe, {**unchanged, "encoder": "owner/name", "steps": 7, "labels": 9}
    )
    assert changed == {
        **recipe,
        "output_dir": "runs/x",
        "encoder": "owner/name",
        "pretraining": {**recipe["pretraining"], "max_steps": 7},
        # 300 of 2,500 is the share of its steps, which are larger.
        "arms": {
            **recipe["arms"],
            "cocondenser": {**recipe["arms"]["cocondenser"], "max_steps": 1},
        },
        "finetuning": {**recipe["finetuning"], "train_size": 9},
    }
    assert recipe == read_recipe("study/demo")


def test_the_demo_starts_from_a_given_encoder_with_the_papers_split(
    collection: Path, bert_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "demo"
    words = ["demo", "--encoder", str(bert_folder), "--collection", str(collection)]
    recipe = yaml.safe_load((ROOT / "configuration/study/from-encoder.yaml").read_text())
    recipe["pretraining"]["max_length"] = recipe["finetuning"]["passage_max_length"] = 64
    recipe["finetuning"]["num_train_epochs"] = 1
    recipe["arms"]["cocondenser"] |= {"per_device_train_batch_size": 4, "cache_chunk_size": 4}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(recipe))
    words += ["--recipe", str(tmp_path / "small.yaml"), "--output_dir", str(out)]
    assert main([*words, "--steps", "2", "--labels", "8"]) == 0
    printed = capsys.readouterr().out
    assert "| condenser, 8 labels | " in printed
    assert "| cocondenser, 8 labels | " in printed
    assert f'condenser search {out} "' in printed
    config = json.loads((out / "condenser/pretrain/model/config.json").read_text())
    assert (config["skip_from"], config["n_head_layers"]) == (2, 2)
    assert not (out / "start").exists()
    assert main(["search", str(out), "one two three"]) == 0
    assert "1. p" in capsys.readouterr().out
