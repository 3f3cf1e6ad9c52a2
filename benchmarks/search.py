"""Speed, memory and recall of search, compared with a flat faiss index in memory.

    python -m benchmarks.search [--passages 100000 --dimension 256 --queries 500 --depth 100]

The vectors are random, of length 1, around 1,000 centres. The sides take turns, each in its own
process; figures are medians. Memory is that of the process after the search, without mapped files,
which the system can drop at any time.
"""

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import faiss
import numpy as np
import psutil

from benchmarks.harness import (
    make_parser,
    measure_sides,
    medians,
    print_conditions,
    print_table,
    time_in_turns,
    write_embeddings,
)
from modeling_condenser.encoding.embeddings import Embeddings
from modeling_condenser.retrieval.faiss_index import build_approximate, recall_against_exact
from modeling_condenser.retrieval.systems import search_embeddings

FLAT, EXACT = "flat index in memory", "exact, mapped shards"
APPROXIMATE = ("IVF256,Flat nprobe=16", "IVF256,RaBitQ nprobe=16")  # factory and parameters
N_CENTRES, SPREAD = 1000, 0.7
_SIZES = {
    **{"passages": 100_000, "dimension": 256, "queries": 500, "depth": 100},
    **{"shard_size": 8192, "repeats": 3},
}


def main() -> None:
    """Run all sides in turns and print the table."""
    arguments = make_parser(__doc__, **_SIZES).parse_args()
    runs = measure_sides((FLAT, EXACT, *APPROXIMATE), arguments, prepare, measure)
    print_conditions(arguments, _SIZES)
    rows = ([side, *medians(results).values()] for side, results in runs.items())
    print_table(["", *runs[EXACT][0]], rows)


def prepare(arguments: argparse.Namespace) -> None:
    """Write embeddings, queries and approximate indices."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((N_CENTRES, arguments.dimension), dtype=np.float32)

    def draw(n: int) -> np.ndarray:
        vectors = rng.standard_normal((n, arguments.dimension), dtype=np.float32)
        vectors *= SPREAD
        vectors += centres[rng.integers(0, N_CENTRES, n)]
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    embeddings = write_embeddings(
        arguments.folder / "embeddings",
        draw(arguments.passages),
        [f"p{i}" for i in range(arguments.passages)],
        shard_size=arguments.shard_size,
    )
    np.save(arguments.folder / "queries.npy", draw(arguments.queries))
    for side in APPROXIMATE:
        build_approximate(embeddings, side.split()[0], arguments.folder / side)


def measure(side: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Open and search one side in this process."""
    queries = np.load(arguments.folder / "queries.npy")
    names = [f"q{i}" for i in range(len(queries))]
    before = _own_memory()
    search = _open(side, arguments)
    run = search(queries, names)
    memory = _own_memory() - before
    calls: dict[Any, Callable[[], Any]] = {"all": partial(search, queries, names)}
    calls |= {i: partial(search, queries[i : i + 1], names[i : i + 1]) for i in range(20)}
    seconds = {call: found for call, [found] in time_in_turns(calls, repeats=1).items()}
    recall = 1.0
    if side != FLAT:
        exact = _open(EXACT, arguments)(queries, names)
        recall = recall_against_exact(run, exact, depth=arguments.depth)
    return {
        "queries/s": len(queries) / seconds.pop("all"),
        "ms alone": 1000 * statistics.median(seconds.values()),
        "own MiB": memory,
        "recall": recall,
    }


def _open(side: str, arguments: argparse.Namespace) -> Callable[[np.ndarray, list[str]], Any]:
    embeddings, depth = Embeddings.open(arguments.folder / "embeddings"), arguments.depth
    if side == EXACT:
        return partial(search_embeddings, embeddings, depth=depth)
    if side == FLAT:
        flat = faiss.IndexFlatIP(embeddings.dimension)
        for block in embeddings.blocks():
            flat.add(np.ascontiguousarray(block))

        return lambda queries, names: flat.search(queries, depth)
    factory, parameters = side.split()
    index = build_approximate(embeddings, factory, arguments.folder / side, parameters=parameters)
    return partial(search_embeddings, embeddings, index=index, depth=depth)


def _own_memory() -> float:
    """MiB that this process holds, without mapped files."""
    memory = psutil.Process().memory_info()
    return (memory.rss - memory.shared) / 2**20


if __name__ == "__main__":
    main()
