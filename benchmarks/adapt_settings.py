"""Settings of the map of `adapt`, compared on dev queries (docs/results/published-models.md).

    python -m benchmarks.adapt_settings MODEL OUT COLLECTION...

Prints the change of nDCG@10 by each setting, in the mean of `--seeds` draws of labels from the
split train, measured on queries of train that are drawn for another seed: the passages are those of
`benchmarks.few_labels`, whose OUT serves here, too. The name of a setting says what differs from
that of `adapt`. Seconds are of processor time.
"""

import argparse
import logging
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from torch.nn import functional as F

from modeling_condenser.adaptation.adapt import mean_gain
from modeling_condenser.adaptation.cross_validation import MapEvaluator, make_folds
from modeling_condenser.adaptation.query_map import (
    Candidates,
    JudgedQueries,
    choose_candidates,
    ranking_losses,
)
from modeling_condenser.adaptation.recipe import Sides
from modeling_condenser.collection.collection import Collection, find_rows, keep_queries
from modeling_condenser.collection.load import load_collection
from modeling_condenser.encoding.embeddings import encode_collection
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.retrieval.bm25 import Bm25


@dataclass(frozen=True)
class Setting:
    """How a map is learned; the defaults are those of `adapt`.

    Attributes:
        sides: what is moved: queries, or both queries and passages, by the same map.
        cosine, bm25: weights in the softmax.
        steps: of L-BFGS.
        rank: of the map.
        mask: unlabelled passages with a greater cosine with a relevant one are left out.
        averaged: the map is the mean of five, each learned from four fifths of the labels.
    """

    sides: Sides = "query"
    cosine: float = 20
    bm25: float = 2
    steps: int = 8
    rank: int | None = None
    mask: float | None = None
    averaged: bool = False


SIZES = (32, 128, 512)  # numbers of labels

SETTINGS = {
    "as adapt": Setting(),
    "5 steps": Setting(steps=5),
    "15 steps": Setting(steps=15),
    "40 steps": Setting(steps=40),
    "rank 16, 15 steps": Setting(rank=16, steps=15),
    "cosine times 10": Setting(cosine=10),
    "cosine times 40": Setting(cosine=40),
    "without BM25": Setting(bm25=0),
    "BM25 times 1": Setting(bm25=1),
    "BM25 times 3": Setting(bm25=3),
    "near-copies above .8 masked": Setting(mask=0.8),
    "mean of five maps": Setting(averaged=True),
    "both sides": Setting(sides="both"),
    "both sides, 5 steps": Setting(sides="both", steps=5),
    "both sides, 15 steps": Setting(sides="both", steps=15),
}


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


def learn(
    queries: JudgedQueries, candidates: Candidates, setting: Setting, *, ridge: float
) -> np.ndarray:
    """Learn A, (D, D), as `learn_map` does, with a setting."""
    size = queries.vectors.shape[1]
    if setting.averaged:
        folds, one = make_folds(np.arange(len(queries.vectors))), replace(setting, averaged=False)
        parts = [queries.select(np.flatnonzero(folds != fold)) for fold in np.unique(folds)]
        return np.mean([learn(part, candidates, one, ridge=ridge) for part in parts], axis=0)
    if setting.mask:
        queries = mask_near_copies(queries, candidates, setting.mask)
    # The library's weights are 20 and 2.
    queries = replace(queries, bm25_scores=queries.bm25_scores * (setting.bm25 / 2))
    vectors, passages = torch.from_numpy(queries.vectors), torch.from_numpy(candidates.vectors)
    factor = torch.eye(size)
    if setting.rank:
        factor = torch.randn(setting.rank, size, generator=torch.Generator().manual_seed(0))
        factor = factor / size**0.5
    weights = [torch.zeros(size, len(factor), requires_grad=True)]
    if setting.rank:
        weights.append(factor.requires_grad_())
    optimizer = torch.optim.LBFGS(weights, max_iter=setting.steps, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        change = weights[0] @ weights[1] if setting.rank else weights[0]
        moved = F.normalize(vectors + vectors @ change.T) * (setting.cosine / 20)
        ranked = passages
        if setting.sides == "both":
            ranked = F.normalize(passages + passages @ change.T)
        losses = ranking_losses(moved, ranked, queries, candidates, with_bm25=True)
        loss = losses.mean() + ridge / size * change.square().sum()
        loss.backward()
        return loss.detach()

    optimizer.step(closure)
    change = weights[0] @ weights[1] if setting.rank else weights[0]
    return change.detach().numpy()


def mask_near_copies(queries: JudgedQueries, candidates: Candidates, least: float) -> JudgedQueries:
    """Exclude passages that are near-copies of a relevant one and are not judged themselves."""
    excluded = [set(rows) for rows in queries.excluded]
    for masked, relevant in zip(excluded, queries.positives, strict=True):
        places, _ = candidates.places(np.array(relevant))
        for place in places:
            similar = candidates.vectors @ candidates.vectors[place] > least
            masked |= set(candidates.rows[similar].tolist())
        masked -= set(relevant)
    return replace(queries, excluded=[sorted(rows) for rows in excluded])


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of both benchmarks, which choose the passages."""
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("collections", nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--test_queries", type=int, default=1000)
    parser.add_argument("--passages", type=int, default=7500)
    parser.add_argument("--dtype", default="float32")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_options(parser)
    parser.add_argument("--settings", nargs="+", default=[*SETTINGS], choices=[*SETTINGS])
    parser.add_argument("--ridges", type=float, nargs="+", default=[2, 8, 32])
    parser.add_argument("--labels", type=int, default=128)
    options = parser.parse_args()
    retriever = Retriever(options.model, dtype=options.dtype)
    gains: dict[tuple[str, float], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    seconds: dict[str, list[float]] = defaultdict(list)
    for name in options.collections:
        test, draws = draw(name, SIZES, options)
        embeddings = encode_collection(retriever, test.passages, options.out / test.name)
        bm25 = Bm25(test.passages)
        for seed, labels in enumerate(draws[options.labels]):
            other = draws[SIZES[-1]][seed - 1]
            other = keep_queries(other, other.queries.keys() - labels.queries.keys())
            evaluator = MapEvaluator.open(other, retriever, embeddings, bm25)
            before = evaluator.measure(None)
            queries = MapEvaluator.open(labels, retriever, embeddings, bm25).queries()
            candidates = choose_candidates(queries, embeddings)
            for setting, ridge in product(options.settings, options.ridges):
                began = time.process_time()
                change = learn(queries, candidates, SETTINGS[setting], ridge=ridge)
                seconds[setting].append(time.process_time() - began)
                after = replace(evaluator, sides=SETTINGS[setting].sides).measure(change)
                row = gains[setting, ridge]
                row[test.name].append(mean_gain(after["hybrid"], before["hybrid"]))
                row["alone"].append(mean_gain(after["alone"], before["alone"]))
            logging.warning("%s: a draw is done", test.name)
    names = [name for name in row if name != "alone"]
    print(f"| change in a hybrid | ridge | {' | '.join(names)} | mean | alone, mean | seconds |")
    print(f"| --- | {'---: | ' * (len(names) + 4)}")
    for (setting, ridge), row in gains.items():
        means = [fmean(row[name]) for name in names]
        shown = " | ".join(f"{value:+.3f}" for value in [*means, fmean(means), fmean(row["alone"])])
        print(f"| {setting} | {ridge:g} | {shown} | {fmean(seconds[setting]):.1f} |")


if __name__ == "__main__":
    main()
