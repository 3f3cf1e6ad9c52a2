"""Results beside the weights: kept, replaced, compressed, and in the Hub's own form."""

import gzip
import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from modeling_condenser.hub.results import (
    BaselineComparison,
    EvaluationResult,
    add_result,
    read_results,
)

RUN = "q1 Q0 d7 1 0.5 x\nq1 Q0 d2 2 0.25 x\n"
RESULT = EvaluationResult(
    "scifact",
    "test",
    100,
    300,
    {"nDCG@10": 0.651234567891, "R@100": 0.9},
    source="BeIR/scifact",
    comparisons=(BaselineComparison("bm25", "nDCG@10", 0.6651, -0.013865432109, 0.31),),
    date="2026-01-31",
    command="condenser evaluate OWNER/NAME BeIR/scifact",
)
LOCAL = EvaluationResult("my own | docs\n", "dev", 100, 5, {"MRR@10": 0.5})


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    (tmp_path / "run.trec").write_text(RUN)
    return tmp_path / "run.trec"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


def test_what_is_written_comes_back_with_the_run(folder: Path, run_file: Path) -> None:
    add_result(folder, RESULT, run_file=run_file)
    add_result(folder, LOCAL)
    checksum = hashlib.sha256(RUN.encode()).hexdigest()
    name = "evaluation/scifact-test.trec.gz"
    with_run = replace(RESULT, run={"file": name, "sha256": checksum})
    assert read_results(folder) == [with_run, LOCAL]
    packed = (folder / name).read_bytes()
    assert gzip.decompress(packed) == RUN.encode()
    assert packed[4:8] == b"\0\0\0\0"  # RFC 1952: no time
    first, second = json.loads((folder / "evaluation_results.json").read_text())
    assert first["values"] == {"nDCG@10": 0.651234567891, "R@100": 0.9}
    assert first["comparisons"] == [asdict(RESULT.comparisons[0])]
    assert "intervals" not in first and second["source"] is None


@pytest.mark.parametrize(
    "other",
    [{"split": "dev"}, {"depth": 1000}, {"search": {"index": "HNSW32"}}, {"source": "mteb/x"}],
)
def test_another_split_depth_search_or_source_is_another_result(
    folder: Path, run_file: Path, other: dict[str, Any]
) -> None:
    add_result(folder, RESULT, run_file=run_file)
    run_file.write_text("q1 Q0 d1 1 0.5 x\n")
    add_result(folder, replace(RESULT, **other), run_file=run_file)
    first, second = read_results(folder)
    assert first.run is not None and second.run is not None
    assert gzip.decompress((folder / first.run["file"]).read_bytes()) == RUN.encode()
    assert gzip.decompress((folder / second.run["file"]).read_bytes()) == run_file.read_bytes()


def test_a_result_of_the_same_things_takes_the_place_of_the_earlier(
    folder: Path, run_file: Path
) -> None:
    add_result(folder, RESULT, run_file=run_file)
    add_result(folder, LOCAL)
    add_result(folder, replace(RESULT, values={"R@100": 0.25}), run_file=run_file)
    assert [result.values for result in read_results(folder)] == [{"R@100": 0.25}, {"MRR@10": 0.5}]
    assert [file.name for file in (folder / "evaluation").iterdir()] == ["scifact-test.trec.gz"]
    # A result without a run leaves none that it was not made from.
    add_result(folder, RESULT)
    assert list((folder / "evaluation").iterdir()) == []


def test_a_name_of_any_characters_stays_within_the_folder(folder: Path, run_file: Path) -> None:
    add_result(folder, replace(LOCAL, collection="../../x|`\n", split="../y"), run_file=run_file)
    [file] = (folder / "evaluation").iterdir()
    assert set(file.name) <= set("abcdefghijklmnopqrstuvwxyz._-")
