"""Reports: the figures of the JSON, sentences, tables and pictures, from hand-made results."""

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset

from modeling_condenser.collection.collection import Collection
from modeling_condenser.evaluation import plots
from modeling_condenser.evaluation.measures import make_evaluation
from modeling_condenser.evaluation.plots import plot_bars, plot_curves, plot_map
from modeling_condenser.evaluation.report import write_report
from modeling_condenser.evaluation.significance import compare, compare_in_groups, holm
from modeling_condenser.evaluation.similarity import evaluate_graded_pairs
from modeling_condenser.evaluation.system_results import SystemResult

QUERIES = {
    **{f"n{i:02d}": f"how many rivers | *lakes* does country {i} have" for i in range(20)},
    **{f"h{i:02d}": f"who painted <b>picture</b>\t{i}" for i in range(18)},
    "y0": "is water wet",
    "a0": "what does nasa stand for",
}
COLLECTION = Collection(
    passages=Dataset.from_dict({"_id": ["p"], "title": ["A title"], "text": ["x"]}),
    queries=QUERIES,
    qrels={q: {"p": 1} for q in QUERIES},
    name="my_collection",
)
COST = {
    **{"device": "cpu", "hardware": "a machine", "dtype": "float32", "n_threads": 1},
    **{"seconds_per_step": 0.05, "quartiles": (0.04, 0.06), "n_steps": 30},
    **{"peak_memory_bytes": 10**8, "n_parameters": 10**6, "batch_size": 8, "length": 64},
}
EQUAL = "○ (+0.0000, p = 1.000)"  # a cell's difference
# 0.25 for every query; the good system has more for those about numbers, and 0 for one of them.
BASE = dict.fromkeys(QUERIES, 0.25)
GOOD = {**{q: 0.75 if q.startswith("n") else 0.25 for q in QUERIES}, "n19": 0.0}


def make_result(name: str, values: dict[str, float], **more: Any) -> SystemResult:
    per_query = {
        "MRR@10": values,
        "R@20": dict.fromkeys(values, 0.5),
        "R@100": {q: min(1.0, value * 2) for q, value in values.items()},
    }
    evaluation = make_evaluation(per_query, unanswerable=["unjudged"])
    return SystemResult(name, "my_collection", "test", evaluation, **more)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, Path]:
    """A report of three systems, with a run file and a cost: JSON, Markdown, and the folder."""
    folder = tmp_path_factory.mktemp("report")
    run_file = folder / "run-100.trec"
    run_file.write_text("n00 Q0 p 1 0.5 good\n")
    more: dict[str, Any] = {
        "run_file": run_file,
        "settings": {"pooling": "cls", "query_prompt": "query: "},
        "record": {"queries_per_second": 812.5, "identity": {"system": "abc"}},
        "cost": COST,
        "first": {"n00": "p"},
    }
    systems = [make_result("bm25", BASE), make_result("good", GOOD, **more)]
    write_report(
        folder,
        [*systems, make_result("same", BASE)],
        collection=COLLECTION,
        command="condenser evaluate my_collection --seed 3",
        seed=3,
    )
    return (
        json.loads((folder / "report.json").read_text()),
        (folder / "report.md").read_text(),
        folder,
    )


def test_results_have_means_and_corrected_comparisons(report):
    content, text, _ = report
    good = content["results"]["MRR@10"]["good"]
    assert good["mean"] == pytest.approx((21 * 0.25 + 19 * 0.75 - 0.25) / 40)
    own = make_evaluation({"MRR@10": GOOD})
    assert tuple(good["interval"]) == own.interval("MRR@10", seed=3)
    main, alone = good["against_baseline"], compare(GOOD, BASE, seed=3)
    assert (main["p_value"], tuple(main["interval"])) == (alone.p_value, alone.interval)
    found = [
        by_system[name]["against_baseline"]
        for by_system in content["results"].values()
        for name in ("good", "same")
    ]
    assert [c["p_adjusted"] for c in found] == holm([c["p_value"] for c in found])
    assert content["results"]["MRR@10"]["bm25"]["against_baseline"] is None
    for line in (
        "# my\\_collection, test: 3 systems on 40 queries",
        "1 query was left out, without relevant passages or answers.",
        "| system | MRR@10 | R@20 | R@100 |",
        "| bm25 | 0.2500 | 0.5000 | 0.5000 |",
        f"| good | {good['mean']:.4f} ▲ (+0.2313, p < 0.001) | 0.5000 {EQUAL} | 0.7250 ▲ (+0.2250,",
    ):
        assert f"\n{line}" in f"\n{text}"
    assert "Holm's correction over the 6 comparisons of this table." in text


