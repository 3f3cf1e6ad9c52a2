"""The module for `evaluate`: loaded in a new process without this project, it gives our figures."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modeling_condenser import hub
from modeling_condenser.evaluation.measures import evaluate_run
from modeling_condenser.evaluation.similarity import evaluate_graded_pairs
from tests.hub.making import run_isolated

pytestmark = pytest.mark.slow  # a process of its own, with `evaluate`

FOLDER = Path(hub.__file__).parent / "retrieval_measures"
MEASURES = [
    *("MRR", "MRR@10", "nDCG", "nDCG@10", "R@20", "MAP", "MAP@10", "R-Prec", "P@5", "Success@5"),
    *("MRR(rel=2)@10", "MAP(rel=2)", "R(rel=2)@1000", "R-Prec(rel=1)"),
]
# In one process, as importing `evaluate` takes seconds: named calls in (configuration, inputs), and
# the README's code.
SCRIPT = """
import contextlib, io, json
import evaluate

folder, task = sys.argv[1], json.load(open(sys.argv[2]))
found = {}
for name, (configuration, inputs) in task["calls"].items():
    try:
        found[name] = evaluate.load(folder, configuration).compute(**inputs)
    except ValueError as error:
        found[name] = {"error": str(error)}

with contextlib.redirect_stdout(io.StringIO()) as printed:
    exec(task["readme"], {})
found["readme"] = printed.getvalue().strip()
json.dump(found, open(sys.argv[3], "w"))
"""
TEXTS = {"p0": "In Zürich, 1894.", "p1": "Zurich!", "p2": "U.S. engine", "p3": "party in the US"}
ANSWERS = {"where": ["ZÜRICH"], "what": ["U.S.", "art"], "when": ["1894", "1895"], "who": []}
ANSWER_RUN = {
    q: {p: float((i + j) % 3) for j, p in enumerate(TEXTS)} for i, q in enumerate(ANSWERS)
}
SIMILARITIES, SCORES = np.random.default_rng(0).random(40), np.arange(40) // 4


def random_run() -> tuple[dict[str, dict[str, int]], dict[str, dict[str, float]]]:
    rng = np.random.default_rng(0)
    qrels, run = {}, {}
    for query in (f"q{i}" for i in range(25)):
        judged, found = ([f"p{i}" for i in rng.choice(90, size=n, replace=False)] for n in (15, 60))
        grades = [2, *rng.integers(-1, 4, size=14).tolist()]
        qrels[query] = dict(zip(judged, grades, strict=True))
        scores = (rng.integers(0, 20, size=60) / 7).tolist()  # with ties
        run[query] = dict(zip(found, scores, strict=True))
    run["q7"] = {}
    return qrels, run


def as_rows(by_query: dict[str, dict[str, Any]], column: str) -> list[dict[str, Any]]:
    return [
        {"query_id": query, "passage_ids": list(values), column: list(values.values())}
        for query, values in by_query.items()
    ]


def readme_example() -> tuple[str, str]:
    """The README's code, and what it says that the code gives."""
    match = re.search(r"```python\n(.*?)```", (FOLDER / "README.md").read_text(), flags=re.DOTALL)
    assert match is not None
    code, said = match[1].rstrip().rsplit("\n# ", 1)
    return code, said


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the module gives in a process of its own, from a copy of its folder."""
    scratch = tmp_path_factory.mktemp("evaluate")
    folder = shutil.copytree(FOLDER, scratch / "owner" / FOLDER.name)
    qrels, run = random_run()
    runs = {"predictions": as_rows(run, "scores"), "references": as_rows(qrels, "grades")}
    hits = {
        "predictions": [
            {**row, "texts": [TEXTS[p] for p in row["passage_ids"]]}
            for row in as_rows(ANSWER_RUN, "scores")
        ],
        "references": [{"query_id": q, "answers": a} for q, a in ANSWERS.items()],
    }
    pairs = {"predictions": SIMILARITIES.tolist(), "references": SCORES.tolist()}
    sides = [(0.5, 0.1), (0.2, 0.3), (0.4, 0.4), (-1.0, -2.0)]
    triplets = [{"to_positive": a, "to_negative": b} for a, b in sides]
    calls = {
        "run": [None, {**runs, "measures": MEASURES, "per_query": True}],
        "hits": ["answers", {**hits, "measures": ["Hit@1", "Hit@2", "Hit@4"], "per_query": True}],
        "pairs": ["graded_pairs", pairs],
        "triplets": ["triplets", {"predictions": triplets}],
        "wrong hit": ["answers", {**hits, "measures": ["MRR@10"]}],
        "twice": [None, {key: rows + rows for key, rows in runs.items()}],
        "unknown": ["ranking", runs],
    }
    code, _ = readme_example()
    code = code.replace('load("retrieval_measures")', f"load({str(folder)!r})")
    code = code.replace("module.compute(", "print(module.compute(") + ")"
    (scratch / "task.json").write_text(json.dumps({"calls": calls, "readme": code}))
    run_isolated(SCRIPT, folder, scratch / "task.json", scratch / "out.json", scratch=scratch)
    return json.loads((scratch / "out.json").read_text())


def test_every_measure_is_that_of_this_project(values: dict[str, Any]) -> None:
    qrels, run = random_run()
    ours = evaluate_run(qrels, run, measures=MEASURES)
    theirs = dict(values["run"])
    assert list(theirs) == [*MEASURES, "per_query"]
    assert theirs.pop("per_query") == ours.per_query
    assert theirs == pytest.approx(ours.means, abs=1e-12)
    assert all(0 < value < 1 for value in theirs.values())

    names = ["Hit@1", "Hit@2", "Hit@4"]
    answers = {query: tuple(strings) for query, strings in ANSWERS.items()}
    hits = evaluate_run(
        {},
        ANSWER_RUN,
        measures=names,
        answers=answers,
        find_texts=lambda ids: TEXTS,
    )
    assert values["hits"] == {**hits.means, "per_query": hits.per_query}
    assert hits.per_query["Hit@4"] == {"where": 1.0, "what": 1.0, "when": 1.0}

    pairs = evaluate_graded_pairs(SIMILARITIES, SCORES).means
    assert values["pairs"] == pytest.approx(
        {"spearman": pairs["Spearman"], "pearson": pairs["Pearson"]}
    )
    assert values["triplets"] == {"accuracy": 0.5}


def test_what_does_not_fit_is_refused(values: dict[str, Any]) -> None:
    for call, message in {
        "wrong hit": "unknown measure 'MRR@10': expected Hit with a cut-off",
        "twice": "predictions has two rows of one query",
        "unknown": "the configuration is 'ranking', expected one of retrieval, answers",
    }.items():
        assert message in values[call]["error"]


def test_the_readmes_example_gives_what_it_says(values: dict[str, Any]) -> None:
    assert values["readme"] == readme_example()[1]
