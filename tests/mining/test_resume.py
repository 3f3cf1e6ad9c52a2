"""Mining that is interrupted and resumed ends with the same bytes; its memory stays bounded."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from modeling_condenser.mining.mine import mine
from modeling_condenser.mining.miner import Miner
from tests.mining.making import make_labelled, make_run_file

ROOT = Path(__file__).parents[2]

# Every session is a fork of one process, so that the imports are paid for once. Files get their
# names by Path.replace alone, so the moments around its calls are all the states a disk can be in.
KILLER = """
import os, signal, sys
from pathlib import Path
from modeling_condenser.mining.mine import mine

run, collection, out = sys.argv[1:4]

def session(folder, number, when):
    pid = os.fork()
    if pid == 0:
        replace, calls = Path.replace, []
        def killing(self, target):
            calls.append(target)
            if len(calls) == number and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            result = replace(self, target)
            if len(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return result
        Path.replace = killing
        mine(run, collection, folder, n_negatives=4, queries_per_window=6, with_text=True,
             progress=False)
        os._exit(0)
    return os.waitpid(pid, 0)[1]

killed = 0
for when in ("before", "after"):
    for number in range(1, 100):  # killed once, at each point
        folder = Path(out, f"{when}-{number}")
        if session(folder, number, when) == 0:
            break
        killed += 1
        assert session(folder, 0, when) == 0
folder = Path(out, "again-and-again")
for number in range(1, 100):  # killed many times
    if session(folder, number, ("before", "after")[number % 2]) == 0:
        break
    killed += 1
print(killed)
"""


@pytest.mark.slow
def test_killed_anywhere_it_ends_with_the_bytes_of_an_undisturbed_run(tmp_path):
    collection = make_labelled(tmp_path / "collection")
    make_run_file(tmp_path / "run")
    out = tmp_path / "out"
    process = subprocess.run(
        [sys.executable, "-c", KILLER, tmp_path / "run", collection, out],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    n_points = 1 + 4 + 2 + 1  # recipe, four windows, two joined files, record
    assert int(process.stdout) >= 2 * n_points
    undisturbed = mine(
        tmp_path / "run",
        collection,
        tmp_path / "undisturbed",
        n_negatives=4,
        with_text=True,
        progress=False,
    )
    folders = sorted(out.iterdir())
    assert len(folders) > 2 * n_points
    facts = json.loads((undisturbed.parent / "run.json").read_text())
    for folder in folders:
        for name in ("negatives.jsonl", "examples.jsonl"):
            assert (folder / name).read_bytes() == (undisturbed.parent / name).read_bytes(), folder
        own = json.loads((folder / "run.json").read_text())
        for name in ("dropped", "negatives", "queries", "candidates", "identity"):
            assert own[name] == facts[name]
        names = {path.name for path in folder.iterdir() if not path.name.endswith(".partial")}
        assert names == {"recipe.yaml", "run.json", "negatives.jsonl", "examples.jsonl"}


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
