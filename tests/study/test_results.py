"""The tables and files of a study, for values per query whose p-values are known."""

import json

from datasets import Dataset

from modeling_condenser.evaluation.measures import make_evaluation
from modeling_condenser.study.results import StudyResults, choose_topics, copy_page, mean_evaluation


def evaluation(values):
    return make_evaluation({"MRR@10": {f"q{i}": value for i, value in enumerate(values)}})


def make_results(fusions=None, systems=(), **values):
    arms = {name: evaluation(numbers) for name, numbers in values.items()}
    bm25, controls = arms.pop("bm25"), dict.fromkeys(values, "mlm")
    return StudyResults(
        bm25, {"512 labels": arms}, controls, {"n_queries": 8}, systems, fusions or {}
    )


def test_table_and_marks_show_whether_arms_differ():
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
    *rows, _, explanation = results.tables().splitlines()
    assert rows == [
        "| MRR@10 | 512 labels |",
        "| --- | ---: |",
        "| bm25 | 0.500 |",
        "| mlm | 0.250 |",
        # Five tests; the p-values of three others are 1/128 too, so Holm takes this one times 5.
        "| condenser | 0.375 (+0.125 ▲, p = 0.039) |",
        "| other | 0.250 (+0.000 ○, p = 1.000) |",
    ]
    assert "all 5 tests" in explanation
    *printed, _, same = str(results).splitlines()
    assert [line.split() for line in printed] == [
        ["MRR@10", "512", "labels"],
        ["bm25", "0.500"],
        ["mlm", "0.250"],
        ["condenser", "0.375", "(+0.125", "▲)"],
        ["other", "0.250", "(+0.000", "○)"],
    ]
    assert same == explanation


def test_fused_arms_are_compared_with_the_fused_control_and_corrected_with_the_rest():
    results = make_results(
        {"condenser, 512 labels": ["rrf", "0.3", "rrf"]},
        bm25=[0.5] * 10,
        mlm=[0.25] * 10,
        condenser=[0.25] * 10,
        **{"bm25 + mlm": [0.5] * 10, "bm25 + condenser": [0.625] * 10},
    )
    report = results.tables()
    # Six tests: of p = 2/1024 are two arms against bm25, the last row against bm25 and against
    # the fused control; of p = 1 the fused control against bm25, and condenser against mlm.
    assert report.splitlines()[3:7] == [
        "| mlm | 0.250 |",
        "| condenser | 0.250 (+0.000 ○, p = 1.000) |",
        "| bm25 + mlm | 0.500 ~ |",
        "| bm25 + condenser | 0.625 (+0.125 ▲, p = 0.012) |",
    ]
    assert "from mlm. bm25 + ARM: the fused runs of both, compared with the fused" in report
    assert results.best_arm == "mlm"  # the one to search with


def test_each_start_has_its_control_and_a_panel_and_systems_are_compared_with_the_first():
    values = {name: evaluation([number] * 10) for number, name in enumerate("abcde")}
    names = ["a/start", "a/adapted", "b/start", "b/adapted"]
    arms = {"today": values["a"], **dict(zip(names, list(values.values())[1:], strict=True))}
    controls = {name: f"{name[0]}/start" for name in names}
    controls |= {"today": "a/start", "b/start": "a/start"}
    results = StudyResults(values["c"], {"no labels": arms}, controls, {}, ["today"])
    assert [
        float(results.cell("no labels", name, "MRR@10", with_p=False).partition("(")[2][:6])
        for name in ("today", "a/adapted", "b/start", "b/adapted")
    ] == [-1, 1, 2, 1]
    assert "from a/start and b/start, that of the same start; for these" in results.explanation
    assert results.arms == names and results.best_arm == "b/adapted"
    panels = results.by_labels()
    assert list(panels) == ["MRR@10, a", "MRR@10, b"]
    means = {name: own["mean"] for name, own in panels["MRR@10, b"]["no"].items()}
    assert means == {"bm25": 2, "today": 0, "start": 3, "adapted": 4}


def test_results_are_written_with_their_tests(tmp_path):
    fusions = {"condenser, 512 labels": ["rrf", "0.3", "rrf"]}
    results = make_results(fusions, bm25=[0.5] * 4, mlm=[0.25] * 4, condenser=[0.5, 0.5, 0.5, 0.25])
    (tmp_path / "a.png").write_bytes(b"picture")
    results.write(tmp_path, pictures=["a.png"], readiness="All are ready.")
    written = json.loads((tmp_path / "results.json").read_text())
    found = {(t["arm"], t["other"]): (t["p_value"], t["p_adjusted"]) for t in written["tests"]}
    # 0.25: three of three non-zero differences have one sign, 2 * 2 / 16. By Holm over all three.
    assert found == {
        ("mlm", "bm25"): (0.125, 0.375),
        ("condenser", "mlm"): (0.25, 0.5),
        ("condenser", "bm25"): (1.0, 1.0),
    }
    assert written["facts"] == {"n_queries": 8} and written["bm25"] == {"MRR@10": 0.5}
    page = (tmp_path / "results.md").read_text()
    assert results.tables() in page and page.endswith("\n\n## Readiness\n\nAll are ready.\n")
    assert "- bm25 + condenser, 512 labels, is fused by rrf; 0.3.\n" in page
    copy_page(tmp_path, tmp_path / "docs" / "mine.md", pictures=["a.png"])
    assert (tmp_path / "docs/mine-a.png").read_bytes() == b"picture"
    copied = (tmp_path / "docs/mine.md").read_text()
    assert "![a](mine-a.png)" in copied and "![a](a.png)" in page


def test_the_topics_of_the_map_are_the_titles_with_most_passages():
    titles = ["", "", "once", *["b"] * 41, *["a"] * 2, *["c"] * 2]
    topics = choose_topics(Dataset.from_dict({"title": titles}))
    assert topics == {"b": list(range(3, 43)), "a": [44, 45], "c": [46, 47]}
    assert choose_topics(Dataset.from_dict({"title": ["", "x"]})) == {}


def test_seeds_are_averaged_query_by_query():
    mean = mean_evaluation([evaluation([0.0, 1.0]), evaluation([0.5, 0.5])])
    assert mean.per_query == {"MRR@10": {"q0": 0.25, "q1": 0.75}} and mean.means == {"MRR@10": 0.5}
