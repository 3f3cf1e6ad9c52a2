"""How long one query takes, as in `condenser search` after its start.

    python -m benchmarks.latency [--passages 22000 --hidden 768 --layers 12 --queries 50]

A BERT with random weights and the docstrings of the installed packages, over and over up to the
number of passages; vectors are random, since only their number and width matter. Of each query:
its encoding, exact search, and fetching the ten best passages' texts. Mean and 95th percentile.
"""

import argparse
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from datasets import Dataset

from hub_scripts.search import find
from modeling_condenser.collection.builtin import build_builtin_collection, find_package_roots
from modeling_condenser.collection.load import load_passages
from modeling_condenser.encoding.embeddings import write_embeddings
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.retrieval.dense import DenseSearcher
from modeling_condenser.retrieval.runs import Run
from modeling_condenser.runs.run_folder import describe_machine
from modeling_condenser.study.starting_encoder import make_starting_encoder

DEPTH = 10


@dataclass(frozen=True)
class TimedSearcher:
    """A searcher that notes how long the search without the encoding took."""

    searcher: DenseSearcher
    seconds: list[float]

    def search(self, queries: Mapping[str, str], *, depth: int) -> Run:
        vectors = self.searcher.retriever.encode_queries(list(queries.values()))
        started = time.perf_counter()
        run = self.searcher.search_vectors(vectors, list(queries), depth=depth)
        self.seconds.append(time.perf_counter() - started)
        return run


def main() -> None:
    """Ask the queries one by one and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (
        ("passages", 22_000),
        ("queries", 50),
        ("layers", 12),
        ("hidden", 768),
        ("vocabulary", 8000),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"(default: {default})")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        searcher, passages, queries = prepare(Path(scratch), arguments)
        find(searcher, passages, queries[0], depth=DEPTH)  # the start-up
        searcher.seconds.clear()
        whole = []
        for query in queries[1:]:
            started = time.perf_counter()
            find(searcher, passages, query, depth=DEPTH)
            whole.append(time.perf_counter() - started)
    print(f"{arguments.passages:,} passages, {arguments.layers} layers of {arguments.hidden}")
    print("| milliseconds a query | mean | 95th percentile |\n| --- | --- | --- |")
    for name, seconds in (("search alone", searcher.seconds), ("whole answer", whole)):
        mean, high = 1e3 * np.mean(seconds), 1e3 * np.percentile(seconds, 95)
        print(f"| {name} | {mean:.1f} | {high:.1f} |")
    print(describe_machine())


def prepare(
    scratch: Path, arguments: argparse.Namespace
) -> tuple[TimedSearcher, Dataset, list[str]]:
    """An encoder, passages with their vectors, and queries."""
    roots = {"python": find_package_roots()["python"]}
    collection = build_builtin_collection(scratch / "collection", roots=roots)
    texts = list(load_passages(collection)["text"])
    encoder = make_starting_encoder(
        texts,
        scratch / "encoder",
        encoder_config={
            "vocab_size": arguments.vocabulary,
            "hidden_size": arguments.hidden,
            "num_hidden_layers": arguments.layers,
            "num_attention_heads": max(1, arguments.hidden // 64),
            "intermediate_size": 4 * arguments.hidden,
            "max_position_embeddings": 512,
        },
    )
    ids = [f"p{i}" for i in range(arguments.passages)]
    passages = Dataset.from_dict(
        {
            "_id": ids,
            "title": [""] * len(ids),
            "text": [texts[i % len(texts)] for i in range(len(ids))],
        }
    )
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((len(ids), arguments.hidden), dtype=np.float32)
    embeddings = write_embeddings(scratch / "embeddings", vectors, ids)
    retriever = Retriever(encoder, pooling="cls", similarity="dot")
    queries = [" ".join(text.split()[:9]) for text in texts[: arguments.queries + 1]]
    return TimedSearcher(DenseSearcher(retriever, embeddings), []), passages, queries


if __name__ == "__main__":
    main()
