"""Adapt a retriever to a collection without labels, and decide whether to keep the result.

1. Encode the passages, and make queries of them (`queries.py`).
2. Learn where the vectors should move (`vector_map.py`).
3. Judge the map on queries that it was not trained on.
4. Write the start with the map as a module, or, if it is not better, the start as it is; and the
   vectors of what was written, so that a search of the passages encodes nothing.

With fewer than 20 judged dev queries, each kind of made query is judged by a map that was trained
on the other kinds: queries of a kind that was trained on become better even where those of users
become worse. So this verdict is no evidence for the queries of users.
"""

import logging
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoConfig

from modeling_condenser.collection.collection import (
    Collection,
    Qrels,
    find_rows,
    fingerprint_judgements,
    fingerprint_passages,
)
from modeling_condenser.collection.load import load_collection, load_dev, load_passages
from modeling_condenser.encoding.embeddings import Embeddings, claim_folder, encode_collection
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.evaluation.measures import ALPHA, Comparison, compare, evaluate_run
from modeling_condenser.evaluation.verdict import MEASURE, Verdict
from modeling_condenser.files.models import module_paths
from modeling_condenser.files.run_folder import (
    MODEL_FOLDER,
    atomic_folder,
    check_run_folder,
    claim_run_folder,
    describe_machine,
    hash_data,
    read_json,
    record_run,
    write_json,
)
from modeling_condenser.files.settings import parse_settings
from modeling_condenser.finetuning.finetune import open_trainable
from modeling_condenser.finetuning.hard_negatives import judged_positives
from modeling_condenser.publishing.export import write_repository
from modeling_condenser.publishing.provenance import ADAPTATION, Stage, publishable, read_provenance
from modeling_condenser.retrieval.bm25 import Bm25
from modeling_condenser.retrieval.dense import EMBEDDINGS_FOLDER, search_exact_arrays
from modeling_condenser.retrieval.runs import FEWEST_QUERIES

from .queries import JUDGED, Query, make_queries, read_queries
from .recipe import AdaptationRecipe, MapSettings
from .vector_map import Teacher, TrainingQueries, apply_map, fit_maps, select_queries

logger = logging.getLogger(__name__)

VERDICT_FILE = "verdict.json"
START_EMBEDDINGS = "start-embeddings"
LEAST_PASSAGES = 64
MARGIN = 0.005  # least gain on made queries that counts, because they are not those of users
_DEPTH, _DEV = 100, "dev"
_MOST_MADE, _LEAST_MADE = 300, 50  # queries of each kind that the verdict is about
_NO_VERDICT = (
    f"Nothing decides whether the result is better: there are no dev queries, or fewer than "
    f"{FEWEST_QUERIES}, and made queries of one kind only. Add dev queries, or a file of queries."
)

Values = dict[str, float]
"""Query -> nDCG@10."""


@dataclass(frozen=True)
class VerdictQueries:
    """Queries of the verdict: their vectors (Q, D), names, and judgements."""

    vectors: np.ndarray
    names: Sequence[str]
    qrels: Qrels


@dataclass(frozen=True)
class Adaptation:
    """What `adapt` did: the folder of the written model, and the verdict."""

    model: Path
    verdict: Verdict
    is_adapted: bool  # whether the written model is the adapted one, or the start


def adapt(**settings: Any) -> Adaptation:
    """Adapt a retriever to the passages of a collection; a finished folder is left unchanged.

    Args:
        **settings: fields of `AdaptationRecipe` and of `MapSettings`.

    Raises:
        ValueError: a setting, the model or the collection does not fit, or `output_dir` holds
            another run.
        FileNotFoundError: the model, the collection or the file of queries does not exist.
    """
    recipe, map_settings = parse_settings(settings, AdaptationRecipe, MapSettings)
    out = Path(recipe.output_dir)
    check_run_folder(out, settings)
    start = open_start(recipe)
    passages = load_passages(recipe.corpus)
    n_different = len(set(zip(passages["title"], passages["text"], strict=True)))
    if n_different < LEAST_PASSAGES:
        raise ValueError(
            f"{recipe.corpus} has {n_different} different passages; at least {LEAST_PASSAGES} are "
            "needed to learn anything: give more text."
        )
    queries, dev = collect_queries(recipe, passages), load_dev_queries(recipe)
    if dev is None and len({query.kind for query in queries}) == 1:
        raise ValueError(_NO_VERDICT)
    data = hash_data(
        start.fingerprint,
        fingerprint_passages(passages),
        repr(queries),
        fingerprint_judgements(dev) if dev else "made queries",
    )
    claim_run_folder(out, settings, data)
    if not (out / VERDICT_FILE).is_file():
        return _Adapter(recipe, map_settings, start, passages, queries, dev).run()
    logger.info("%s is finished.", out)
    return read_adaptation(out)


