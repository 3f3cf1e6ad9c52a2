"""What a map of query vectors learns from few labels: the table of docs/adaptation.md.

    python -m benchmarks.few_labels MODEL OUT COLLECTION...

A collection has the splits train and test. Of one with more than `--passages`, the passages that
are judged for the drawn queries stay, and random others (seed 0). OUT keeps the embeddings. The map
is that of `adapt`, with the penalty that cross-validation by question chooses; `kept` is the start
where it is not better. `in-batch` is the objective of LlamaIndex's adapter, with our optimiser: a
query against the passages of the other labels, without BM25.
"""

import argparse
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean

import numpy as np

from modeling_condenser.adaptation.adapt import RIDGES, mean_gain, open_judge
from modeling_condenser.adaptation.cross_validation import (
    Judge,
    cross_validate,
    group_questions,
    make_folds,
)
from modeling_condenser.adaptation.query_map import (
    Candidates,
    JudgedQueries,
    choose_candidates,
    learn_map,
)
from modeling_condenser.collection.collection import Collection, find_rows, keep_queries
from modeling_condenser.collection.load import load_collection
from modeling_condenser.encoding.embeddings import encode_collection
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.evaluation.measures import compare
from modeling_condenser.evaluation.verdict import MEASURE, Verdict
from modeling_condenser.retrieval.bm25 import Bm25


def sample(collection: Collection, n: int, seed: int) -> Collection:
    """At most n of the queries."""
    order = np.random.default_rng(seed).permutation(list(collection.queries))
    return keep_queries(collection, set(order[:n].tolist()))


def reduce(parts: Sequence[Collection], most: int) -> list[Collection]:
    """Splits of one collection with at most so many passages, or those that are judged."""
    passages = parts[0].passages
    if len(passages) <= most:
        return list(parts)
    judged = {name for part in parts for grades in part.qrels.values() for name in grades}
    rows = set(find_rows(passages, judged, strict=False).values())
    others = np.setdiff1d(np.arange(len(passages)), list(rows))
    drawn = np.random.default_rng(0).permutation(others)[: max(most - len(rows), 0)]
    kept = passages.select(sorted(rows | set(drawn.tolist())))
    return [replace(part, passages=kept) for part in parts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("collections", nargs="+")
    parser.add_argument("--labels", type=int, nargs="+", default=[32, 128, 512])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--test_queries", type=int, default=1000)
    parser.add_argument("--passages", type=int, default=7500)
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    retriever = Retriever(options.model, dtype=options.dtype)
    columns = "collection labels alone hybrid in-batch in-batch,hybrid kept,hybrid kept seconds"
    print(f"| {' | '.join(columns.split())} |\n| --- |{' ---: |' * 8}")
    for name in options.collections:
        whole = load_collection(name, split="train")
        test = sample(load_collection(name, split="test"), options.test_queries, 0)
        drawn = [sample(whole, n, seed) for n in options.labels for seed in options.seeds]
        test, *drawn = reduce([test, *drawn], options.passages)
        arms = dict(zip(product(options.labels, options.seeds), drawn, strict=True))
        embeddings = encode_collection(retriever, test.passages, options.out / whole.name)
        bm25 = Bm25(test.passages)
        judge = open_judge(test, retriever, embeddings, bm25)
        before = judge.measure(None)
        start = [fmean(before["alone"].values()), fmean(before["hybrid"].values())]
        print(f"| {whole.name} | 0 | {start[0]:.3f} | {start[1]:.3f} | | | | | |", flush=True)
        for n in options.labels:
            rows = []
            for seed in options.seeds:
                labels = arms[n, seed]
                own = open_judge(labels, retriever, embeddings, bm25)
                queries, began = own.queries(labels), time.perf_counter()
                ridge, verdict = choose(own, queries, labels)
                everything = choose_candidates(queries, embeddings)
                change = learn_map(queries, everything, ridge=ridge, with_bm25=True)
                seconds, after = time.perf_counter() - began, judge.measure(change)
                found = [fmean(after["alone"].values()), fmean(after["hybrid"].values())]
                is_kept = verdict.outcome == "better"
                tested = compare(after["hybrid"], before["hybrid"])
                logging.warning(
                    "%s, %d labels, seed %d, ridge %g: %s; test %+.3f, p = %.2g",
                    *(whole.name, n, seed, ridge, verdict, tested.difference, tested.p_value),
                )
                rows_of_labels = np.unique(queries.positives[:, 1])
                bias = np.zeros(len(rows_of_labels), dtype=np.float32)
                vectors = embeddings.vectors(rows_of_labels)
                batch = Candidates(rows_of_labels, vectors, bias)
                change = learn_map(queries, batch, ridge=RIDGES[0], with_bm25=False)
                of_batch = judge.measure(change)
                found += [fmean(of_batch["alone"].values()), fmean(of_batch["hybrid"].values())]
                rows.append([*found, found[1] if is_kept else start[1], is_kept, seconds])
            means = np.mean(rows, axis=0)
            shown = " | ".join(f"{value:.3f}" for value in means[:5])
            n_kept = f"{sum(row[5] for row in rows)} of {len(rows)}"
            print(f"| {whole.name} | {n} | {shown} | {n_kept} | {means[6]:.0f} |", flush=True)


def choose(own: Judge, queries: JudgedQueries, labels: Collection) -> tuple[float, Verdict]:
    """The ridge that cross-validation by question chooses, and its verdict."""
    folds = make_folds(group_questions([labels.queries[name] for name in own.names]))
    before = own.measure(None)["hybrid"]
    figures = cross_validate(own, queries, folds, RIDGES, use="hybrid")
    gains = [mean_gain(after["hybrid"], before) for after in figures]
    best = int(np.argmax(gains))
    comparison = compare(figures[best]["hybrid"], before)
    return RIDGES[best], Verdict(comparison, MEASURE, f"{len(own.names)} judged queries")


if __name__ == "__main__":
    main()
