"""What a card lacks before it may be published."""

import gzip
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
    assert card_problems(folder) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("license: mit\n", "", "names no license"),
        ("me/model", "OWNER/NAME", "says OWNER/NAME"),
        ("tags:\n", "tags: [\n", "cannot be read"),
    ],
)
def test_each_lack_is_named(folder: Path, old: str, new: str, problem: str) -> None:
    edit(folder, lambda text: text.replace(old, new))
    assert problem in card_problems(folder)[0]


def test_files_that_the_card_links_must_be_there(folder: Path) -> None:
    (folder / "training_curves.png").unlink()
    more = "\n[a](https://x.org/y) [b](#training) [c](mailto:a@b.c)\n\n```\n[d](gone.txt)\n```\n"
    edit(folder, lambda text: text + more)
    [problem] = card_problems(folder)
    assert "links training_curves.png, which does not exist" in problem


def test_a_run_that_is_not_the_measured_one_is_a_problem(folder: Path) -> None:
    (folder / RUN_NAME).write_bytes(gzip.compress(b"q Q0 other 1 1 x\n"))
    [problem] = card_problems(folder)
    assert "is not the measured run: evaluate on nfcorpus (test) again" in problem
