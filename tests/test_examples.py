"""The scripts in examples/: run as a user would, and quoted by the docs as they are."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import modeling_condenser

ROOT = Path(__file__).parent.parent
NAMES = ("search", "condense", "fine_tune", "evaluate", "adapt")
# What each prints, as a pattern.
PRINTED = {
    "search": r"\n  0\.\d{3}  \w",
    "condense": r"'train_loss': .*\nruns/condensed-encoder encodes 100 texts into vectors of 256 ",
    "fine_tune": r"fine-tune:\n  MRR@10  0\.\d{4}   \+0\.\d{4} from starter\S+, p < 0\.001\n",
    "evaluate": r"\nbest by MRR@10: ",
    "adapt": r"better: nDCG@10 .*\nadapted: True; written: runs/adapted/model\n",
}


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_short_and_uses_the_public_names_alone(name):
    source = (ROOT / "examples" / f"{name}.py").read_text()
    assert 15 <= len(source.splitlines()) <= 40
    own = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("modeling_condenser")
    ]
    names = {alias.name for node in own for alias in node.names}
    assert {node.module for node in own} == {"modeling_condenser"}
    assert names <= set(modeling_condenser.__all__)


def test_the_page_of_examples_quotes_them_as_they_are():
    page = (ROOT / "docs" / "examples.md").read_text()
    quoted = dict(re.findall(r"`examples/(\w+)\.py`.*?```python\n(.*?)```", page, re.DOTALL))
    assert set(quoted) == set(NAMES)
    for name, text in quoted.items():
        assert text == (ROOT / "examples" / f"{name}.py").read_text(), name


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs_without_a_download(name, tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / f"{name}.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(PRINTED[name], done.stdout), done.stdout