def test_all_pairs_are_compared_by_both_tests(report):
    content, text, _ = report
    pairs = content["pairs"]
    names = [("good", "bm25"), ("same", "bm25"), ("same", "good")]
    assert [(pair["system"], pair["other"]) for pair in pairs] == names
    assert [c["p_adjusted"] for c in pairs] == holm([c["p_value"] for c in pairs])
    p = compare_in_groups(GOOD, BASE, seed=3)
    assert [pair["t_test"] for pair in pairs] == holm([p, 1.0, p])
    low, high = compare(GOOD, BASE, seed=3).interval
    interval = f"{low:+.4f} to {high:+.4f} | p < 0.001 | 19 / 20 / 1 | p < 0.001 |"
    assert f"\n| good minus bm25 | +0.2313 ▲ | {interval}\n" in text


def test_breakdowns_are_by_answer_type_and_by_length(report):
    content, text, _ = report
    types = content["breakdowns"]["answer type"]
    sizes = {name: group["n_queries"] for name, group in types.items()}
    assert sizes == {"number": 20}  # the others have fewer than 20, whose mean is chance
    number = types["number"]["systems"]["good"]
    good, base = ({q: v[q] for q in v if q.startswith("n")} for v in (GOOD, BASE))
    assert number["mean"] == pytest.approx(19 * 0.75 / 20)
    p_value = compare(good, base, seed=3).p_value
    assert number["against_baseline"]["p_adjusted"] == pytest.approx(2 * p_value)
    assert [*content["breakdowns"]["query length"]] == ["9-12 words"]
    assert re.search(r"\n\| number \| 20 \| 0\.2500 \| 0\.7125 ▲ ", text)


def test_the_queries_that_changed_most_are_shown_with_the_first_passages(report):
    content, text, _ = report
    changed = content["changed_queries"]["good"]
    assert [q["query"] for q in changed["gained"]] == [f"n{i:02d}" for i in range(10)]
    [lost] = changed["lost"]
    assert (lost["query"], lost["values"]) == ("n19", [0.25, 0.0])
    right = {"passage": "p", "excerpt": "A title: x", "is_relevant": True}
    assert changed["gained"][0]["first"] == [None, right] and lost["first"] == [None, None]
    asked = "how many rivers \\| \\*lakes\\* does country 0 have"
    assert f"\n| {asked} | 0.25 → 0.75 | nothing | ✓ A title: x |\n" in text
    assert text.count("## Queries on which") == 2  # none gained or lost from bm25 to same


def test_another_evaluation_into_the_same_folder_keeps_the_first(tmp_path):
    commands = ("evaluate a", "evaluate b", "evaluate a", "evaluate b")
    made = [write_report(tmp_path, [make_result("a", BASE)], command=c) for c in commands]
    assert [report.folder for report in made] == 2 * [tmp_path, tmp_path / "report-2"]


