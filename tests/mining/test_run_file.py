"""Run files of any size: the same answers as read_run gives, and errors that name the line."""

from pathlib import Path

import pytest

from modeling_condenser.mining.run_file import RunFile
from modeling_condenser.retrieval.runs import read_run
from modeling_condenser.retrieval.systems import StoredRun
from tests.mining.making import make_run_file


def test_queries_are_read_in_any_order_as_from_the_whole_run(tmp_path):
    make_run_file(tmp_path / "run")
    whole = StoredRun(read_run(tmp_path / "run"))
    run = RunFile(tmp_path / "run")
    for queries in (["q22", "q0", "q9"], ["q7", "q8", "unknown"], []):
        for depth in (1, 10, 1000):
            asked = dict.fromkeys(queries, "")
            found = run.search(asked, depth=depth)
            assert found == whole.search(asked, depth=depth)
            assert [list(scores) for scores in found.values()] == [
                list(scores) for scores in whole.search(asked, depth=depth).values()
            ]
    assert run.count_known(["q0", "unknown", "q8"]) == 2


def test_blank_lines_tabs_and_other_alphabets_are_read(tmp_path):
    file = tmp_path / "run"
    file.write_bytes(
        "\n\nq1\tQ0\tpé\t1\t1.5\tt\r\n\n  q1 Q0 日本 2 1e-3 t\n\nq2 Q0 a 1 -3 t".encode()
    )
    found = RunFile(file).search({"q2": "", "q1": ""}, depth=9)
    assert found == {"q2": {"a": -3.0}, "q1": {"pé": 1.5, "日本": 0.001}}
    file.write_bytes(b"")
    assert RunFile(file).search({"q2": ""}, depth=9) == {}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"q2 Q0 c 1 2.0", "run:3: 5 columns, expected 6"),
        (b"q2 Q0 c 1 nan t", "run:3: score 'nan'"),
        (b"q2 Q0 c 1 high t", "run:3: score 'high'"),
        (b"q1 Q0 a 1 2.0 t", "run:3: query 'q1' lists passage 'a' a second time"),
        (b"q2 Q0 c 1 2 t\nq1 Q0 d 1 2 t", "run:4: query 'q1' stands further up"),
        (b"q2 Q0 \xff 1 2.0 t", "run:3: not UTF-8"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    (tmp_path / "run").write_bytes(b"q1 Q0 a 1 2.0 t\nq1 Q0 b 2 1.0 t\n" + line + b"\n")
    with pytest.raises(ValueError, match=message):
        RunFile(tmp_path / "run")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no run file at .*none"):
        RunFile(tmp_path / "none")
