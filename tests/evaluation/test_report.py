"""Reports: every figure of the JSON, the sentences and tables of the text, by hand-made results."""

import hashlib
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from modeling_condenser.collection.collection import Collection
from modeling_condenser.evaluation.report import (
    ReportedSimilarity,
    ReportedSystem,
    RetrievalResults,
    SimilarityResults,
    write_report,
)
from modeling_condenser.measures.contrasts import adjust
from modeling_condenser.measures.measures import Evaluation
from modeling_condenser.measures.significance import compare, compare_in_groups
from tests.evaluation.making import make_cost

N = 40
QUERIES = {
    **{f"n{i:02d}": f"how many rivers | *lakes* does country {i} have" for i in range(20)},
    **{f"h{i:02d}": f"who painted <b>picture</b>\t{i}" for i in range(18)},
    "y0": "is water wet",
    "a0": "what does nasa stand for",
}


def make_values(gain: float, losses: int) -> dict[str, float]:
    """0.25 for every query, more for those about numbers, and 0 for the last of them."""
    values = {q: 0.25 + (gain if q.startswith("n") else 0.0) for q in QUERIES}
    return values | {f"n{19 - i:02d}": 0.0 for i in range(losses)}


def make_system(name: str, gain: float = 0.0, losses: int = 0, **more: Any) -> ReportedSystem:
    first = make_values(gain, losses)
    per_query = {
        "MRR@10": first,
        "R@20": dict.fromkeys(QUERIES, 0.5),
        "R@100": {q: min(1.0, value * 2) for q, value in first.items()},
    }
    means = {measure: math.fsum(by.values()) / N for measure, by in per_query.items()}
    return ReportedSystem(name, Evaluation(means, per_query, ("unjudged",)), **more)


