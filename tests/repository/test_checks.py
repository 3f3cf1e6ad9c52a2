"""What a card lacks before it may be published."""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from modeling_condenser.repository.card import write_card
from modeling_condenser.repository.checks import card_problems
from modeling_condenser.repository.contract import EncodingContract
from modeling_condenser.repository.provenance import Stage, write_provenance
from modeling_condenser.repository.results import EvaluationResult, add_result

LOG = [{"step": i, "late_loss": 5 - i, "num_input_tokens_seen": i} for i in range(3)]
RUN_NAME = "evaluation/nfcorpus-test.trec.gz"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository whose card is whole."""
    folder = tmp_path / "model"
    folder.mkdir()
    EncodingContract(32, 128).save(folder)
    stage = Stage("Pre-training", {"encoder": "a/b"}, {"objective": "condenser"}, LOG)
    write_provenance(folder, [stage])
    (tmp_path / "run.trec").write_text("q Q0 d 1 1 x\n")
    result = EvaluationResult(
        "nfcorpus", "test", 100, 3, {"MRR@10": 0.51239}, source="BeIR/nfcorpus"
    )
    add_result(folder, result, run_file=tmp_path / "run.trec")
    write_card(folder, name="me/model", metadata={"license": "mit"})
    return folder


def edit(folder: Path, change: Callable[[str], str]) -> None:
    file = folder / "README.md"
    before = file.read_text()
    file.write_text(change(before))
    assert file.read_text() != before


def test_a_card_that_is_whole_has_no_problem(folder: Path) -> None:
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert card_problems(folder) == []
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("license: mit\n", "", "names no license"),
        ("library_name: sentence-transformers\n", "", "names no library_name"),
        ("me/model", "OWNER/NAME", "says OWNER/NAME"),
        ("## How to use", "## Hm", "does not say how to use it"),
        ("value: 0.5124", "value: 0.6124", "says 0.6124 for MRR@10 .*, but .* says 0.5124"),
        ("tags:\n", "tags: [\n", "cannot read the metadata"),
    ],
)
def test_each_lack_is_named_with_what_to_do(folder: Path, old: str, new: str, problem: str) -> None:
    edit(folder, lambda text: text.replace(old, new))
    found = card_problems(folder)
    assert any(re.search(problem, line, re.DOTALL) for line in found), found


def test_files_that_the_card_links_must_be_there(folder: Path) -> None:
    (folder / "training_curves.png").unlink()
    [problem] = card_problems(folder)
    assert "links training_curves.png, which does not exist" in problem
    (folder / RUN_NAME).unlink()
    problems = card_problems(folder)
    assert any(f"links {RUN_NAME}, which does not exist" in line for line in problems)
    assert any("again" in line and "nfcorpus (test)" in line for line in problems)


def test_links_elsewhere_and_code_are_no_files(folder: Path) -> None:
    more = "\n[a](https://x.org/y) [b](#training) [c](mailto:a@b.c)\n\n```\n[d](gone.txt)\n```\n"
    edit(folder, lambda text: text + more)
    assert card_problems(folder) == []
    edit(folder, lambda text: text + "\n![e](gone.png?raw=1#x)\n")
    [problem] = card_problems(folder)
    assert "links gone.png?raw=1#x" in problem


def test_a_run_that_is_not_the_measured_one_is_a_problem(folder: Path) -> None:
    (folder / RUN_NAME).write_bytes(gzip.compress(b"q Q0 other 1 1 x\n"))
    [problem] = card_problems(folder)
    assert "differs from its checksum: evaluate the model on nfcorpus (test) again" in problem
    (folder / RUN_NAME).write_bytes(b"no gzip")
    assert "cannot be read" in card_problems(folder)[0]


def test_a_result_that_is_not_on_the_card_is_a_problem(folder: Path) -> None:
    add_result(folder, EvaluationResult("mine", "dev", 10, 3, {"R@10": 0.5}))
    [problem] = card_problems(folder)
    assert "says nothing for R@10 on mine (dev, {'depth': 10})" in problem
    write_card(folder, name="me/model")
    assert card_problems(folder) == []
    (folder / "evaluation_results.json").write_text(json.dumps([3]))
    assert "is not a list of results" in card_problems(folder)[0]