def open_start(recipe: AdaptationRecipe) -> Retriever:
    """Open the retriever to adapt, of Transformer and Pooling alone; a ValueError if it cannot be.

    Its vectors are normalised by `Retriever`.
    """
    retriever = open_trainable(recipe.model, dtype=recipe.dtype)
    if retriever.contract.similarity != "cosine":
        raise ValueError(
            f"{recipe.model} compares by {retriever.contract.similarity}, expected a model that "
            "compares by the cosine. Fine-tune it with similarity: cosine first."
        )
    return retriever


def load_dev_queries(recipe: AdaptationRecipe) -> Collection | None:
    """The dev queries that decide, which are not trained on; None if fewer than 20 are judged."""
    trained = load_collection(recipe.corpus, split="train") if recipe.labels else None
    dev = load_dev(recipe.corpus, judged="train" if recipe.labels else "test", reported=trained)
    if dev is None or len(dev.qrels) >= FEWEST_QUERIES:
        return dev
    logger.info(
        "%d judged dev queries are fewer than %d: made queries decide instead.",
        *(len(dev.qrels), FEWEST_QUERIES),
    )
    return None


def collect_queries(recipe: AdaptationRecipe, passages: Dataset) -> list[Query]:
    """The queries to train on: made from the passages, of a file, and judged ones."""
    titles, texts = list(passages["title"]), list(passages["text"])
    queries = make_queries(titles, texts, kinds=recipe.kinds, n=recipe.n_queries, seed=recipe.seed)
    if recipe.queries is not None:
        queries += read_queries(Path(recipe.queries), list(passages["_id"]))
    if recipe.labels:
        queries += _judged_queries(recipe, passages)
    if not queries:
        raise ValueError(
            f"No query ({', '.join(recipe.kinds)}) could be made from {recipe.corpus}: set other "
            "kinds, or give a file of queries (queries)."
        )
    return queries


def _judged_queries(recipe: AdaptationRecipe, passages: Dataset) -> list[Query]:
    """The queries of the split train, once for each relevant passage."""
    judged = load_collection(recipe.corpus, split="train")
    relevant = judged_positives(judged)
    rows = find_rows(passages, chain.from_iterable(relevant.values()))
    queries = []
    for query_id, positives in relevant.items():
        for passage_id in positives:
            queries.append(Query(judged.queries[query_id], rows[passage_id], JUDGED))
    if recipe.train_size is None:
        return queries
    if recipe.train_size > len(queries):
        raise ValueError(
            f"train_size is {recipe.train_size}, but {recipe.corpus} has {len(queries)} labelled "
            "passages in its split train: set a smaller number, or leave it out."
        )
    order = np.random.default_rng(recipe.seed).permutation(len(queries))
    return [queries[i] for i in np.sort(order[: recipe.train_size])]


