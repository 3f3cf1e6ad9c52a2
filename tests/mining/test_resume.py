"""Mining that is interrupted and resumed ends with the same bytes; its memory is bounded."""

import subprocess
import sys
from pathlib import Path

import pytest

from modeling_condenser.mining.mine import mine
from modeling_condenser.mining.miner import Miner
from tests.mining.making import make_labelled, make_run_file

ROOT = Path(__file__).parents[2]


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, object]:
    make_run_file(tmp_path / "run")
    return {
        "system": tmp_path / "run",
        "collection": make_labelled(tmp_path / "collection"),
        "output_dir": tmp_path / "out",
        "n_negatives": 4,
        "queries_per_window": 6,
        "progress": False,
    }


def test_a_finished_run_is_not_mined_again_nor_with_another_recipe(settings, tmp_path):
    file = mine(**settings)
    before = file.stat().st_mtime_ns
    (tmp_path / "run").unlink()
    assert mine(**settings) == file
    assert file.stat().st_mtime_ns == before
    with pytest.raises(ValueError, match="another recipe .*seed"):
        mine(**settings, seed=1)


@pytest.mark.parametrize(("change", "mined"), [(" made", 2), (" other", 4)])
def test_after_an_interruption_only_missing_windows_of_the_same_run_are_mined(
    settings, tmp_path, monkeypatch, change, mined
):
    windows = []
    original = Miner.mine

    def mine_window(self, query_ids):
        windows.append(len(query_ids))
        if len(windows) == 3:
            raise KeyboardInterrupt
        return original(self, query_ids)

    monkeypatch.setattr(Miner, "mine", mine_window)
    with pytest.raises(KeyboardInterrupt):
        mine(**settings)
    run = tmp_path / "run"
    run.write_text(run.read_text().replace(" made", change))
    file = mine(**settings)
    assert len(windows) == 3 + mined
    whole = mine(**{**settings, "output_dir": tmp_path / "whole"})
    assert file.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *("negatives.jsonl", "recipe.yaml", "run.json")
    ]


MEMORY = """
import os, random, resource, sys
from pathlib import Path
from datasets import Dataset
from modeling_condenser.collection.collection import Collection
from modeling_condenser.mining import mine as stage

N_PASSAGES, DEPTH = 3000, 200
ids = [f"passage-{i:06d}" for i in range(N_PASSAGES)]

class Stub:
    def search(self, queries, *, depth):
        run = {}
        for query_id in queries:
            start = hash(query_id) % N_PASSAGES
            run[query_id] = {ids[(start + k) % N_PASSAGES]: 500.0 - k for k in range(depth)}
        return run

def peak(n_queries, out):
    passages = Dataset.from_dict(
        {"_id": ids, "title": [""] * N_PASSAGES, "text": [f"{i} " * 5 for i in ids]}
    )
    queries = {f"q{i}": "a query" for i in range(n_queries)}
    qrels = {query_id: {ids[i % N_PASSAGES]: 1} for i, query_id in enumerate(queries)}
    stage.load_collection = lambda source, split: Collection(passages, queries, qrels)
    stage.open_searcher = lambda *words, **settings: Stub()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    stage.mine("bm25", "stub", out, n_negatives=50, last_rank=DEPTH, queries_per_window=125,
               with_text=True, progress=False)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024

for n_queries in (500, 2000):
    pid = os.fork()
    if pid == 0:
        print(peak(n_queries, f"{sys.argv[1]}/{n_queries}"), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_queries(tmp_path):
    process = subprocess.run(
        [sys.executable, "-c", MEMORY, tmp_path], capture_output=True, text=True, cwd=ROOT
    )
    assert process.returncode == 0, process.stderr[-3000:]
    few, many = map(float, process.stdout.split())
    # 1,500 more queries with 200 passages each are some 45 MB as a run, and 20 MB as records.
    assert many - few < 12, f"{few:.0f} MB for 500 queries, {many:.0f} MB for 2,000"
