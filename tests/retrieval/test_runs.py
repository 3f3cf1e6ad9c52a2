"""Run files: order, exact scores, and errors that name the line."""

import gzip

import ir_measures
import numpy as np
import pytest

from modeling_condenser.retrieval.runs import read_run, write_run


def test_a_written_run_is_ranked_by_score_then_id(tmp_path):
    run = {"q2": {"b": 1.5, "a": 1.5, "c": 2.0}, "q1": {"z": -0.1}, "q3": {}}
    path = write_run(run, tmp_path / "run.txt", tag="bm25")
    assert path.read_text().splitlines() == [
        "q2 Q0 c 1 2.0 bm25",
        "q2 Q0 a 2 1.5 bm25",
        "q2 Q0 b 3 1.5 bm25",
        "q1 Q0 z 1 -0.1 bm25",
    ]


def test_scores_survive_the_file_bit_for_bit_and_ir_measures_reads_them(tmp_path):
    scores = np.random.default_rng(0).standard_normal(50).astype(np.float32)
    run = {"q": {f"p{i}": score for i, score in enumerate(scores)}, "r": {"a": 1e-17}}
    path = write_run(run, tmp_path / "run.txt", tag="x")
    assert read_run(path) == {
        q: {p: float(s) for p, s in scores.items()} for q, scores in run.items()
    }
    rows = {(doc.query_id, doc.doc_id, doc.score) for doc in ir_measures.read_trec_run(str(path))}
    assert rows == {(q, p, float(s)) for q, scores in run.items() for p, s in scores.items()}


def test_what_is_no_trec_line_is_not_written(tmp_path):
    for query, score in (("q", float("nan")), ("q 1", 1.0)):
        with pytest.raises(ValueError, match="needs a finite score, and ids and a tag without"):
            write_run({query: {"b": score}}, tmp_path / "run.txt", tag="x")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("line", ["q Q0 b 2 nan x", "q Q0 my doc 2 0.5 x"])
def test_a_malformed_line_is_refused(tmp_path, line):
    path = tmp_path / "run.txt"
    path.write_text(f"q Q0 a 1 1.0 x\n\n{line}\n")
    with pytest.raises(ValueError, match="run.txt is no run file .* expected lines of query Q0"):
        read_run(path)


def test_a_passage_that_is_twice_among_the_results_is_refused(tmp_path):
    (tmp_path / "run.trec").write_text("q0 Q0 p0 1 9.0 x\nq0 Q0 p1 2 5.0 x\nq0 Q0 p0 9 -5.0 x\n")
    with pytest.raises(ValueError, match="p0 is twice among the results of q0"):
        read_run(tmp_path / "run.trec")


def test_runs_of_other_tools_are_read(tmp_path):
    path = tmp_path / "run.txt.gz"
    with gzip.open(path, "wt", encoding="utf-8-sig", newline="") as file:
        file.write("q\tQ0\tü1\t1\t  2.5e-1\tx\r\n\r\n  q Q0 b 7 -3 x and more\r\n")
    assert read_run(path) == {"q": {"ü1": 0.25, "b": -3.0}}
