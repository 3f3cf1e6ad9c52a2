"""Reports: the figures of the JSON, and tables, from hand-made results."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset

from modeling_condenser.collection.collection import Collection
from modeling_condenser.evaluation.measures import compare, holm, make_evaluation
from modeling_condenser.evaluation.report import Report, SystemResult, write_report
from modeling_condenser.evaluation.similarity import evaluate_graded_pairs

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
    return SystemResult(name, make_evaluation(per_query, unanswerable=["unjudged"]), **more)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A report of three systems, one with a cost."""
    more: dict[str, Any] = {
        "settings": {"pooling": "cls", "query_prompt": "query: "},
        "record": {"queries_per_second": 812.5, "identity": "abc"},
        "cost": COST,
    }
    systems = [make_result("bm25", BASE), make_result("good", GOOD, **more)]
    return write_report(
        tmp_path_factory.mktemp("report"),
        [*systems, make_result("same", BASE)],
        name="my_collection",
        split="test",
        collection=COLLECTION,
        command="condenser evaluate my_collection --seed 3",
        seed=3,
    )


def read(report: Report) -> tuple[dict[str, Any], str]:
    content = json.loads((report.folder / "results.json").read_text(), parse_constant=pytest.fail)
    return content, report.file.read_text()


def test_results_have_means_and_corrected_comparisons(report):
    content, text = read(report)
    good = content["results"]["MRR@10"]["good"]
    assert good["mean"] == pytest.approx((21 * 0.25 + 19 * 0.75 - 0.25) / 40)
    alone = make_evaluation({"MRR@10": GOOD})
    assert tuple(good["interval"]) == alone.interval("MRR@10", seed=3)
    main, alone = good["against_baseline"], compare(GOOD, BASE, seed=3)
    assert (main["p_value"], tuple(main["interval"])) == (alone.p_value, alone.interval)
    measures, names = ("MRR@10", "R@20", "R@100"), ("good", "same")
    actual = [content["results"][m][name]["against_baseline"] for m in measures for name in names]
    assert [c["p_adjusted"] for c in actual] == holm([c["p_value"] for c in actual])
    assert report.comparisons["good", "MRR@10"].p_adjusted == main["p_adjusted"]
    values = [report.per_query[name] for name in ("bm25", *names)]
    t_tests = [compare(v[m], values[0][m], seed=3).t_test for m in measures for v in values[1:]]
    assert [c["t_test"] for c in actual] == holm(t_tests) and max(t_tests) == 1.0
    low, high = alone.interval
    for line in (
        "# my_collection, test: 40 queries",
        "Queries without relevant passages or answers, left out: 1.",
        "| system | MRR@10 | R@20 | R@100 |",
        "| bm25 | 0.2500 | 0.5000 | 0.5000 |",
        f"| good | {good['mean']:.4f} ▲ (+0.2313, p < 0.001) | 0.5000 {EQUAL} | 0.7250 ▲ (+0.2250,",
        f"| good | +0.2313 ▲ | {low:+.4f} to {high:+.4f} | p < 0.001 | p < 0.001 | 19 / 20 / 1 |",
    ):
        assert f"\n{line}" in f"\n{text}"


def test_groups_are_by_answer_type_and_by_length(report):
    content, text = read(report)
    types = content["groups"]["answer type"]
    assert text.count("Groups of fewer than 20 queries are left out.") == len(content["groups"])
    sizes = {name: group["n_queries"] for name, group in types.items()}
    assert sizes == {"number": 20}  # the others have fewer than 20, whose mean is chance
    number = types["number"]["systems"]["good"]
    good, base = ({q: v[q] for q in v if q.startswith("n")} for v in (GOOD, BASE))
    assert number["mean"] == pytest.approx(19 * 0.75 / 20)
    p_value = compare(good, base, seed=3).p_value
    assert number["against_baseline"]["p_adjusted"] == pytest.approx(2 * p_value)
    assert [*content["groups"]["query length"]] == ["9-12 words"]
    assert re.search(r"\n\| number \| 20 \| 0\.2500 \| 0\.7125 ▲ ", text)