COLLECTION = Collection(
    passages=Dataset.from_dict({"_id": ["p"], "title": [""], "text": ["x"]}),
    queries=QUERIES,
    qrels={q: {"p": 1} for q in QUERIES},
    name="my_collection",
)
THREE = RetrievalResults(
    COLLECTION, "test", [make_system("bm25"), make_system("good", 0.5, 2), make_system("same")]
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of three systems, with a run file, a cost and a similarity task."""
    folder = tmp_path_factory.mktemp("report")
    run_file = folder / "good.trec"
    run_file.write_text("n00 Q0 p 1 0.5 good\n")
    good = replace(
        THREE.systems[1],
        run_file=run_file,
        settings={"model": Path("models/good"), "pooling": "mean", "query_prompt": ""},
        record={"queries_per_second": 812.5, "identity": {"system": "abc"}},
    )
    pairs = ("a", "b", "c", "d", "e", "f")
    write_report(
        folder,
        replace(THREE, systems=[THREE.systems[0], good, THREE.systems[2]]),
        similarity=[
            SimilarityResults(
                "sections",
                "dev",
                6,
                [
                    ReportedSimilarity(
                        "bm25", {"accuracy": 0.0}, {"accuracy": dict.fromkeys(pairs, 0.0)}
                    ),
                    ReportedSimilarity(
                        "good", {"accuracy": 1.0}, {"accuracy": dict.fromkeys(pairs, 1.0)}
                    ),
                ],
            )
        ],
        costs={"good": [make_cost("cpu", 50, 100)]},
        command="condenser evaluate my_collection\n  --seed 3",
        seed=3,
    )
    return folder


@pytest.fixture(scope="module")
def content(folder: Path) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads((folder / "report.json").read_text(), parse_constant=refuse)


@pytest.fixture(scope="module")
def text(folder: Path) -> str:
    return (folder / "report.md").read_text(encoding="utf-8")


def tables(text: str) -> list[list[list[str]]]:
    """All tables of a Markdown text: rows of cells, without the rule; escaped bars stay."""
    found = []
    for block in re.findall(r"(?:^\|.*\|$\n?)+", text, flags=re.MULTILINE):
        rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in block.strip().splitlines()]
        assert re.fullmatch(r"( -{3}:? )+", "".join(rows[1])), block
        assert len({len(row) for row in rows}) == 1, block
        found.append([[cell.strip() for cell in row] for row in [rows[0], *rows[2:]]])
    return found


def table_after(text: str, heading: str) -> list[list[str]]:
    return tables(text.partition(heading)[2])[0]


def test_json_holds_means_comparisons_and_counts(content: dict[str, Any]) -> None:
    found = content["retrieval"]
    assert (found["collection"], found["split"], found["n_queries"]) == ("my_collection", "test", N)
    assert (found["baseline"], found["main_measure"]) == ("bm25", "MRR@10")
    assert found["measures"] == ["MRR@10", "R@20", "R@100"]
    assert found["unanswerable"] == ["unjudged"]
    assert [system["name"] for system in found["systems"]] == ["bm25", "good", "same"]
    good = found["systems"][1]
    assert good["means"]["MRR@10"] == pytest.approx((22 * 0.25 + 18 * 0.75 - 2 * 0.25) / N)
    low, high = good["intervals"]["MRR@10"]
    assert low < good["means"]["MRR@10"] < high
    against = {(c["system"], c["measure"]): c for c in found["against_baseline"]}
    assert len(against) == 6
    main = against["good", "MRR@10"]
    assert (main["better"], main["equal"], main["worse"]) == (18, 20, 2)
    assert main["difference"] == pytest.approx((18 * 0.5 - 2 * 0.25) / N)
    alone = compare(make_values(0.5, 2), make_values(0, 0), seed=3)
    assert (main["p_value"], tuple(main["interval"])) == (alone.p_value, alone.interval)
    p_values = [c["p_value"] for c in found["against_baseline"]]
    assert [c["p_adjusted"] for c in found["against_baseline"]] == pytest.approx(adjust(p_values))
    assert against["same", "MRR@10"]["p_adjusted"] == 1.0
    assert [against[s, "R@20"]["equal"] for s in ("good", "same")] == [N, N]


def test_json_holds_all_pairs_by_both_tests(content: dict[str, Any]) -> None:
    pairs = content["retrieval"]["pairs"]
    assert [(p["system"], p["baseline"]) for p in pairs] == [
        ("good", "bm25"),
        ("same", "bm25"),
        ("same", "good"),
    ]
    groups = compare_in_groups(make_values(0.5, 2), make_values(0, 0), seed=3)
    assert pairs[0]["groups_p_value"] == groups
    assert pairs[1]["groups_p_value"] == 1.0
    adjusted = adjust([p["groups_p_value"] for p in pairs])
    assert [p["groups_p_adjusted"] for p in pairs] == adjusted
    others = content["retrieval"]["other_pairs"]
    assert [(p["system"], p["baseline"], p["measure"]) for p in others] == [
        ("same", "good", "R@20"),
        ("same", "good", "R@100"),
    ]


def test_wins_and_losses_are_the_ten_greatest_ties_by_id(content: dict[str, Any]) -> None:
    wins = content["retrieval"]["wins"]["good"]
    assert [win["query_id"] for win in wins] == [f"n{i:02d}" for i in range(10)]
    assert wins[0] == {"query_id": "n00", "system": 0.75, "baseline": 0.25, "difference": 0.5}
    losses = content["retrieval"]["losses"]["good"]
    assert [loss["query_id"] for loss in losses] == ["n18", "n19"]
    assert content["retrieval"]["wins"]["same"] == []


def test_breakdowns_are_by_answer_type_and_by_length(content: dict[str, Any]) -> None:
    by_type, by_length = content["retrieval"]["breakdowns"]
    sizes = {group["name"]: group["n_queries"] for group in by_type["groups"]}
    assert sizes == {"number": 20, "human": 18, "abbreviation": 1}
    assert by_type["n_left_out"] == 1  # "is water wet"
    number, human, abbreviation = by_type["groups"]
    assert number["means"]["good"] == pytest.approx(18 * 0.75 / 20)
    assert human["against_baseline"][0]["equal"] == 18
    assert [c["p_adjusted"] for c in abbreviation["against_baseline"]] == [None, None]
    lengths = {group["name"]: group["n_queries"] for group in by_length["groups"]}
    assert lengths == {"1-4 words": 19, "5-8 words": 1, "9-12 words": 20}


def test_json_says_how_it_was_made(content: dict[str, Any], folder: Path) -> None:
    assert content["command"] == "condenser evaluate my_collection\n  --seed 3"
    assert content["seed"] == 3
    assert {"python", "torch"} <= content["versions"].keys()
    assert content["hardware"]["cores"] >= 1
    lines = "".join(sorted(f"{q} 0 p 1\n" for q in QUERIES))
    checksum = hashlib.sha256(lines.encode()).hexdigest()
    assert content["judgements_sha256"]["judgements, as sorted TREC lines"] == checksum
    good = content["retrieval"]["systems"][1]
    assert good["run_file"] == "good.trec"
    assert good["run_sha256"] == hashlib.sha256((folder / "good.trec").read_bytes()).hexdigest()
    assert good["settings"]["model"] == "models/good"
    assert good["record"]["identity"] == {"system": "abc"}
    assert content["costs"]["good"][0]["seconds_per_step"] == 0.05


def test_similarity_is_tested_from_its_items(content: dict[str, Any], text: str) -> None:
    [task] = content["similarity"]
    [against] = task["against_baseline"]
    assert (against["difference"], against["p_value"]) == (1.0, 2 / 64)
    [_, good] = table_after(text, "## sections, dev: 6 items")[1:]
    assert good == ["good", "1.0000 (+1.0000, p = 0.031, significant)"]


def test_every_table_is_well_formed_and_every_picture_is_there(text: str, folder: Path) -> None:
    assert len(tables(text)) >= 9
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert len(pictures) == 6 and all((folder / picture).is_file() for picture in pictures)
    assert {file.name for file in folder.iterdir()} == {
        *pictures,
        "report.json",
        "report.md",
        "per_query.tsv",
        "good.trec",
    }


def test_the_results_say_beside_each_figure_whether_it_differs(text: str) -> None:
    header, bm25, good, same = table_after(text, "## Results")
    assert header == ["system", "MRR@10", "R@20", "R@100"]
    assert bm25 == ["bm25", "0.2500", "0.5000", "0.5000"]
    assert re.fullmatch(r"0\.4625 ▲ \(\+0\.2125, p [<=] 0\.00\d\)", good[1])
    assert good[2] == "0.5000 ○ (+0.0000, p = 1.000)"
    assert same[1:] == [f"{v} ○ (+0.0000, p = 1.000)" for v in ("0.2500", "0.5000", "0.5000")]
    assert "Holm's correction over the 6 comparisons of this table." in text
    assert "a two-sided paired randomisation test over queries (10,000 resamples)" in text


def test_the_opening_says_what_was_found(text: str) -> None:
    assert text.startswith("# my\\_collection, test: 3 systems on 40 queries\n")
    assert "1 judged query without any relevant passage was left out" in text
    assert re.search(
        r"^good scores 0\.4625 in MRR@10, 0\.2125 above bm25: the difference is significant"
        r" \(95 % interval \+0\.\d{4} to \+0\.\d{4} of the difference, p [<=] 0\.00\d\)\. It is"
        r" better on 18 queries, equal on 20 and worse on 2\.$",
        text,
        flags=re.MULTILINE,
    )
    assert "same scores 0.2500 in MRR@10, as much as bm25: no difference was shown" in text


def test_the_matrix_names_winners_above_by_one_test_and_below_by_the_other(text: str) -> None:
    matrix = table_after(text, "## Pairs of systems in MRR@10")
    assert matrix == [
        ["", "bm25", "good", "same"],
        ["bm25", "–", "good", "N"],
        ["good", "good", "–", "good"],
        ["same", "N", "good", "–"],
    ]


def test_wins_name_their_queries_whatever_characters_they_hold(text: str) -> None:
    header, first, *others = table_after(text, "### Where good gains most")
    assert header == ["id", "query", "good", "bm25", "difference in MRR@10"]
    query = r"how many rivers \| \*lakes\* does country 0 have"
    assert first == ["n00", query, "0.7500", "0.2500", "+0.5000"]
    assert len(others) == 9
    assert "same gains on no query in MRR@10." in text
    counts = table_after(text, "## Wins and losses against bm25")
    assert counts[1] == ["good", "18 / 20 / 2", "0 / 40 / 0", "18 / 20 / 2"]


def test_a_breakdown_says_what_was_left_out_and_not_tested(text: str) -> None:
    rows = table_after(text, "## MRR@10 by answer type")
    assert [row[:3] for row in rows[1:]] == [
        ["number", "20", "0.2500"],
        ["human", "18", "0.2500"],
        ["abbreviation", "1", "0.2500"],
    ]
    assert rows[3][3] == "0.2500 (+0.0000, not tested)"
    assert "A group of a single query is not tested." in text
    assert "1 query, such as yes/no questions and bare phrases, could not be told" in text


def test_costs_and_provenance_are_stated(text: str) -> None:
    [row] = table_after(text, "## Time and memory of encoding")[1:]
    assert row[0] == "good" and row[3] == "50.0" and row[5:] == ["160", "100 MB", "–"]
    assert "```\ncondenser evaluate my_collection\n  --seed 3\n```" in text
    assert "All tests and intervals use the seed 3." in text
    assert "- good: model models/good, pooling mean, query prompt '', queries per second" in text


def test_per_query_values_can_be_read_back(folder: Path) -> None:
    lines = (folder / "per_query.tsv").read_text(encoding="utf-8").splitlines()
    assert lines[0].split("\t") == [
        "query_id",
        "text",
        *(f"{s} {m}" for s in ("bm25", "good", "same") for m in ("MRR@10", "R@20", "R@100")),
    ]
    rows = {line.split("\t")[0]: line.split("\t")[1:] for line in lines[1:]}
    assert list(rows) == list(QUERIES)
    assert rows["h03"][0] == "who painted <b>picture</b> 3"  # its tab would be a column
    values = [float(value) for value in rows["n00"][1:]]
    assert values == [0.25, 0.5, 0.5, 0.75, 0.5, 1.0, 0.25, 0.5, 0.5]


def test_two_systems_have_one_test_more_and_no_matrix(tmp_path: Path) -> None:
    write_report(tmp_path, replace(THREE, systems=THREE.systems[:2], baseline="good"))
    text = (tmp_path / "report.md").read_text()
    assert "the two systems differ in MRR@10 (p " in text
    assert "## Pairs of systems" not in text
    assert "bm25 scores 0.2500 in MRR@10, 0.2125 below good: the difference is significant" in text


def test_one_system_is_reported_without_comparisons(tmp_path: Path) -> None:
    write_report(tmp_path, replace(THREE, systems=THREE.systems[:1], main_measure="R@100"))
    text = (tmp_path / "report.md").read_text()
    content = json.loads((tmp_path / "report.json").read_text())["retrieval"]
    assert "bm25 scores 0.5000 (95 % interval" in text
    assert "It is the only system, so nothing is compared." in text
    assert content["against_baseline"] == content["pairs"] == []
    assert content["baseline"] is None
    assert "## Wins and losses" not in text and "p = " not in text
    assert len(tables(text)) == 4


def test_one_query_is_reported_without_tests(tmp_path: Path) -> None:
    def cut(system: ReportedSystem) -> ReportedSystem:
        per_query = {m: {"n00": by["n00"]} for m, by in system.evaluation.per_query.items()}
        means = {m: by["n00"] for m, by in per_query.items()}
        return replace(system, evaluation=Evaluation(means, per_query))

    write_report(tmp_path, replace(THREE, systems=[cut(s) for s in THREE.systems]))
    text = (tmp_path / "report.md").read_text()
    assert "with a single query, nothing can be tested" in text
    assert "p = " not in text and "p < 0.001" not in text
    assert table_after(text, "## Pairs")[1] == ["bm25", "–", "not tested", "not tested"]


def test_a_new_report_replaces_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    write_report(tmp_path, THREE, costs={"good": [make_cost("cpu", 50, 100)]})
    assert (tmp_path / "costs.png").is_file()
    write_report(tmp_path, THREE)
    assert not (tmp_path / "costs.png").exists()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_run_files_are_named_as_seen_from_the_report(tmp_path: Path) -> None:
    places = [tmp_path / "report" / "a" / "run.trec", tmp_path / "b" / "run.trec"]
    for place in places:
        place.parent.mkdir(parents=True)
        place.write_text("")
    systems = [replace(s, run_file=p) for s, p in zip(THREE.systems, places, strict=False)]
    report = write_report(tmp_path / "report", replace(THREE, systems=systems))
    empty = hashlib.sha256(b"").hexdigest()
    assert report.run_files == {"bm25": ("a/run.trec", empty), "good": ("../b/run.trec", empty)}


def test_a_report_is_the_same_each_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_report(tmp_path / name, THREE, seed=1)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes(), file.name


def test_a_correlation_is_shown_with_its_own_comparison_or_as_not_tested(tmp_path: Path) -> None:
    comparison = compare({"a": 1.0, "b": 0.5, "c": 1.0}, {"a": 0.0, "b": 0.0, "c": 0.0})
    systems = [
        ReportedSimilarity("base", {"Spearman": 0.5, "Pearson": 0.4}),
        ReportedSimilarity(
            "new", {"Spearman": 0.75, "Pearson": math.nan}, comparisons={"Spearman": comparison}
        ),
        ReportedSimilarity("other", {"Spearman": 0.25, "Pearson": 0.4}),
    ]
    write_report(
        tmp_path,
        similarity=[SimilarityResults("stsb", "test", 1379, systems)],
        costs={"new": [make_cost("cpu", 50, 100)]},
    )
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("# stsb\n")
    rows = table_after(text, "## stsb, test: 1,379 items")
    assert rows[1:] == [
        ["base", "0.5000", "0.4000"],
        ["new", "0.7500 (+0.2500, p = 0.250, not significant)", "undefined"],
        ["other", "0.2500 (-0.2500, not tested)", "0.4000 (+0.0000, not tested)"],
    ]
    assert "Where a cell says so, no test was made" in text
    content = json.loads((tmp_path / "report.json").read_text())
    assert content["retrieval"] is None
    assert content["similarity"][0]["systems"][1]["values"] == {"Spearman": 0.75, "Pearson": None}
    assert not (tmp_path / "per_query.tsv").exists()


def without(system: ReportedSystem, measure: str) -> ReportedSystem:
    evaluation = system.evaluation
    means = {m: v for m, v in evaluation.means.items() if m != measure}
    per_query = {m: v for m, v in evaluation.per_query.items() if m != measure}
    return replace(system, evaluation=Evaluation(means, per_query))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"systems": []}, "a report of no systems"),
        ({"systems": [THREE.systems[0]] * 2}, "two systems are called 'bm25': rename one"),
        ({"baseline": "bm52"}, "the baseline 'bm52' is not among the systems"),
        ({"main_measure": "MAP"}, "the main measure 'MAP' was not measured"),
        (
            {"systems": [THREE.systems[0], without(THREE.systems[1], "R@20")]},
            "good was measured by MRR@10, R@100, and bm25 by MRR@10, R@20, R@100",
        ),
        (
            {"collection": replace(COLLECTION, queries={"n00": "x"})},
            "39 measured queries have no text in my_collection, such as 'a0'",
        ),
        (
            {"systems": [replace(THREE.systems[0], run_file=Path("/nowhere/run.trec"))]},
            "/nowhere/run.trec",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=re.escape(message)):
        write_report(tmp_path / "report", replace(THREE, **changes))
    assert not (tmp_path / "report").exists()


def test_systems_on_other_queries_are_refused(tmp_path: Path) -> None:
    evaluation = THREE.systems[1].evaluation
    fewer = {
        m: {q: v for q, v in by.items() if q != "n07"} for m, by in evaluation.per_query.items()
    }
    other = replace(THREE.systems[1], evaluation=Evaluation(evaluation.means, fewer))
    with pytest.raises(ValueError, match="measured on different queries.*such as 'n07'"):
        write_report(tmp_path, replace(THREE, systems=[THREE.systems[0], other]))


def test_a_report_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a report of no results"):
        write_report(tmp_path)
