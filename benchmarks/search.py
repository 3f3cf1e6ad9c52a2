"""Speed, memory and recall of search, compared with a flat faiss index in memory.

    python -m benchmarks.search [--passages 100000 --dimension 256 --queries 500 --depth 100]

The vectors are random, of length 1, around 1,000 centres. The sides take turns, each in its own
process; figures are medians.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import faiss
import numpy as np
import psutil

from modeling_condenser.encoding.embeddings import Embeddings, write_embeddings
from modeling_condenser.retrieval.approximate import (
    ApproximateIndex,
    build_approximate,
    recall_against_exact,
)
from modeling_condenser.retrieval.exact import search_exact
from modeling_condenser.retrieval.runs import Run, make_run, read_run, write_run
from modeling_condenser.runs.run_folder import describe_machine

FLAT, EXACT = "flat index in memory", "exact, mapped shards"
N_CENTRES, SPREAD = 1000, 0.7


def main() -> None:
    """Run all sides in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (
        ("passages", 100_000),
        ("dimension", 256),
        ("queries", 500),
        ("depth", 100),
        ("shard_size", 8192),
        ("repeats", 3),
        ("seed", 0),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"(default: {default})")
    parser.add_argument(
        "--approximate",
        nargs="*",
        default=["IVF256,Flat nprobe=16", "IVF256,RaBitQ nprobe=16"],
        metavar="'FACTORY PARAMETERS'",
        help="(default: %(default)s)",
    )
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(measure(arguments.side, arguments)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        arguments.folder = Path(scratch)
        seconds = prepare(arguments)
        runs: dict[str, list[dict[str, float]]] = {}
        for _ in range(arguments.repeats):
            for side in (FLAT, EXACT, *arguments.approximate):
                runs.setdefault(side, []).append(_measure_apart(side, arguments))
        report(runs, seconds, arguments)


def prepare(arguments: argparse.Namespace) -> dict[str, float]:
    """Write embeddings, queries and approximate indices: seconds that each index took."""
    rng = np.random.default_rng(arguments.seed)
    centres = rng.standard_normal((N_CENTRES, arguments.dimension), dtype=np.float32)

    def draw(n: int) -> np.ndarray:
        vectors = rng.standard_normal((n, arguments.dimension), dtype=np.float32)
        vectors *= SPREAD
        vectors += centres[rng.integers(0, N_CENTRES, n)]
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors

    embeddings = write_embeddings(
        arguments.folder / "embeddings",
        draw(arguments.passages),
        [f"p{i}" for i in range(arguments.passages)],
        shard_size=arguments.shard_size,
    )
    np.save(arguments.folder / "queries.npy", draw(arguments.queries))
    seconds = {}
    for side in arguments.approximate:
        started = time.perf_counter()
        build_approximate(embeddings, side.split()[0], _folder_of(side, arguments))
        seconds[side] = time.perf_counter() - started
    return seconds


def _folder_of(side: str, arguments: argparse.Namespace) -> Path:
    return arguments.folder / side.replace(",", "_").replace(" ", "_").replace("=", "_")


def _measure_apart(side: str, arguments: argparse.Namespace) -> dict[str, float]:
    given = {name: value for name, value in vars(arguments).items() if name != "approximate"}
    words = [f"--{name}={value}" for name, value in given.items() if value is not None]
    command = [sys.executable, "-m", "benchmarks.search", *words, f"--side={side}"]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        sys.exit(process.stderr)
    return json.loads(process.stdout.strip().splitlines()[-1])


def measure(side: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Open and search one side in this process, and leave its run in the folder.

    Returns:
        Queries a second, all together; milliseconds of one alone; MiB by which resident memory had
        grown once the side was open, and at its peak while it searched, in private memory and in
        mapped files, which the system can drop at any time.
    """
    queries = np.load(arguments.folder / "queries.npy")
    names = [f"q{i}" for i in range(len(queries))]
    before = _resident()
    search = _open(side, arguments)
    opened = _resident()
    with _Peak() as peak:
        started = time.perf_counter()
        run = search(queries, names)
        seconds = time.perf_counter() - started
    alone = []
    for i in range(min(20, len(queries))):
        started = time.perf_counter()
        search(queries[i : i + 1], names[i : i + 1])
        alone.append(time.perf_counter() - started)
    write_run(run, _folder_of(side, arguments).with_suffix(".trec"), tag="search")
    return {
        "queries/s": len(queries) / seconds,
        "ms alone": 1000 * statistics.median(alone),
        "own MiB, opened": opened["RssAnon"] - before["RssAnon"],
        "mapped MiB, opened": opened["RssFile"] - before["RssFile"],
        "own MiB, peak": peak.highest["RssAnon"] - before["RssAnon"],
        "mapped MiB, peak": peak.highest["RssFile"] - before["RssFile"],
    }


def _open(side: str, arguments: argparse.Namespace) -> Callable[[np.ndarray, list[str]], Run]:
    embeddings, depth = Embeddings.open(arguments.folder / "embeddings"), arguments.depth
    if side == EXACT:
        return lambda queries, names: search_exact(embeddings, queries, names, depth=depth)
    if side == FLAT:
        flat = faiss.IndexFlatIP(embeddings.dimension)
        for _, block in embeddings.blocks():
            flat.add(np.ascontiguousarray(block))

        def search(queries: np.ndarray, names: list[str]) -> Run:
            scores, rows = flat.search(queries, depth)
            return make_run(names, scores, rows, embeddings.ids, depth=depth)

        return search
    parameters = side.partition(" ")[2] or None
    index = ApproximateIndex(_folder_of(side, arguments), embeddings, parameters=parameters)
    return lambda queries, names: index.search(queries, names, depth=depth)


def _resident() -> dict[str, float]:
    """Resident memory of this process in MiB: private (RssAnon), and mapped files (RssFile)."""
    memory = psutil.Process().memory_info()
    return {
        "RssAnon": (memory.rss - memory.shared) / 2**20,
        "RssFile": memory.shared / 2**20,
    }


class _Peak:
    """The most memory of each kind while a block of code runs, looked at every 5 ms.

    Attributes:
        highest: as `_resident`.
    """

    def __enter__(self) -> Self:
        self.highest = _resident()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(0.005):
            self.highest = {name: max(self.highest[name], v) for name, v in _resident().items()}


def report(
    runs: dict[str, list[dict[str, float]]],
    seconds: dict[str, float],
    arguments: argparse.Namespace,
) -> None:
    """Print the medians of all sides, and what each found of the exact answer."""
    exact = read_run(_folder_of(EXACT, arguments).with_suffix(".trec"))
    print(
        f"{arguments.passages} passages of {arguments.dimension} numbers "
        f"({arguments.passages * arguments.dimension / 2**18:.0f} MiB) in shards of "
        f"{arguments.shard_size}, {arguments.queries} queries, depth {arguments.depth}; medians of "
        f"{arguments.repeats}"
    )
    print(json.dumps(describe_machine()))
    columns = list(runs[EXACT][0])
    print(f"| | {' | '.join(columns)} | recall | seconds to build |")
    print("| --- " * (len(columns) + 3) + "|")
    for side, measured in runs.items():
        medians = [statistics.median(one[column] for one in measured) for column in columns]
        run = read_run(_folder_of(side, arguments).with_suffix(".trec"))
        recall = recall_against_exact(run, exact, depth=arguments.depth)
        built = f"{seconds[side]:.1f}" if side in seconds else ""
        figures = " | ".join(f"{value:.1f}" for value in medians)
        print(f"| {side} | {figures} | {recall:.4f} | {built} |")


if __name__ == "__main__":
    main()
