"""Speed, memory and recall of search, compared with a flat faiss index in memory.

    python -m benchmarks.search [--passages 100000 --dimension 256 --queries 500 --depth 100]

The vectors are random, of length 1, around 1,000 centres. The sides take turns, each in its own
process; figures are medians. Memory is what the process holds of its own after the search, without
mapped files, which the system can drop at any time.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import psutil

from benchmarks.harness import make_parser, measure_apart, medians, print_result, print_table
from modeling_condenser.encoding.embeddings import Embeddings, write_embeddings
from modeling_condenser.retrieval.approximate import (
    build_approximate,
    recall_against_exact,
    search_approximate,
)
from modeling_condenser.retrieval.exact import search_exact
from modeling_condenser.runs.run_folder import describe_machine

FLAT, EXACT = "flat index in memory", "exact, mapped shards"
APPROXIMATE = ("IVF256,Flat nprobe=16", "IVF256,RaBitQ nprobe=16")  # factory and parameters
N_CENTRES, SPREAD = 1000, 0.7
_SIZES = {
    **{"passages": 100_000, "dimension": 256, "queries": 500, "depth": 100},
    **{"shard_size": 8192, "repeats": 3},
}


def main() -> None:
    """Run all sides in turns and print the table."""
    arguments = make_parser(__doc__ or "", **_SIZES).parse_args()
    if arguments.side:
        print_result(measure(arguments.side, arguments))
        return
    with tempfile.TemporaryDirectory() as scratch:
        arguments.folder = Path(scratch)
        seconds = prepare(arguments)
        runs: dict[str, list[dict[str, float]]] = {}
        for _ in range(arguments.repeats):
            for side in (FLAT, EXACT, *APPROXIMATE):
                runs.setdefault(side, []).append(measure_apart(side, arguments.folder))
    print(", ".join(f"{name} {getattr(arguments, name)}" for name in _SIZES))
    print(json.dumps(describe_machine()))
    rows = ([side, *medians(r).values(), seconds.get(side, "")] for side, r in runs.items())
    print_table(["", *runs[EXACT][0], "seconds to build"], rows)


def prepare(arguments: argparse.Namespace) -> dict[str, float]:
    """Write embeddings, queries and approximate indices; the seconds that each index took."""
    rng = np.random.default_rng(0)
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
    for side in APPROXIMATE:
        started = time.perf_counter()
        build_approximate(embeddings, side.split()[0], _folder_of(side, arguments))
        seconds[side] = time.perf_counter() - started
    return seconds


def _folder_of(side: str, arguments: argparse.Namespace) -> Path:
    return arguments.folder / side.replace(",", "_").replace(" ", "_").replace("=", "_")


def measure(side: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Open and search one side in this process."""
    queries = np.load(arguments.folder / "queries.npy")
    names = [f"q{i}" for i in range(len(queries))]
    before = _own_memory()
    search = _open(side, arguments)
    started = time.perf_counter()
    run = search(queries, names)
    seconds = time.perf_counter() - started
    memory = _own_memory() - before
    alone = []
    for i in range(min(20, len(queries))):
        started = time.perf_counter()
        search(queries[i : i + 1], names[i : i + 1])
        alone.append(time.perf_counter() - started)
    recall = 1.0
    if side != FLAT:
        exact = _open(EXACT, arguments)(queries, names)
        recall = recall_against_exact(run, exact, depth=arguments.depth)
    return {
        "queries/s": len(queries) / seconds,
        "ms alone": 1000 * statistics.median(alone),
        "own MiB": memory,
        "recall": recall,
    }


def _open(side: str, arguments: argparse.Namespace) -> Callable[[np.ndarray, list[str]], Any]:
    embeddings, depth = Embeddings.open(arguments.folder / "embeddings"), arguments.depth
    if side == EXACT:
        return lambda queries, names: search_exact(embeddings, queries, names, depth=depth)
    if side == FLAT:
        flat = faiss.IndexFlatIP(embeddings.dimension)
        for _, block in embeddings.blocks():
            flat.add(np.ascontiguousarray(block))

        return lambda queries, names: flat.search(queries, depth)
    factory, parameters = side.split()
    folder = _folder_of(side, arguments)
    index = build_approximate(embeddings, factory, folder, parameters=parameters)
    return lambda queries, names: search_approximate(index, embeddings, queries, names, depth=depth)


def _own_memory() -> float:
    """MiB that this process holds, without mapped files."""
    memory = psutil.Process().memory_info()
    return (memory.rss - memory.shared) / 2**20


if __name__ == "__main__":
    main()
