"""What a map of query vectors learns from few labels (docs/results/published-models.md).

    python -m benchmarks.few_labels MODEL OUT COLLECTION... [--finetune]

A collection has the splits train and test. Of one with more than `--passages`, the passages that
are judged for the drawn queries stay, and random others (seed 0). OUT keeps the embeddings. `map`
is that of `adapt`, with the penalty that cross-validation by question chooses; `kept` is the start
where it is not better. `both` moves the passages by the same map, too. `in-batch` is the objective
of LlamaIndex's adapter, with our optimiser: a query against the passages of the other labels,
without BM25. Seconds are of processor time.

With `--finetune`, the columns are instead the map, or the start where it is not better; the model
fine-tuned on the same labels by configuration/finetune/own-text.yaml, without dev queries; and the
map on top of it, or the fine-tuned model where it is not better.
"""

import argparse
import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
import yaml

from modeling_condenser.adaptation.adapt import RIDGES, mean_gain
from modeling_condenser.adaptation.cross_validation import (
    Figures,
    MapEvaluator,
    cross_validate,
    group_questions,
    make_folds,
)
from modeling_condenser.adaptation.query_map import (
    Candidates,
    JudgedQueries,
    choose_candidates,
    learn_map,
    pair_up,
)
from modeling_condenser.collection.collection import Collection, find_rows, keep_queries
from modeling_condenser.collection.load import load_collection
from modeling_condenser.encoding.embeddings import Embeddings, encode_collection
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.evaluation.measures import compare, evaluate_run
from modeling_condenser.evaluation.verdict import MEASURE, Verdict
from modeling_condenser.finetuning.finetune import finetune
from modeling_condenser.retrieval.bm25 import Bm25

SIZES = (32, 128, 512)  # numbers of labels
MAP_COLUMNS = (
    "collection labels alone hybrid both,alone both,hybrid in-batch,alone in-batch,hybrid "
    "kept,hybrid kept seconds"
)
FINETUNE_COLUMNS = (
    "collection labels map,alone map,hybrid kept tuned,alone tuned,hybrid training,seconds "
    "both,alone both,hybrid kept"
)


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


def draw(
    name: str, sizes: Sequence[int], options: argparse.Namespace
) -> tuple[Collection, dict[int, list[Collection]]]:
    """Test queries, and draws of so many labels, of at most so many passages."""
    whole = load_collection(name, split="train")
    test = sample(load_collection(name, split="test"), options.test_queries, 0)
    drawn = [sample(whole, n, seed) for n in sizes for seed in options.seeds]
    test, *drawn = reduce([test, *drawn], options.passages)
    n_seeds = len(options.seeds)
    return test, {n: drawn[i * n_seeds :][:n_seeds] for i, n in enumerate(sizes)}


@dataclass(frozen=True)
class Trial:
    """A model on one collection: stored passages, test queries and the start's figures."""

    retriever: Retriever
    embeddings: Embeddings
    bm25: Bm25
    evaluator: MapEvaluator
    before: Figures

    @classmethod
    def open(cls, retriever: Retriever, test: Collection, folder: Path) -> "Trial":
        embeddings, bm25 = encode_collection(retriever, test.passages, folder), Bm25(test.passages)
        evaluator = MapEvaluator.open(test, retriever, embeddings, bm25)
        return cls(retriever, embeddings, bm25, evaluator, evaluator.measure(None))

    def adapt(self, labels: Collection) -> tuple[JudgedQueries, float, np.ndarray, Verdict]:
        """The judged queries, the ridge and the map that are learned, and the verdict."""
        own = MapEvaluator.open(labels, self.retriever, self.embeddings, self.bm25)
        queries, before = own.queries(), own.measure(None)["hybrid"]
        folds = make_folds(group_questions([labels.queries[name] for name in own.names]))
        figures = cross_validate(own, queries, folds, RIDGES, use="hybrid")
        best = int(np.argmax([mean_gain(after["hybrid"], before) for after in figures]))
        comparison = compare(figures[best]["hybrid"], before)
        candidates = choose_candidates(queries, self.embeddings)
        change = learn_map(queries, candidates, ridge=RIDGES[best], with_bm25=True)
        verdict = Verdict(comparison, MEASURE, f"{len(own.names)} judged queries")
        tested = compare(self.evaluator.measure(change)["hybrid"], self.before["hybrid"])
        logging.warning(
            "%d labels, ridge %g: %s; test %+.3f, p = %.2g",
            *(len(own.names), RIDGES[best], verdict, tested.difference, tested.p_value),
        )
        return queries, RIDGES[best], change, verdict


def means(figures: Figures) -> list[float]:
    return [fmean(figures[use].values()) for use in ("alone", "hybrid")]


def show(values: Sequence[float]) -> str:
    return " | ".join(f"{value:.3f}" for value in values)


