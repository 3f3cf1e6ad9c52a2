"""How long one query takes, as in `condenser search` after its start.

    python -m benchmarks.latency [--passages 22000 --hidden 768 --layers 12 --queries 50]

A BERT with random weights and the docstrings of the standard library, repeated up to the number of
passages; vectors are random, since only their number and width matter. Of each query: encoding,
exact search, and fetching the ten best passages' texts. Mean and 95th percentile.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
from datasets import Dataset

from benchmarks.harness import docstrings, make_encoder, make_parser, print_table
from hub_scripts.search import find
from modeling_condenser.encoding.embeddings import write_embeddings
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.retrieval.dense import DenseSearcher
from modeling_condenser.retrieval.exact import search_exact
from modeling_condenser.runs.run_folder import describe_machine

DEPTH = 10
_SIZES = {"passages": 22_000, "queries": 50, "layers": 12, "hidden": 768, "vocabulary": 8000}


def main() -> None:
    """Ask the queries one by one and print the table."""
    arguments = make_parser(__doc__ or "", **_SIZES).parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        searcher, passages, queries = prepare(Path(scratch), arguments)
        find(searcher, passages, queries[0], depth=DEPTH)  # the start-up
        alone, whole = [], []
        for query in queries[1:]:
            started = time.perf_counter()
            find(searcher, passages, query, depth=DEPTH)
            whole.append(time.perf_counter() - started)
            vectors = searcher.retriever.encode_queries([query])
            started = time.perf_counter()
            search_exact(searcher.embeddings, vectors, ["query"], depth=DEPTH)
            alone.append(time.perf_counter() - started)
    print(f"{arguments.passages:,} passages, {arguments.layers} layers of {arguments.hidden}")
    print(json.dumps(describe_machine()))
    print_table(
        ["milliseconds a query", "mean", "95th percentile"],
        (
            [name, 1e3 * float(np.mean(seconds)), 1e3 * float(np.percentile(seconds, 95))]
            for name, seconds in (("search alone", alone), ("whole answer", whole))
        ),
    )


def prepare(
    scratch: Path, arguments: argparse.Namespace
) -> tuple[DenseSearcher, Dataset, list[str]]:
    """An encoder, passages with their vectors, and queries."""
    texts = docstrings(scratch / "collection")
    encoder = make_encoder(texts, scratch / "encoder", arguments, positions=512)
    n = arguments.passages
    ids = [f"p{i}" for i in range(n)]
    columns = {"_id": ids, "title": [""] * n, "text": [texts[i % len(texts)] for i in range(n)]}
    vectors = np.random.default_rng(0).standard_normal((n, arguments.hidden), dtype=np.float32)
    embeddings = write_embeddings(scratch / "embeddings", vectors, ids)
    retriever = Retriever(encoder, pooling="cls", similarity="dot")
    queries = [" ".join(text.split()[:9]) for text in texts[: arguments.queries + 1]]
    return DenseSearcher(retriever, embeddings), Dataset.from_dict(columns), queries


if __name__ == "__main__":
    main()