def test_a_report_is_a_table_in_pandas_in_the_terminal_and_in_a_notebook(tmp_path):
    report = write_report(tmp_path, [make_result("bm25", BASE), make_result("good", GOOD)])
    table = report.to_pandas()
    assert list(table) == ["mean", "low", "high", "difference", "p"]
    assert table.index[:2].tolist() == [("bm25", "MRR@10"), ("bm25", "R@20")]
    own = report.comparisons["good", "R@100"]
    assert table.loc["good", "R@100"]["difference"] == pytest.approx(own.difference)
    assert np.isnan(table.loc["bm25", "R@100"]["p"])
    page = report._repr_html_()
    assert page.count("<tr") == 7 and f"<td>{own.difference:+.4f} ▲</td>" in page
    assert "by Holm's correction over 3 comparisons.\n▲ and ▼ mark" in str(report)
    assert "give more queries" not in str(report)


@pytest.mark.parametrize("n", [6, 7])  # 3 tests: the least p is 3 / 32, or 3 / 64 = .047
def test_the_report_says_when_nothing_can_be_significant(tmp_path, n):
    values = [{q: value[q] for q in list(QUERIES)[:n]} for value in (BASE, GOOD)]
    shown = str(write_report(tmp_path, list(map(make_result, ("bm25", "good"), values))))
    note = "With 6 queries and 3 comparisons, no difference can be significant"
    assert (note in shown) == (n == 6)


def test_the_report_says_how_it_was_made(report):
    content, text, folder = report
    assert content["seed"] == 3 and {"python", "torch"} <= content["versions"].keys()
    lines = "".join(sorted(f"{q} 0 p 1\n" for q in QUERIES))
    run = (folder / "run-100.trec").read_bytes()
    of_run, of_qrels = (hashlib.sha256(data).hexdigest() for data in (run, lines.encode()))
    for line in (
        f"/run-100.trec | `{of_run}` |\n| judgements, as sorted TREC lines | `{of_qrels}` |",
        "| good | a machine, 1 thread | 1.0 M (float32) | 50.0 (40.0 to 60.0) | 160 | 100 MB |",
        "```\ncondenser evaluate my_collection --seed 3\n```",
        "good: pooling cls, query prompt query:, queries per second 812.5.",
    ):
        assert f"{line}\n" in text
    pictures = {"means.png", "answer_type.png", "query_length.png", "recall.png"}
    assert {*re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)} == pictures
    assert pictures <= {file.name for file in folder.iterdir()}
    table = pd.read_csv(folder / "per_query.tsv", sep="\t", index_col="query_id")
    assert list(table)[:3] == ["text", "bm25 MRR@10", "bm25 R@20"]
    assert list(table.index) == list(QUERIES)
    assert table["text"]["h03"] == "who painted <b>picture</b> 3"
    assert table.loc["n00"].tolist()[1:] == [0.25, 0.5, 0.5, 0.75, 0.5, 1.0, 0.25, 0.5, 0.5]


def test_one_system_and_one_query_are_reported_without_comparisons(tmp_path):
    report = write_report(tmp_path, [make_result("bm25", BASE)], collection=COLLECTION)
    text = report.file.read_text()
    assert text.count("There is only one system, so nothing is compared.") == 1
    assert "p = " not in text and "baseline" not in text
    short = [make_result(name, {"n00": value}) for name, value in (("bm25", 0.25), ("good", 0.75))]
    report = write_report(tmp_path, short, collection=COLLECTION)
    assert {c.p_adjusted for c in report.comparisons.values()} == {1.0}
    content = json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail)
    assert content["results"]["MRR@10"]["good"]["interval"] is None
    assert content["pairs"][0]["t_test"] is None


def test_the_page_is_one_file_with_tables_pictures_and_escaped_text(tmp_path):
    title, name = '<script>alert(1)</script> & "b"', "a <b> | *c* [d](https://e.org)"
    base = replace(make_result(name, BASE), collection=title)
    write_report(tmp_path, [base, make_result("good", GOOD)], collection=COLLECTION)
    page = (tmp_path / "report.html").read_text()
    pictures = re.findall(r'<img src="data:image/png;base64,iVBORw0KG[^"]+" alt="([^"]+)" />', page)
    assert len(pictures) == 4 and pictures[0] == "Means of each system in each measure"
    # Nothing is requested, and nothing of the content is markup.
    assert not re.findall(r"<script|<link|<a |@import|url\(", page)
    assert page.count("src=") == page.count("<img") == 4
    assert "<title>&lt;script&gt;alert(1)&lt;/script&gt; &amp; &#34;b&#34;, test: 2 systems" in page
    assert "<h1>&lt;script&gt;alert(1)&lt;/script&gt; &amp; &quot;b&quot;, test: 2 systems" in page
    assert "<td>a &lt;b&gt; | *c* [d](https://e.org)</td>" in page
    assert page.count("<table>") == (tmp_path / "report.md").read_text().count("\n| ---")


