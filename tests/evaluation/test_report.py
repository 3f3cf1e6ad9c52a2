"""Reports: the figures of the JSON, the sentences and tables, from hand-made results."""

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from modeling_condenser.collection.collection import Collection
from modeling_condenser.evaluation.cost import EncodingCost
from modeling_condenser.evaluation.report import write_report
from modeling_condenser.evaluation.report_text import summarise
from modeling_condenser.evaluation.system_results import SystemResult
from modeling_condenser.measures.measures import Evaluation, make_evaluation
from modeling_condenser.measures.significance import compare, compare_in_groups, holm

N = 40
QUERIES = {
    **{f"n{i:02d}": f"how many rivers | *lakes* does country {i} have" for i in range(20)},
    **{f"h{i:02d}": f"who painted <b>picture</b>\t{i}" for i in range(18)},
    "y0": "is water wet",
    "a0": "what does nasa stand for",
}
COLLECTION = Collection(
    passages=Dataset.from_dict({"_id": ["p"], "title": [""], "text": ["x"]}),
    queries=QUERIES,
    qrels={q: {"p": 1} for q in QUERIES},
    name="my_collection",
)
COST = EncodingCost("cpu", "a machine", 0.05, (0.04, 0.06), 10**8, 10**6, "float32", 8, 64, 30, 1)


def make_values(gain: float, losses: int) -> dict[str, float]:
    """0.25 for every query, more for those about numbers, and 0 for the last of them."""
    values = {q: 0.25 + (gain if q.startswith("n") else 0.0) for q in QUERIES}
    return values | {f"n{19 - i:02d}": 0.0 for i in range(losses)}


def make_result(name: str, gain: float = 0.0, losses: int = 0, **more: Any) -> SystemResult:
    first = make_values(gain, losses)
    per_query = {
        "MRR@10": first,
        "R@20": dict.fromkeys(QUERIES, 0.5),
        "R@100": {q: min(1.0, value * 2) for q, value in first.items()},
    }
    evaluation = make_evaluation(per_query, unanswerable=["unjudged"])
    return SystemResult(name, "my_collection", "test", evaluation, **more)


