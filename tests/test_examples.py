"""The scripts in examples/: run as a user would, and quoted by the docs as they are."""

import ast
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

import modeling_condenser
from modeling_condenser.collection import load

ROOT = Path(__file__).parent.parent
NAMES = ("search", "condense", "fine_tune", "evaluate", "adapt")
# What each prints, as a pattern.
PRINTED = {
    "search": r"\n  0\.\d{3}  \w",
    "condense": r"'train_loss': .*\nruns/condensed-encoder encodes 100 texts into vectors of 256 ",
    "fine_tune": r"fine-tune +MRR@10 +0\.\d{4} +[+-]0\.\d{4} [▲▼○] +p ",
    "evaluate": r"\nbest by MRR@10: ",
    "adapt": r": nDCG@10 .*\nadapted: (True|False); written: runs/adapted/model\n",
}


@pytest.mark.parametrize("name", NAMES)
def test_an_example_imports_the_public_names_alone(name):
    tree = ast.parse((ROOT / "examples" / f"{name}.py").read_text())
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    [own] = [node for node in nodes if str(node.module).startswith("modeling_condenser")]
    assert own.module == "modeling_condenser"
    assert {alias.name for alias in own.names} <= set(modeling_condenser.__all__)


def test_the_page_of_examples_quotes_them_as_they_are():
    page = (ROOT / "docs" / "examples.md").read_text()
    quoted = dict(re.findall(r"`examples/(\w+)\.py`.*?```python\n(.*?)```", page, re.DOTALL))
    assert set(quoted) == set(NAMES)
    for name, text in quoted.items():
        assert text == (ROOT / "examples" / f"{name}.py").read_text(), name


@pytest.fixture
def few_passages(tmp_path, monkeypatch):
    """Makes `health` a collection of every 24th judgement and their passages."""
    whole, folder = Path(load.resolve_collection_name("health")), tmp_path / "few"
    (folder / "qrels").mkdir(parents=True)
    judged: set[str] = set()
    for file in (whole / "qrels").iterdir():
        rows = pd.read_csv(file, sep="\t", dtype=str)[::24]
        rows.to_csv(folder / "qrels" / file.name, sep="\t", index=False)
        judged |= set(rows["corpus-id"])
    passages = pd.read_json(whole / "corpus.jsonl.gz", lines=True, dtype=False)
    kept = passages[passages["_id"].isin(judged)]
    kept.to_json(folder / "corpus.jsonl", orient="records", lines=True)
    shutil.copy(whole / "queries.jsonl.gz", folder)
    names = {"health": str(folder)}
    monkeypatch.setattr(load, "resolve_collection_name", lambda name: names.get(name, str(name)))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs_without_a_download(name, tmp_path, monkeypatch, capsys, few_passages):
    monkeypatch.chdir(tmp_path)
    source = (ROOT / "examples" / f"{name}.py").read_text()
    for long, short in (("max_steps=20", "max_steps=5"), ("train_size=256", "train_size=64")):
        source = source.replace(long, short)
    exec(compile(source, name, "exec"), {})
    printed = capsys.readouterr().out
    assert re.search(PRINTED[name], printed), printed
