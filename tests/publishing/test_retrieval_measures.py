"""The module for `evaluate` gives our figures, and needs nothing of this project."""

import re
import shutil
from pathlib import Path
from typing import Any

import evaluate
import numpy as np
import pytest

from modeling_condenser import publishing
from modeling_condenser.evaluation.measures import DEFAULT_MEASURES, evaluate_run

pytestmark = pytest.mark.slow  # importing `evaluate` takes seconds

FOLDER = Path(publishing.__file__).parent / "retrieval_measures"
MEASURES = [
    *("MRR", "MRR@10", "nDCG", "nDCG@10", "R@20", "MAP", "MAP@10", "R-Prec", "P@5", "Success@5"),
    *("MRR(rel=2)@10", "MAP(rel=2)", "R(rel=2)@1000", "R-Prec(rel=1)"),
    *(["ERR@10"] if shutil.which("perl") else []),
]


def compute(**inputs: Any) -> dict[str, Any]:
    return evaluate.load(str(FOLDER)).compute(**inputs)


def as_rows(by_query: dict[str, dict[str, Any]], column: str) -> list[dict[str, Any]]:
    return [
        {"query_id": query, "passage_ids": list(values), column: list(values.values())}
        for query, values in by_query.items()
    ]


def test_ranked_passages_are_measured_as_by_this_project():
    rng = np.random.default_rng(0)
    qrels, run = {}, {}
    for query in (f"q{i}" for i in range(25)):
        judged, found = ([f"p{i}" for i in rng.choice(90, size=n, replace=False)] for n in (15, 60))
        grades = [2, *rng.integers(-1, 4, size=14).tolist()]
        qrels[query] = dict(zip(judged, grades, strict=True))
        scores = (rng.integers(0, 20, size=60) / 7).tolist()  # with ties
        run[query] = dict(zip(found, scores, strict=True))
    run["q7"] = {}
    run["unjudged"], qrels["unjudged"] = {"p1": 1.0}, {}
    ours = evaluate_run(qrels, run, measures=MEASURES)
    rows = {"predictions": as_rows(run, "scores"), "references": as_rows(qrels, "grades")}
    theirs = compute(**rows, measures=MEASURES, per_query=True)
    assert list(theirs) == [*MEASURES, "per_query"]
    assert theirs.pop("per_query") == ours.per_query
    assert theirs == pytest.approx(ours.means, abs=1e-12)
    assert all(0 < value < 1 for value in theirs.values())
    assert tuple(compute(**rows)) == DEFAULT_MEASURES
    for name in ("NCDG@10", "R", "MRR@0", "P(cutoff=0)"):
        with pytest.raises(ValueError, match=re.escape(f"unknown measure '{name}': expected")):
            compute(**rows, measures=[name])
    with pytest.raises(ValueError, match="predictions has two rows of one query"):
        compute(predictions=rows["predictions"] * 2, references=rows["references"] * 2)


def test_the_readmes_example_gives_what_it_says(capsys):
    assert "modeling_condenser" not in (FOLDER / "retrieval_measures.py").read_text()
    match = re.search(r"```python\n(.*?)```", (FOLDER / "README.md").read_text(), flags=re.DOTALL)
    assert match is not None
    code, said = match[1].rstrip().rsplit("\n# ", 1)
    code = code.replace('load("retrieval_measures")', f"load({str(FOLDER)!r})")
    exec(code.replace("module.compute(", "print(module.compute(") + ")", {})
    assert capsys.readouterr().out.strip() == said


def test_the_query_itself_is_not_counted_and_a_passage_counts_once():
    qrels = {"a": {"b": 1}, "c": {"c": 1}}
    run = {"a": {"a": 3.0, "b": 2.0}, "c": {"x": 2.0, "c": 1.0}}
    rows = {"predictions": as_rows(run, "scores"), "references": as_rows(qrels, "grades")}
    found = compute(**rows, measures=["MRR@10"])
    assert found == evaluate_run(qrels, run, measures=["MRR@10"]).means == {"MRR@10": 0.75}
    twice = {"query_id": "a", "passage_ids": ["b", "b"], "grades": [1, 0]}
    with pytest.raises(ValueError, match="references has a passage twice for query 'a'"):
        compute(predictions=rows["predictions"], references=[twice, rows["references"][1]])
