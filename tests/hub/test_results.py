"""Results beside the weights: kept, replaced, compressed."""

import gzip
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from modeling_condenser.hub.results import EvaluationResult, add_result, read_results

RUN = "q1 Q0 d7 1 0.5 x\nq1 Q0 d2 2 0.25 x\n"
RESULT = EvaluationResult(
    *("scifact", "test", 100, 300),
    values={"nDCG@10": 0.651234567891, "R@100": 0.9},
    source="BeIR/scifact",
    comparisons=[{"baseline": "bm25", "measure": "nDCG@10", "value": 0.6651, "p_value": 0.31}],
)
LOCAL = EvaluationResult("../my own | docs\n", "dev", 100, 5, {"MRR@10": 0.5})


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    (tmp_path / "run.trec").write_text(RUN)
    return tmp_path / "run.trec"


def test_what_is_written_comes_back_with_the_run(tmp_path, run_file):
    checksum = hashlib.sha256(RUN.encode()).hexdigest()
    expected = []
    for result, name in ((RESULT, "BeIR_scifact-test-100"), (LOCAL, "_my_own_docs_-dev-100")):
        add_result(tmp_path, result, run_file=run_file)
        run = {"file": f"evaluation/{name}.trec.gz", "sha256": checksum}
        expected.append(replace(result, run=run))
        packed = (tmp_path / run["file"]).read_bytes()
        assert gzip.decompress(packed) == RUN.encode()
        assert packed[4:8] == b"\0\0\0\0"  # RFC 1952: no time
    found = read_results(tmp_path)
    assert [replace(result, date=None, versions={}) for result in found] == expected
    first, second = json.loads((tmp_path / "evaluation_results.json").read_text())
    assert first["values"] == {"nDCG@10": 0.651234567891, "R@100": 0.9}
    assert first["comparisons"] == RESULT.comparisons
    assert "intervals" not in first and second["source"] is None


def test_a_result_replaces_only_that_of_the_same_split_depth_search_and_source(tmp_path, run_file):
    add_result(tmp_path, RESULT, run_file=run_file)
    others = ({"split": "dev"}, {"depth": 9}, {"search": {"index": "HNSW32"}}, {"source": None})
    for number, other in enumerate(others):
        run_file.write_text(f"q1 Q0 d{number} 1 0.5 x\n")
        add_result(tmp_path, replace(RESULT, **other), run_file=run_file)
    files = [(result.run or {})["file"] for result in read_results(tmp_path)]
    runs = [gzip.decompress((tmp_path / file).read_bytes()).decode() for file in files]
    assert runs == [RUN, *(f"q1 Q0 d{number} 1 0.5 x\n" for number in range(4))]
    add_result(tmp_path, replace(RESULT, values={"R@100": 0.25}))
    results = read_results(tmp_path)
    assert (len(results), results[0].values) == (5, {"R@100": 0.25})
