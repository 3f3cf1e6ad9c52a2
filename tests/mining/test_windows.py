"""Windows: what is whole is kept, what is damaged is mined again."""

import json
from collections import Counter
from pathlib import Path

import pytest

from modeling_condenser.mining.windows import Windows, remove_windows

FILES = ("a.jsonl", "b.jsonl")
LINES = [("a.jsonl", "1é\n"), ("b.jsonl", "x\n"), ("a.jsonl", "2\n")]


@pytest.fixture
def windows(tmp_path: Path) -> Windows:
    windows = Windows(tmp_path, FILES, identity={"system": "bm25"})
    windows.write(0, LINES, Counter(queries=2))
    windows.write(1, [("a.jsonl", "3\n")], Counter(queries=1))
    return windows


def test_parts_are_joined_in_order_and_removed(windows, tmp_path):
    assert windows.counts(0) == {"queries": 2}
    assert windows.counts(2) is None
    windows.join(2)
    remove_windows(tmp_path)
    assert (tmp_path / "a.jsonl").read_text() == "1é\n2\n3\n"
    assert (tmp_path / "b.jsonl").read_text() == "x\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "b.jsonl"]


@pytest.mark.parametrize("damage", ["cut", "changed", "missing", "no seal", "torn seal"])
def test_a_damaged_part_is_not_taken_for_whole(windows, tmp_path, damage):
    part, seal = tmp_path / "windows/00000.b.jsonl", tmp_path / "windows/00000.json"
    match damage:
        case "cut":
            part.write_text("")
        case "changed":
            part.write_text("y\n")
        case "missing":
            part.unlink()
        case "no seal":
            seal.unlink()
        case "torn seal":
            seal.write_text(seal.read_text()[:20])
    assert windows.counts(0) is None
    windows.write(0, LINES, Counter(queries=2))
    assert windows.counts(0) == {"queries": 2}
    assert windows.counts(1) == {"queries": 1}


def test_parts_of_another_content_are_refused(windows, tmp_path):
    Windows(tmp_path, FILES, identity={"system": "bm25"})
    with pytest.raises(ValueError, match="changed since: system"):
        Windows(tmp_path, FILES, identity={"system": "bm25 k1=1.2"})


def test_a_part_that_fails_leaves_nothing_behind_but_the_parts_before(windows, tmp_path):
    before = sorted((tmp_path / "windows").iterdir())

    def lines():
        yield "a.jsonl", "4\n"
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        windows.write(2, lines(), Counter())
    assert sorted((tmp_path / "windows").iterdir()) == before
    assert json.loads((tmp_path / "windows/00001.json").read_text())["counts"] == {"queries": 1}