@dataclass(frozen=True)
class _Adapter:
    """The stages of an adaptation."""

    recipe: AdaptationRecipe
    settings: MapSettings
    start: Retriever
    passages: Dataset
    queries: Sequence[Query]
    dev: Collection | None

    def run(self) -> Adaptation:
        started, out = time.perf_counter(), Path(self.recipe.output_dir)
        place = self.recipe.embeddings or out / START_EMBEDDINGS
        stored = encode_collection(self.start, self.passages, place)
        vectors = np.concatenate([*stored.blocks()])  # (N, D)
        query_vectors = self.start.encode_queries([query.text for query in self.queries])
        teacher = Teacher(Bm25(self.passages), vectors, self.settings.bm25_weight)
        training = select_queries(self.queries, query_vectors, teacher)
        logger.info("%d of %d queries are kept.", len(training.queries), len(self.queries))
        matrix, before, after = self.choose_map(training, teacher)
        verdict = self.verdict(after, before)
        is_adapted = verdict.outcome == "better" or self.recipe.keep_adapted
        with atomic_folder(out / MODEL_FOLDER) as folder:
            if is_adapted:
                self.write(folder, matrix, self.as_stage(verdict, training.queries))
            else:
                shutil.copytree(self.start.folder, folder, dirs_exist_ok=True)
        self.store_vectors(out, stored, matrix if is_adapted else None)
        facts = {"verdict": verdict.to_dict(), "is_adapted": is_adapted}
        seconds = round(time.perf_counter() - started, 1)
        record_run(out, {**facts, "seed": self.recipe.seed, "train_seconds": seconds})
        write_json(out / VERDICT_FILE, facts)
        return Adaptation(out / MODEL_FOLDER, verdict, is_adapted)

    def choose_map(
        self, training: TrainingQueries, teacher: Teacher
    ) -> tuple[np.ndarray, Values, Values]:
        """The map that is best, the start's figures, and those of the map.

        It is that of the first scale, unless another is significantly better. The figures are of
        dev queries, or without them of each kind of query, by maps that were trained on the other
        kinds.
        """
        fit = partial(fit_maps, teacher=teacher, settings=self.settings, seed=self.recipe.seed)
        maps, vectors = fit(training), teacher.passages
        before, after = dict[str, float](), [dict[str, float]() for _ in maps]
        for kind, queries in self.verdict_queries(training).items():
            before |= self.measure(vectors, queries.vectors, queries)
            maps_of_others = maps if kind == _DEV else fit(training.without(kind))
            for values, matrix in zip(after, maps_of_others, strict=True):
                moved = apply_map(vectors, matrix), apply_map(queries.vectors, matrix)
                values |= self.measure(*moved, queries)
        best = max(range(len(maps)), key=lambda i: fmean(after[i].values()))
        if not compare(after[best], after[0], seed=self.recipe.seed).p_value < ALPHA:
            best = 0
        logger.info("The scale of the map is %g.", self.settings.scales[best])
        return maps[best], before, after[best]

    def verdict_queries(self, training: TrainingQueries) -> dict[str, VerdictQueries]:
        """The queries of the verdict: those of the split dev, or else some of each kind."""
        if self.dev is not None:
            vectors = self.start.encode_queries(list(self.dev.queries.values()))
            return {_DEV: VerdictQueries(vectors, list(self.dev.queries), self.dev.qrels)}
        ids, queries = list(self.passages["_id"]), training.queries
        chosen: dict[str, VerdictQueries] = {}
        for kind in dict.fromkeys(query.kind for query in queries):
            rows = [row for row, query in enumerate(queries) if query.kind == kind]
            if len(rows) < min(_LEAST_MADE, len(queries)) or len(rows) == len(queries):
                continue
            rows = rows[:_MOST_MADE]
            qrels = {f"{kind} {row}": {ids[queries[row].passage]: 1} for row in rows}
            chosen[kind] = VerdictQueries(training.vectors[rows], list(qrels), qrels)
        if not chosen:
            raise ValueError(_NO_VERDICT)
        return chosen

    def measure(self, passages: np.ndarray, vectors: np.ndarray, queries: VerdictQueries) -> Values:
        """The figure of each query, from vectors (N, D) and (Q, D)."""
        run = search_exact_arrays(
            passages,
            list(self.passages["_id"]),
            query_embeddings=vectors,
            query_ids=queries.names,
            depth=min(_DEPTH, len(passages)),
        )
        return evaluate_run(queries.qrels, run, measures=[MEASURE]).per_query[MEASURE]

    def verdict(self, after: Values, before: Values) -> Verdict:
        queries = f"{len(before)} judged dev queries"
        if self.dev is None:
            queries = (
                f"{len(before)} queries made from passages, of kinds that were not trained on; "
                "this is no evidence for users' queries: add judged dev queries"
            )
        return Verdict(
            compare(after, before, seed=self.recipe.seed),
            measure=MEASURE,
            queries=queries,
            margin=MARGIN if self.dev is None else 0.0,
        )

    def as_stage(self, verdict: Verdict, trained: Sequence[Query]) -> Stage:
        """The adaptation as a stage of the model's provenance."""
        n_judged = sum(query.kind == JUDGED for query in trained)
        counts = {"n_passages": len(self.passages), "n_queries": len(trained) - n_judged}
        if n_judged:
            counts["n_judgements"] = n_judged
        run = {**describe_machine(), **counts, "objective": "adapt", "verdict": str(verdict)}
        settings = {**asdict(self.recipe), **asdict(self.settings)}
        recipe = publishable({"encoder": settings.pop("model"), **settings})
        return Stage(ADAPTATION, recipe, publishable(run))

    def write(self, folder: Path, matrix: np.ndarray, stage: Stage) -> None:
        """Write the start's encoder, followed by the map."""
        start = open_trainable(self.recipe.model)  # in float32, whatever the dtype of encoding is
        transformer: Any = start.model[0]
        folder_of_config = start.folder / module_paths(start.folder)[0]
        precision = AutoConfig.from_pretrained(folder_of_config).dtype or torch.float32
        write_repository(
            folder,
            transformer.model.to(precision),
            transformer.tokenizer,
            start.contract,
            [*read_provenance(start.folder), stage],
            matrix=torch.from_numpy(matrix),
        )

    def store_vectors(self, out: Path, stored: Embeddings, matrix: np.ndarray | None) -> None:
        """Write the vectors of the written model, which a search finds beside it."""
        folder = out / EMBEDDINGS_FOLDER
        shutil.rmtree(folder, ignore_errors=True)  # of a killed call
        model = Retriever(out / MODEL_FOLDER, dtype=self.recipe.dtype)
        embeddings = claim_folder(model, self.passages, folder, shard_size=stored.shard_size)
        for shard, block in enumerate(stored.blocks()):
            moved = block if matrix is None else apply_map(block, matrix)
            embeddings.write_shard(shard, moved)


def read_adaptation(out: Path) -> Adaptation:
    """Read what an earlier call did in this folder."""
    facts = read_json(out / VERDICT_FILE, {})
    verdict = dict(facts["verdict"])
    del verdict["outcome"]  # which follows from the figures
    comparison = verdict.pop("comparison")
    if comparison["interval"] is not None:
        comparison["interval"] = tuple(comparison["interval"])  # a list in JSON
    return Adaptation(
        out / MODEL_FOLDER, Verdict(Comparison(**comparison), **verdict), facts["is_adapted"]
    )
