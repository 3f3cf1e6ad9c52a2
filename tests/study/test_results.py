"""The tables and files of a study, for values per query whose p-values are known."""

import json
import re

from modeling_condenser.evaluation.measures import make_evaluation
from modeling_condenser.study.results import StudyResults, mean_evaluation


def evaluation(values):
    return make_evaluation({"MRR@10": {f"q{i}": value for i, value in enumerate(values)}})


def make_results(fusions=None, **values):
    arms = {name: evaluation(numbers) for name, numbers in values.items()}
    return StudyResults(
        arms.pop("bm25"), {"512 labels": arms}, "mlm", {"n_queries": 8}, fusions or {}
    )


def test_table_and_verdict_show_whether_arms_differ():
    flat = [0.25] * 8
    results = make_results(
        bm25=[0.5] * 8,
        mlm=flat,
        # Better on each of 8 queries: 2 of 256 sign flips are as extreme.
        condenser=[0.375] * 8,
        # Better on one, worse on another, as much: every sign flip is as extreme.
        other=[0.5, 0.0, *flat[2:]],
    )
    assert results.best_arm == "condenser"
    *rows, _, explanation, _, first, second = results.report().splitlines()
    assert rows == [
        "| system | MRR@10 |",
        "| --- | ---: |",
        "| bm25 | 0.500 |",
        "| mlm, 512 labels | 0.250 |",
        # Five tests; the p-values of three others are 1/128 too, so Holm takes this one times 5.
        "| condenser, 512 labels | 0.375 (+0.125, p = 0.039) |",
        "| other, 512 labels | 0.250 (+0.000, p = 1.000) |",
    ]
    assert "the 5 tests of this table" in explanation
    assert first == (
        "- With 512 labels, condenser differs significantly from mlm in MRR@10: +0.125 (95 % "
        "interval +0.125 to +0.125, p = 0.0391)."
    )
    interval = re.search(r"other does not differ .*\(95 % interval (\S+) to (\S+), p", second)
    assert -0.125 <= float(interval[1]) < 0 < float(interval[2]) <= 0.125


def test_fused_arms_are_compared_with_the_fused_control_and_corrected_with_the_rest():
    results = make_results(
        {"condenser, 512 labels": ["rrf", "0.3", "rrf"]},
        bm25=[0.5] * 10,
        mlm=[0.25] * 10,
        condenser=[0.25] * 10,
        **{"bm25 + mlm": [0.5] * 10, "bm25 + condenser": [0.625] * 10},
    )
    report = results.report()
    # Six tests: of p = 2/1024 are two arms against bm25, the last row against bm25 and against
    # the fused control; of p = 1 the fused control against bm25, and condenser against mlm.
    assert report.splitlines()[3:7] == [
        "| mlm, 512 labels | 0.250 |",
        "| condenser, 512 labels | 0.250 (+0.000, p = 1.000) |",
        "| bm25 + mlm, 512 labels | 0.500 ~ |",
        "| bm25 + condenser, 512 labels | 0.625 (+0.125, p = 0.012) |",
    ]
    assert "from mlm, for fused arms from bm25 + mlm. bm25 + ARM: the runs of both" in report
    assert "- bm25 + condenser, 512 labels, is fused by rrf; 0.3.\n" in report
    assert "bm25 + condenser differs significantly from bm25 + mlm" in report
    assert results.best_arm == "mlm"  # the one to search with


def test_results_are_written_with_their_tests(tmp_path):
    results = make_results(bm25=[0.5] * 4, mlm=[0.25] * 4, condenser=[0.5, 0.5, 0.5, 0.25])
    results.write(tmp_path, "## Readiness")
    written = json.loads((tmp_path / "results.json").read_text())
    found = {(t["arm"], t["other"]): (t["p_value"], t["p_adjusted"]) for t in written["tests"]}
    # 0.25: three of three non-zero differences have one sign, 2 * 2 / 16. By Holm over all three.
    assert found == {
        ("mlm", "bm25"): (0.125, 0.375),
        ("condenser", "mlm"): (0.25, 0.5),
        ("condenser", "bm25"): (1.0, 1.0),
    }
    assert (tmp_path / "results.md").read_text() == f"{results.report()}\n\n## Readiness\n"


def test_seeds_are_averaged_query_by_query():
    mean = mean_evaluation([evaluation([0.0, 1.0]), evaluation([0.5, 0.5])])
    assert mean.per_query == {"MRR@10": {"q0": 0.25, "q1": 0.75}} and mean.means == {"MRR@10": 0.5}
