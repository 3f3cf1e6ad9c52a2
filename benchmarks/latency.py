"""The time of one query.

    python -m benchmarks.latency [--passages 22000 --hidden 768 --layers 12 --queries 50]

The encoder is a BERT with random weights, and the passages' vectors are random, because only number
and width matter. A query is encoded and searched exactly. Printed: mean and 95th percentile.
"""

import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.harness import (
    docstrings,
    make_encoder,
    make_parser,
    print_conditions,
    print_table,
    time_in_turns,
    write_embeddings,
)
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.retrieval.systems import DenseSearcher, search_embeddings

DEPTH = 10
_SIZES = {"passages": 22_000, "queries": 50, "layers": 12, "hidden": 768, "vocabulary": 8000}


def main() -> None:
    """Ask the queries one by one and print the table."""
    arguments = make_parser(__doc__, **_SIZES).parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        texts = docstrings(Path(scratch) / "collection")
        encoder = make_encoder(texts, Path(scratch) / "encoder", arguments, positions=512)
        ids = [f"p{i}" for i in range(arguments.passages)]
        vectors = np.random.default_rng(0).standard_normal(
            (len(ids), arguments.hidden), dtype=np.float32
        )
        embeddings = write_embeddings(Path(scratch) / "embeddings", vectors, ids)
        retriever = Retriever(encoder, pooling="cls", similarity="dot")
        searcher = DenseSearcher(retriever, embeddings)
        queries = [" ".join(text.split()[:9]) for text in texts[: arguments.queries]]
        search = partial(search_embeddings, embeddings, depth=DEPTH)
        sides = {}
        for query in queries:
            vectors = retriever.encode_queries([query])
            sides["search alone", query] = partial(search, vectors, ["query"])
            sides["encode, search", query] = partial(searcher.search, {"": query}, depth=DEPTH)
        seconds = time_in_turns(sides, repeats=1)
    print_conditions(arguments, _SIZES)
    rows = []
    for name in ("search alone", "encode, search"):
        milliseconds = [1000 * s for side, [s] in seconds.items() if side[0] == name]
        rows.append([name, float(np.mean(milliseconds)), float(np.percentile(milliseconds, 95))])
    print_table(["milliseconds a query", "mean", "95th percentile"], rows)


if __name__ == "__main__":
    main()