THREE = [make_result("bm25"), make_result("good", 0.5, 2), make_result("same")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of three systems, with a run file and a cost."""
    folder = tmp_path_factory.mktemp("report")
    run_file = folder / "good.trec"
    run_file.write_text("n00 Q0 p 1 0.5 good\n")
    good = replace(
        THREE[1],
        run_file=run_file,
        settings={"model": Path("models/good"), "query_prompt": ""},
        record={"queries_per_second": 812.5, "identity": {"system": "abc"}},
    )
    write_report(
        folder,
        [THREE[0], good, THREE[2]],
        collection=COLLECTION,
        costs={"good": COST},
        command="condenser evaluate my_collection\n  --seed 3",
        seed=3,
    )
    return folder


@pytest.fixture(scope="module")
def content(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report.json").read_text())


@pytest.fixture(scope="module")
def text(folder: Path) -> str:
    return (folder / "report.md").read_text(encoding="utf-8")


def table_after(text: str, heading: str) -> list[list[str]]:
    """The rows of the first table after a heading, without the rule; escaped bars stay."""
    block = re.search(r"(?:^\|.*\|$\n?)+", text.partition(heading)[2], flags=re.MULTILINE)
    assert block is not None
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in block[0].strip().splitlines()]
    assert len({len(row) for row in rows}) == 1
    return [[cell.strip() for cell in row] for row in [rows[0], *rows[2:]]]


def test_json_has_means_comparisons_and_counts(content: dict[str, Any]) -> None:
    assert (content["collection"], content["split"], content["n_items"]) == (
        "my_collection",
        "test",
        N,
    )
    assert (content["baseline"], content["measures"]) == ("bm25", ["MRR@10", "R@20", "R@100"])
    assert content["unanswerable"] == ["unjudged"]
    good = content["systems"][1]
    assert good["means"]["MRR@10"] == pytest.approx((22 * 0.25 + 18 * 0.75 - 2 * 0.25) / N)
    low, high = good["intervals"]["MRR@10"]
    assert low < good["means"]["MRR@10"] < high
    against = {(c["system"], c["measure"]): c for c in content["against_baseline"]}
    assert len(against) == 6
    main = against["good", "MRR@10"]
    assert (main["better"], main["equal"], main["worse"]) == (18, 20, 2)
    assert main["difference"] == pytest.approx((18 * 0.5 - 2 * 0.25) / N)
    alone = compare(make_values(0.5, 2), make_values(0, 0), seed=3)
    assert (main["p_value"], tuple(main["interval"])) == (alone.p_value, alone.interval)
    adjusted = holm([c["p_value"] for c in content["against_baseline"]])
    assert [c["p_adjusted"] for c in content["against_baseline"]] == adjusted


def test_all_pairs_are_compared_by_both_tests(content: dict[str, Any], text: str) -> None:
    pairs = [("good", "bm25"), ("same", "bm25"), ("same", "good")]
    names = [(p["system"], p["baseline"], p["measure"]) for p in content["pairs"]]
    assert names == [(*pair, m) for pair in pairs for m in ("MRR@10", "R@20", "R@100")]
    assert [p["p_adjusted"] for p in content["pairs"]] == holm(
        [p["p_value"] for p in content["pairs"]]
    )
    p = compare_in_groups(make_values(0.5, 2), make_values(0, 0), seed=3)
    assert [test["p_adjusted"] for test in content["group_tests"]] == holm([p, 1.0, p])
    rows = table_after(text, "## Pairs of systems")
    assert [row[0] for row in rows[1:]] == ["good minus bm25", "same minus bm25", "same minus good"]
    assert re.fullmatch(r"-0\.2125 ▼ \(p [<=] 0\.00\d\)", rows[3][1])
    assert rows[2][1:] == ["+0.0000 ○ (p = 1.000)"] * 3 + ["p = 1.000"]


def test_wins_and_losses_are_the_ten_greatest_ties_by_id(
    content: dict[str, Any], text: str
) -> None:
    assert content["wins"]["good"] == [[f"n{i:02d}", 0.5] for i in range(10)]
    assert [query_id for query_id, _ in content["losses"]["good"]] == ["n18", "n19"]
    assert content["wins"]["same"] == []
    first = table_after(text, "### Where good gains most")[1]
    query = r"how many rivers \| \*lakes\* does country 0 have"
    assert first == ["n00", query, "0.7500", "+0.5000"]
    assert "same gains on no query in MRR@10." in text
    counts = table_after(text, "## Wins and losses against bm25")
    assert counts[1] == ["good", "18 / 20 / 2", "0 / 40 / 0", "18 / 20 / 2"]


def test_breakdowns_are_by_answer_type_and_by_length(content: dict[str, Any], text: str) -> None:
    by_type, by_length = content["breakdowns"]
    assert by_type["n_queries"] == {"number": 20, "human": 18, "abbreviation": 1}
    assert by_type["n_left_out"] == 1  # "is water wet"
    means = {(m["group"], m["system"]): m["mean"] for m in by_type["means"]}
    assert means["number", "good"] == pytest.approx(18 * 0.75 / 20)
    against = by_type["against_baseline"]
    assert [c["p_adjusted"] for c in against] == holm([c["p_value"] for c in against])
    number = compare(
        {q: v for q, v in make_values(0.5, 2).items() if q.startswith("n")},
        {q: v for q, v in make_values(0, 0).items() if q.startswith("n")},
        seed=3,
    )
    assert against[0]["p_value"] == number.p_value
    assert by_length["n_queries"] == {"1-4 words": 19, "5-8 words": 1, "9-12 words": 20}
    rows = table_after(text, "## MRR@10 by answer type")
    assert [row[:3] for row in rows[1:]] == [
        ["number", "20", "0.2500"],
        ["human", "18", "0.2500"],
        ["abbreviation", "1", "0.2500"],
    ]
    assert "1 query without a type" in text


def test_the_report_says_how_it_was_made(content: dict[str, Any], text: str, folder: Path) -> None:
    assert content["seed"] == 3 and {"python", "torch"} <= content["versions"].keys()
    lines = "".join(sorted(f"{q} 0 p 1\n" for q in QUERIES))
    checksum = hashlib.sha256(lines.encode()).hexdigest()
    assert content["judgements_sha256"]["judgements, as sorted TREC lines"] == checksum
    good = content["systems"][1]
    assert good["run_file"] == "good.trec"
    assert good["run_sha256"] == hashlib.sha256((folder / "good.trec").read_bytes()).hexdigest()
    assert good["settings"]["model"] == "models/good"
    assert good["record"]["identity"] == {"system": "abc"}
    assert content["costs"]["good"]["seconds_per_step"] == 0.05
    [row] = table_after(text, "## Time and memory of encoding")[1:]
    assert row[3:] == ["50.0", "40.0 to 60.0", "160", "100 MB"]
    assert "```\ncondenser evaluate my_collection\n  --seed 3\n```" in text
    assert "- good: model models/good, query prompt '', queries per second 812.5." in text


def test_the_files_are_those_that_the_report_shows(text: str, folder: Path) -> None:
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    names = {"means.png", "answer_types.png", "query_lengths.png", "recall.png", "costs.png"}
    assert {*pictures} == names
    others = {"report.json", "report.md", "per_query.tsv", "good.trec"}
    assert {file.name for file in folder.iterdir()} == names | others


def test_each_result_says_whether_it_differs(text: str) -> None:
    header, bm25, good, same = table_after(text, "## Results")
    assert header == ["system", "MRR@10", "R@20", "R@100"]
    assert bm25 == ["bm25", "0.2500", "0.5000", "0.5000"]
    assert re.fullmatch(r"0\.4625 ▲ \(\+0\.2125, p [<=] 0\.00\d\)", good[1])
    assert same[1:] == [f"{v} ○ (+0.0000, p = 1.000)" for v in ("0.2500", "0.5000", "0.5000")]
    assert "Holm's correction over the 6 comparisons of this table." in text
    assert text.startswith("# my\\_collection, test: 3 systems on 40 queries\n")
    assert "1 query without relevant passages or answers were left out" in text
    assert re.search(
        r"^good scores 0\.4625 in MRR@10, \+0\.2125 from bm25\. The difference is significant"
        r" \(95 % interval \+0\.\d{4} to \+0\.\d{4}, p [<=] 0\.00\d\)\. It is better on 18 queries,"
        r" equal on 20 and worse on 2\.$",
        text,
        flags=re.MULTILINE,
    )


def test_per_query_values_can_be_read_back(folder: Path) -> None:
    lines = (folder / "per_query.tsv").read_text(encoding="utf-8").splitlines()
    assert lines[0].split("\t")[:4] == ["query_id", "text", "bm25 MRR@10", "bm25 R@20"]
    rows = {line.split("\t")[0]: line.split("\t")[1:] for line in lines[1:]}
    assert list(rows) == list(QUERIES)
    assert rows["h03"][0] == "who painted <b>picture</b> 3"  # its tab would be a column
    values = [float(value) for value in rows["n00"][1:]]
    assert values == [0.25, 0.5, 0.5, 0.75, 0.5, 1.0, 0.25, 0.5, 0.5]


def test_one_system_is_reported_without_comparisons(tmp_path: Path) -> None:
    report = write_report(tmp_path, THREE[:1], collection=COLLECTION)
    text = (tmp_path / "report.md").read_text()
    assert "It is the only system, so nothing is compared." in text
    assert "## Pairs" not in text and "## Wins and losses" not in text and "p = " not in text
    assert report.baseline is None and not report.comparisons and not report.pairs
    assert "MRR@10  0.2500" in summarise(report)


def test_one_query_is_reported_without_a_difference(tmp_path: Path) -> None:
    results = [
        replace(
            r,
            evaluation=make_evaluation(
                {m: {"n00": by["n00"]} for m, by in r.evaluation.per_query.items()}
            ),
        )
        for r in THREE
    ]
    report = write_report(tmp_path, results, collection=COLLECTION)
    assert {c.p_adjusted for c in report.comparisons.values()} == {1.0}
    assert report.group_p_values == {}
    content = json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail)
    assert content["against_baseline"][0]["interval"] is None


def test_a_new_report_replaces_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    write_report(tmp_path, THREE, collection=COLLECTION, costs={"good": COST})
    assert (tmp_path / "costs.png").is_file()
    write_report(tmp_path, THREE[:1], collection=COLLECTION)
    assert not (tmp_path / "costs.png").exists()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_correlation_has_its_own_comparison_or_is_called_untested(tmp_path: Path) -> None:
    comparison = compare({"a": 1.0, "b": 0.5, "c": 1.0}, {"a": 0.0, "b": 0.0, "c": 0.0})
    results = [
        SystemResult(name, "stsb", "graded pairs", Evaluation({"Spearman": s, "Pearson": p}, {}))
        for name, s, p in (("base", 0.5, 0.4), ("new", 0.75, 0.3))
    ]
    report = write_report(
        tmp_path, results, n_items=1379, comparisons={("new", "Spearman"): comparison}
    )
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("# stsb, graded pairs: 2 systems on 1,379 items\n")
    new = table_after(text, "## Results")[2]
    assert new == ["new", f"0.7500 ○ ({comparison.difference:+.4f}, p = 0.250)", "0.3000"]
    assert "Pearson was not tested, and may differ by chance." in text
    assert "Spearman  0.7500" in summarise(report) and "from base, p = 0.250" in summarise(report)
    assert {file.name for file in tmp_path.iterdir()} == {"report.json", "report.md"}


@pytest.mark.parametrize(
    ("results", "baseline", "message"),
    [
        ([], None, "expected one of []"),
        (THREE, "bm52", "the baseline is 'bm52', expected one of ['bm25', 'good', 'same']"),
        ([THREE[0], replace(THREE[1], evaluation=Evaluation({"R@20": 0.0}, {}))], None, "MRR@10"),
        (
            [THREE[0], make_result("less")],
            None,
            "different queries",
        ),
    ],
)
def test_results_that_do_not_fit_are_refused_before_anything_is_written(
    results: list[SystemResult], baseline: str | None, message: str, tmp_path: Path
) -> None:
    if message == "different queries":
        results[1].evaluation.per_query["MRR@10"].pop("n07")
    with pytest.raises(ValueError, match=re.escape(message)):
        write_report(tmp_path / "report", results, baseline=baseline, collection=COLLECTION)
    assert not (tmp_path / "report").exists()
