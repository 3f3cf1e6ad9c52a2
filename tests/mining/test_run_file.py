"""Run files of any size: the same answers as the whole run gives."""

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
        for depth in (1, 1000):
            asked = dict.fromkeys(queries, "")
            found = run.search(asked, depth=depth)
            assert found == whole.search(asked, depth=depth)
            assert [list(scores) for scores in found.values()] == [
                list(scores) for scores in whole.search(asked, depth=depth).values()
            ]


def test_blank_lines_tabs_and_other_alphabets_are_read(tmp_path):
    file = tmp_path / "run"
    file.write_bytes(
        "\n\nq1\tQ0\tpé\t1\t1.5\tt\r\n\n  q1 Q0 日本 2 1e-3 t\n\nq2 Q0 a 1 -3 t".encode()
    )
    found = RunFile(file).search({"q2": "", "q1": ""}, depth=9)
    assert found == {"q2": {"a": -3.0}, "q1": {"pé": 1.5, "日本": 0.001}}


@pytest.mark.parametrize("line", ["q1 Q0 c 1 2.0", "q1 Q0 c 1 nan t", "q1 Q0 a 1 2.0 t"])
def test_a_malformed_line_is_refused(tmp_path, line):
    (tmp_path / "run").write_text(f"q1 Q0 a 1 2.0 t\n{line}\n")
    with pytest.raises(ValueError, match=f"the line '{line}' is malformed"):
        RunFile(tmp_path / "run").search({"q1": ""}, depth=9)


def test_the_lines_of_a_query_must_be_consecutive(tmp_path):
    (tmp_path / "run").write_text("q1 Q0 a 1 2 t\nq2 Q0 c 1 2 t\nq1 Q0 d 1 2 t\n")
    with pytest.raises(ValueError, match="run:3: the lines of query 'q1'"):
        RunFile(tmp_path / "run")