def test_questions_in_other_languages_have_no_answer_types(tmp_path):
    collection = Collection(
        passages=Dataset.from_dict({"_id": ["p"], "title": [""], "text": ["Text."]}),
        queries={f"q{i}": f"Wer war mit dem Kaiser {i} und wo ist das?" for i in range(25)},
        qrels={f"q{i}": {"p": 1} for i in range(25)},
    )
    evaluation = make_evaluation({"MRR@10": {f"q{i}": 0.5 for i in range(25)}})
    results = [SystemResult("bm25", evaluation)]
    made = write_report(tmp_path, results, name="c", split="test", collection=collection)
    assert [*made.content["groups"]] == ["query length"]


def test_the_report_says_how_it_was_made_and_has_the_values_of_queries(report):
    content, text = read(report)
    assert content["seed"] == 3 and {"python", "torch"} <= content["versions"].keys()
    for line in (
        "| good | a machine, threads: 1 | 1.0 M (float32) | 50.0 (40.0 to 60.0) | 160 | 100 MB |",
        "    condenser evaluate my_collection --seed 3",
        "good: pooling cls, query prompt query:, queries per second 812.5.",
    ):
        assert f"{line}\n" in text
    table = pd.read_csv(report.folder / "per_query.tsv", sep="\t", index_col="query_id")
    assert list(table)[:3] == ["text", "bm25 MRR@10", "bm25 R@20"]
    assert list(table.index) == list(QUERIES)
    assert table["text"]["h03"] == "who painted <b>picture</b> 3"
    assert table.loc["n00"].tolist()[1:] == [0.25, 0.5, 0.5, 0.75, 0.5, 1.0, 0.25, 0.5, 0.5]


def test_a_report_is_a_table_in_pandas_and_in_the_terminal(report):
    table = report.to_pandas()
    assert list(table) == ["mean", "low", "high", "difference", "p", "mark"]
    assert table.index[:2].tolist() == [("bm25", "MRR@10"), ("bm25", "R@20")]
    comparison = report.comparisons["good", "R@100"]
    assert table.loc["good", "R@100"]["difference"] == pytest.approx(comparison.difference)
    assert np.isnan(table.loc["bm25", "R@100"]["p"])
    row = r"\n +R@100 +0\.7250 +0\.\d+ +0\.\d+ +0\.2250 +0\.000\d +▲\n"
    assert re.search(row, str(report))


def test_one_system_and_one_query_are_reported_without_comparisons(tmp_path: Path):
    facts: dict[str, Any] = {"name": "small", "split": "test", "collection": COLLECTION}
    report = write_report(tmp_path, [make_result("bm25", BASE)], **facts)
    text = report.file.read_text()
    assert "There is only one system, so nothing is compared." in text
    assert "p = " not in text and "baseline" not in text
    short = [make_result(name, {"n00": value}) for name, value in (("bm25", 0.25), ("good", 0.75))]
    report = write_report(tmp_path, short, **facts)
    assert {c.p_adjusted for c in report.comparisons.values()} == {1.0}
    good = read(report)[0]["results"]["MRR@10"]["good"]
    assert good["interval"] is None and good["against_baseline"]["t_test"] is None


def test_correlations_are_compared_too(tmp_path):
    scores = np.arange(40.0)
    evaluations = [evaluate_graded_pairs(np.roll(scores, n), scores) for n in (15, 1)]
    pairs = zip(("base", "new"), evaluations, strict=True)
    results = [SystemResult(name, evaluation) for name, evaluation in pairs]
    report = write_report(tmp_path, results, name="stsb", split="graded pairs")
    text = report.file.read_text()
    assert text.startswith("# stsb, graded pairs: 40 items\n")
    base, new = (means["Spearman"] for means in report.means.values())
    assert f"\n| new | {new:.4f} ▲ ({new - base:+.4f}, p < 0.001) |\n" in text
    assert re.search(rf"\n\| new \| \{new - base:+.4f} ▲ \| .* \| not tested \|  \|\n", text)
    assert {file.name for file in tmp_path.iterdir()} == {"results.json", "report.md"}