def map_rows(name: str, options: argparse.Namespace, retriever: Retriever) -> Iterator[str]:
    """The rows of the table of maps for a collection."""
    test, draws = draw(name, options.labels, options)
    trial = Trial.open(retriever, test, options.out / test.name)
    start = means(trial.before)
    of_bm25 = {query: trial.evaluator.bm25_run.get(query, {}) for query in trial.evaluator.names}
    measured = evaluate_run(trial.evaluator.asked.qrels, of_bm25, measures=[MEASURE]).means[MEASURE]
    yield f"| {test.name} | BM25 | {measured:.3f} | | | | | | | | |"
    yield f"| {test.name} | 0 | {show(start)} | | | | | {start[1]:.3f} | | |"
    for n, drawn in draws.items():
        rows = []
        for labels in drawn:
            began = time.process_time()
            queries, ridge, change, verdict = trial.adapt(labels)
            seconds, row = time.process_time() - began, means(trial.evaluator.measure(change))
            kept = row[1] if verdict.outcome == "better" else start[1]
            everything = choose_candidates(queries, trial.embeddings)
            change = learn_map(queries, everything, ridge=ridge, with_bm25=True, sides="both")
            row += means(replace(trial.evaluator, sides="both").measure(change))
            in_batch = find_batch(queries, trial.embeddings)
            change = learn_map(queries, in_batch, ridge=RIDGES[0], with_bm25=False)
            row += means(trial.evaluator.measure(change))
            rows.append([*row, kept, verdict.outcome == "better", seconds])
        *shown, share, seconds = np.mean(rows, axis=0)
        n_kept = f"{share * len(rows):.0f} of {len(rows)}"
        yield f"| {test.name} | {n} | {show(shown)} | {n_kept} | {seconds:.0f} |"


def find_batch(queries: JudgedQueries, embeddings: Embeddings) -> Candidates:
    """The passages of all labels."""
    rows = np.unique(pair_up(queries.positives)[1])
    return Candidates(rows, embeddings.vectors(rows), np.zeros(len(rows), dtype=np.float32))


def finetune_rows(name: str, options: argparse.Namespace, retriever: Retriever) -> Iterator[str]:
    """The rows of the table of fine-tuning for a collection."""
    test, draws = draw(name, options.labels, options)
    untouched = Trial.open(retriever, test, options.out / test.name / "untouched")
    yield f"| {test.name} | 0 | {show(means(untouched.before))} |{' |' * 8}"
    for n, drawn in draws.items():
        rows = []
        for seed, labels in zip(options.seeds, drawn, strict=True):
            folder = options.out / test.name / f"{n}-{seed}"
            rows.append(finetune_row(untouched, test, labels, folder, options, seed=seed))
            logging.warning("%s, %d labels, seed %d: %s", test.name, n, seed, show(rows[-1]))
        mean = np.mean(rows, axis=0)
        kept, kept_on_top = (f"{mean[place] * len(rows):.0f} of {len(rows)}" for place in (2, 8))
        cells = [show(mean[:2]), kept, show(mean[3:5]), f"{mean[5]:.0f}", show(mean[6:8])]
        yield f"| {test.name} | {n} | {' | '.join([*cells, kept_on_top])} |"


def finetune_row(
    untouched: Trial,
    test: Collection,
    labels: Collection,
    folder: Path,
    options: argparse.Namespace,
    *,
    seed: int,
) -> list[float]:
    """What is kept of the map; the fine-tuned model, and seconds; what is kept of both."""
    _, _, change, verdict = untouched.adapt(labels)
    row = keep(means(untouched.evaluator.measure(change)), means(untouched.before), verdict)
    collection, began = write_collection(labels, folder / "collection"), time.process_time()
    tuned = finetune(
        encoder=str(untouched.retriever.folder),
        collection=str(collection),
        **yaml.safe_load(Path("configuration/finetune/own-text.yaml").read_text()),
        bf16=options.dtype == "bfloat16",
        seed=seed,
        output_dir=str(folder / "run"),
    )
    seconds = time.process_time() - began
    trial = Trial.open(Retriever(tuned, dtype=options.dtype), test, folder / "vectors")
    after = means(trial.before)
    _, _, change, verdict = trial.adapt(labels)
    return [*row, *after, seconds, *keep(means(trial.evaluator.measure(change)), after, verdict)]


def keep(after: list[float], before: list[float], verdict: Verdict) -> list[float]:
    """The figures of what the verdict keeps, alone and in a hybrid, and 1 if it is the map."""
    is_kept = verdict.outcome == "better"
    return [*(after if is_kept else before), float(is_kept)]


def write_collection(labels: Collection, folder: Path) -> Path:
    """Write labels and their passages in BEIR's layout."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    passages = labels.passages.select_columns(["_id", "title", "text"])
    passages.to_json(str(folder / "corpus.jsonl"))
    queries = [{"_id": name, "text": text} for name, text in labels.queries.items()]
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)))
    lines = ["query-id\tcorpus-id\tscore"]
    for query, grades in labels.qrels.items():
        lines += [f"{query}\t{passage}\t{grade}" for passage, grade in grades.items()]
    (folder / "qrels" / "train.tsv").write_text("\n".join(lines))
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("collections", nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--test_queries", type=int, default=1000)
    parser.add_argument("--passages", type=int, default=7500)
    parser.add_argument("--dtype", default="float32")

    parser.add_argument("--labels", type=int, nargs="+", default=SIZES)
    parser.add_argument("--finetune", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    retriever = Retriever(options.model, dtype=options.dtype)
    columns = (FINETUNE_COLUMNS if options.finetune else MAP_COLUMNS).split()
    print(f"| {' | '.join(columns)} |\n| --- |{' ---: |' * (len(columns) - 1)}")
    for name in options.collections:
        make = finetune_rows if options.finetune else map_rows
        for row in make(name, options, retriever):
            print(row, flush=True)


if __name__ == "__main__":
    main()
