"""What a map of query vectors learns from few labels: the table of docs/adaptation.md.

python -m benchmarks.few_labels MODEL OUT COLLECTION...

A collection has the splits train and test. OUT keeps the embeddings. `in-batch` is the objective of
LlamaIndex's adapter, a query against the passages of the other labels, with the same optimiser.
`verdict` compares cross-validation over the labels of a seed with the test queries.
"""

import argparse
import time
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
from modeling_condenser.adaptation.query_map import Candidates, choose_candidates, learn_map
from modeling_condenser.collection.collection import Collection, keep_queries
from modeling_condenser.collection.load import load_collection
from modeling_condenser.encoding.embeddings import encode_collection
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.evaluation.measures import compare
from modeling_condenser.retrieval.bm25 import Bm25

USES = ("alone", "hybrid")


def sample(collection: Collection, n: int, seed: int) -> Collection:
    """At most n of the queries."""
    order = np.random.default_rng(seed).permutation(list(collection.queries))
    return keep_queries(collection, set(order[:n].tolist()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("collections", nargs="+")
    parser.add_argument("--labels", type=int, nargs="+", default=[32, 128, 512])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--test_queries", type=int, default=1000)
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    retriever = Retriever(options.model, dtype=options.dtype)
    print("| collection | labels | arm | alone | hybrid | seconds |")
    print("| --- | ---: | --- | ---: | ---: | ---: |")
    for name in options.collections:
        train = load_collection(name, split="train")
        test = sample(load_collection(name, split="test"), options.test_queries, 0)
        embeddings = encode_collection(retriever, test.passages, options.out / train.name)
        bm25 = Bm25(test.passages)
        judge = open_judge(test, retriever, embeddings, bm25)
        before = judge.measure(None)
        means = " | ".join(f"{fmean(before[use].values()):.3f}" for use in USES)
        print(f"| {train.name} | | untouched | {means} | |", flush=True)
        for n in options.labels:
            rows: dict[str, list[list[float]]] = {"query map": [], "in-batch": []}
            for seed in options.seeds:
                labels = sample(train, n, seed)
                own = open_judge(labels, retriever, embeddings, bm25)
                queries = own.queries(labels)
                everything = choose_candidates(queries, embeddings)
                of_labels = np.unique(queries.positives[:, 1])
                batch = Candidates(
                    of_labels, embeddings.vectors(of_labels), np.zeros(len(of_labels), np.float32)
                )
                for arm, candidates in (("query map", everything), ("in-batch", batch)):
                    started = time.perf_counter()
                    change = learn_map(
                        queries, candidates, ridge=RIDGES[0], with_bm25=arm == "query map"
                    )
                    seconds = time.perf_counter() - started
                    after = judge.measure(change)
                    rows[arm].append([*(fmean(after[use].values()) for use in USES), seconds])
                    if arm == "query map" and seed == 0:
                        verdict = judge_labels(own, labels, n)
                        tested = compare(after["hybrid"], before["hybrid"])
            for arm, values in rows.items():
                alone, hybrid, seconds = np.mean(values, axis=0)
                shown = f"{alone:.3f} | {hybrid:.3f} | {seconds:.1f} |"
                print(f"| {train.name} | {n} | {arm} | {shown}", flush=True)
            shown = f"test {tested.difference:+.3f} (p = {tested.p_value:.2g})"
            print(f"| {train.name} | {n} | verdict: {verdict}, {shown} | | | |", flush=True)


def judge_labels(own: Judge, labels: Collection, n: int) -> str:
    """The verdict of cross-validation by question."""
    groups = group_questions([labels.queries[name] for name in own.names])
    started, before = time.perf_counter(), own.measure(None)
    [after] = cross_validate(own, own.queries(labels), make_folds(groups), RIDGES[:1], use="hybrid")
    comparison = compare(after["hybrid"], before["hybrid"])
    gain, seconds = mean_gain(after["hybrid"], before["hybrid"]), time.perf_counter() - started
    return f"{gain:+.3f} (p = {comparison.p_value:.2g}, {seconds:.0f} s)"


if __name__ == "__main__":
    main()