def test_correlations_are_compared_too(tmp_path):
    scores = np.arange(40.0)
    evaluations = [evaluate_graded_pairs(np.roll(scores, n), scores) for n in (15, 1)]
    facts = ("stsb", "graded pairs")
    pairs = zip(("base", "new"), evaluations, strict=True)
    report = write_report(tmp_path, [SystemResult(name, *facts, e) for name, e in pairs])
    text = report.file.read_text()
    assert text.startswith("# stsb, graded pairs: 2 systems on 40 items\n")
    base, new = (means["Spearman"] for means in report.means.values())
    difference = f"{new - base:+.4f}"
    assert f"\n| new | {new:.4f} ▲ ({difference}, p < 0.001) |\n" in text
    assert re.search(rf"\n\| new minus base \| \{difference} ▲ \| .* \| not tested \|\n", text)
    assert re.search(rf"new +Spearman +{new:.4f} +\{difference} ▲ +p < 0.001\n", str(report))
    assert {file.name for file in tmp_path.iterdir()} == {"report.json", "report.md", "report.html"}


def test_pictures_show_values_and_intervals_in_the_order_of_the_systems():
    bm25, ours = ({"mean": 0.2, "interval": [0.125, 0.3]}, {"mean": 0.5, "interval": [0.25, 0.75]})
    without = {"bm25": {"mean": 0.8, "interval": None}, "ours": {"mean": 0.9, "interval": None}}
    left, right = plot_bars({"MRR@10": {"bm25": bm25, "ours": ours}, "R@100": without}).axes
    (intervals,) = left.collections
    bounds = [line[:, 0].tolist() for line in intervals.get_segments()]
    assert bounds == [[0.125, 0.3], [0.25, 0.75]]
    assert [text.get_text() for text in right.texts] == ["0.800", "0.900"]
    by_depth = {"20": {"bm25": bm25, "ours": ours}, "100": without}
    [axes] = plot_curves({"R@k": by_depth}, x_label="k").axes
    lines = {lines.get_label(): list(lines[0].get_ydata()) for lines in axes.containers}
    assert lines == {"bm25": [0.2, 0.8], "ours": [0.5, 0.9]}
    assert [text.get_text() for text in axes.get_xticklabels()] == ["20", "100"]


def test_a_map_has_a_point_for_each_passage_even_if_all_vectors_are_equal():
    vectors = {"varied": np.eye(5), "equal": np.ones((5, 5))}
    for panel in plot_map(vectors, {"rivers": [0, 1, 2], "engines": [3, 4]}).axes:
        points = {line.get_label(): line.get_xydata() for line in panel.lines}
        assert {topic: len(own) for topic, own in points.items()} == {"rivers": 3, "engines": 2}
        assert all(np.isfinite(own).all() for own in points.values())


def test_recall_and_hits_by_depth_are_panels_of_one_picture(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(plots, "as_png", lambda figure: drawn.append(figure) or b"")
    values = {"bm25": {"mean": 0.5, "interval": [0.4, 0.6]}}
    names = ["R@5", "R@20", "Hit@5", "Hit@20", "MRR@10"]
    content = {"breakdowns": {}, "results": dict.fromkeys(names, values)}
    assert plots.draw_report(content, tmp_path) == {"recall": "recall.png"}
    assert [panel.get_title() for panel in drawn[0].axes] == ["R@k", "Hit@k"]
