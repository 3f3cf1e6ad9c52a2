"""Adapt a retriever to a collection without labels, and decide whether to keep the result.

1. Encode the passages, and make queries of them (`queries.py`).
2. Learn where the vectors should move (`vector_map.py`).
3. Judge the map on queries that it was not trained on.
4. Write the start with the map as a module, or, if it is not better, the start as it is; and the
   vectors of what was written, so that a search of the passages encodes nothing.

With fewer than 20 judged dev queries, each kind of made query is judged by a map that was trained
on the other kinds: queries of a kind that was trained on become better even where those of users
become worse.
"""

import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
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
    fingerprint_judgements,
    fingerprint_passages,
)
from modeling_condenser.collection.load import load_collection, load_dev
from modeling_condenser.collection.passages import find_rows
from modeling_condenser.encoding.embeddings import MANIFEST_FILE, Embeddings
from modeling_condenser.encoding.encode import claim_folder, encode_collection
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.evaluation.measures import evaluate_run
from modeling_condenser.evaluation.significance import ALPHA, Comparison, compare
from modeling_condenser.evaluation.verdict import MEASURE, Verdict
from modeling_condenser.files.atomic import atomic_folder, read_json, write_json
from modeling_condenser.files.contract import states_encoding
from modeling_condenser.files.models import find_model_folder, module_paths
from modeling_condenser.files.run_folder import (
    MODEL_FOLDER,
    check_run_folder,
    claim_run_folder,
    describe_machine,
    hash_data,
    record_run,
)
from modeling_condenser.files.settings import parse_settings
from modeling_condenser.finetuning.finetune import open_trainable
from modeling_condenser.mining.hard_negatives import judged_positives
from modeling_condenser.mining.miner import RelevanceScorer
from modeling_condenser.publishing.export import write_repository
from modeling_condenser.publishing.provenance import ADAPTATION, Stage, publishable, read_provenance
from modeling_condenser.retrieval.bm25 import Bm25
from modeling_condenser.retrieval.dense import EMBEDDINGS_FOLDER, search_exact_arrays
from modeling_condenser.retrieval.fusion import FEWEST_QUERIES

from .corpus import describe, read_passages
from .cross_encoder import rescore
from .queries import JUDGED, Query, make_queries, read_queries
from .recipe import AdaptationRecipe, MapSettings
from .vector_map import Teacher, TrainingQueries, apply_map, fit_maps, select_queries

logger = logging.getLogger(__name__)

VERDICT_FILE = "verdict.json"
START_EMBEDDINGS = "start-embeddings"
_DEPTH, _DEV = 100, "dev"
_MOST_ASKED = 300  # made queries of each kind that the verdict is about
_LEAST_ASKED = 50
_NO_JUDGES = (
    f"Nothing is left to judge by: there are no dev queries, or fewer than {FEWEST_QUERIES}, and "
    "made queries of one kind only. Add dev queries to the collection, or a file of queries "
    "(queries)."
)
MARGIN = 0.005  # least gain on made queries that counts, because they are not those of users

Values = dict[str, float]
"""Query -> nDCG@10."""


@dataclass(frozen=True)
class Questions:
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


def adapt(settings: Mapping[str, Any]) -> Adaptation:
    """Adapt a retriever to a corpus; an interrupted call continues from its embeddings.

    Args:
        settings: fields of `AdaptationRecipe` and of `MapSettings`.

    Raises:
        ValueError: a setting, the model or the corpus does not fit, or `output_dir` holds another
            run.
        FileNotFoundError: the model, the corpus or the file of queries does not exist.
    """
    recipe, map_settings = parse_settings(settings, AdaptationRecipe, MapSettings)
    out = Path(recipe.output_dir)
    own = (out / EMBEDDINGS_FOLDER).resolve()
    if recipe.embeddings and Path(recipe.embeddings).resolve() == own:
        raise ValueError(
            f"embeddings is {recipe.embeddings}, where the adapted model's vectors are written: "
            "name the folder of the start's vectors, or leave it out."
        )
    check_run_folder(out, settings)
    start = open_start(recipe)
    teacher = None if recipe.teacher is None else RelevanceScorer(recipe.teacher)
    passages = read_passages(recipe.corpus, start)
    queries, dev = collect_queries(recipe, passages), load_judges(recipe)
    if dev is None and len({query.kind for query in queries}) == 1:
        raise ValueError(_NO_JUDGES)
    data = hash_data(
        start.fingerprint,
        fingerprint_passages(passages),
        repr(queries),
        fingerprint_judgements(dev) if dev else "made queries",
    )
    claim_run_folder(out, settings, data)
    if (out / VERDICT_FILE).is_file():
        logger.info("%s is finished.", out)
        return read_adaptation(out)
    stored = Path(recipe.embeddings or out / START_EMBEDDINGS) / MANIFEST_FILE
    logger.info("%s.", describe(passages, start, seed=recipe.seed, is_encoded=stored.is_file()))
    return _Adapter(recipe, map_settings, start, passages, queries, dev, teacher).run()


def open_start(recipe: AdaptationRecipe) -> Retriever:
    """Open the retriever to adapt, of Transformer and Pooling alone; a ValueError if it cannot be.

    Its vectors are normalised by `Retriever`.
    """
    is_plain = not states_encoding(find_model_folder(recipe.model))
    if is_plain and recipe.pooling is None:
        raise ValueError(
            f"{recipe.model} is a plain encoder, which does not state how it makes vectors: add "
            "--pooling mean, cls or max."
        )
    if recipe.pooling is not None and not is_plain:
        raise ValueError(f"{recipe.model} states its pooling itself: leave out pooling.")
    retriever = open_trainable(recipe.model, recipe.contract_changes, dtype=recipe.dtype)
    if retriever.contract.similarity != "cosine":
        raise ValueError(
            f"{recipe.model} compares by {retriever.contract.similarity}, expected a model that "
            "compares by the cosine. Fine-tune it with similarity: cosine first."
        )
    return retriever


def load_judges(recipe: AdaptationRecipe) -> Collection | None:
    """The dev queries that decide, which are not trained on; None if fewer than 20 are judged."""
    if not isinstance(recipe.corpus, str | Path):
        return None
    trained = load_collection(recipe.corpus, split="train") if recipe.labels else None
    dev = load_dev(recipe.corpus, judged="train" if recipe.labels else "test", reported=trained)
    n_judged = len(dev.qrels) if dev else 0
    if 0 < n_judged < FEWEST_QUERIES:
        logger.info(
            "%d judged dev queries are fewer than %d: made queries decide instead.",
            *(n_judged, FEWEST_QUERIES),
        )
    return dev if n_judged >= FEWEST_QUERIES else None


def collect_queries(recipe: AdaptationRecipe, passages: Dataset) -> list[Query]:
    """The queries to train on: made from the passages, of a file, and judged ones."""
    titles, texts = list(passages["title"]), list(passages["text"])
    queries = make_queries(titles, texts, kinds=recipe.kinds, n=recipe.n_queries, seed=recipe.seed)
    if recipe.queries is not None:
        queries += read_queries(Path(recipe.queries), list(passages["_id"]), texts)
    if recipe.labels:
        judged = load_collection(recipe.corpus, split="train")
        positives = judged_positives(judged)
        rows = find_rows(passages, chain.from_iterable(positives.values()), strict=False)
        labelled = [
            Query(judged.queries[query], rows[passage], JUDGED)
            for query, own in positives.items()
            for passage in own
            if passage in rows
        ]
        if (size := recipe.train_size) is not None:
            if size > len(labelled):
                raise ValueError(
                    f"train_size is {size}, but {recipe.corpus} has {len(labelled)} labelled "
                    "passages in its split train: set a smaller number, or leave it out."
                )
            chosen = np.random.default_rng(recipe.seed).permutation(len(labelled))[:size]
            labelled = [labelled[i] for i in np.sort(chosen)]
        queries += labelled
    if not queries:
        raise ValueError(
            f"No query ({', '.join(recipe.kinds)}) could be made from {recipe.corpus}: passages "
            "have no titles, or fewer than two sentences or ten words. Set other kinds, give "
            "longer passages, or a file of queries (queries)."
        )
    return queries


@dataclass(frozen=True)
class _Adapter:
    """The stages of an adaptation."""

    recipe: AdaptationRecipe
    settings: MapSettings
    start: Retriever
    passages: Dataset
    queries: Sequence[Query]
    dev: Collection | None
    cross_encoder: RelevanceScorer | None

    @cached_property
    def ids(self) -> list[str]:
        return list(self.passages["_id"])

    def run(self) -> Adaptation:
        started, out = time.perf_counter(), Path(self.recipe.output_dir)
        place = self.recipe.embeddings or out / START_EMBEDDINGS
        stored = encode_collection(self.start, self.passages, place)
        vectors = np.concatenate([*stored.blocks()])  # (N, D)
        found = self.start.encode_queries([query.text for query in self.queries])
        teacher = Teacher(Bm25(self.passages), vectors, self.settings.bm25_weight)
        training = select_queries(self.queries, found, teacher)
        logger.info("%d of %d queries are kept.", len(training.queries), len(self.queries))
        if self.cross_encoder is not None:
            training = rescore(training, self.passages, self.cross_encoder)
        matrix, before, after = self.choose_map(training, teacher)
        verdict = self.verdict(after, before)
        is_adapted = verdict.outcome == "better" or self.recipe.keep_adapted
        with atomic_folder(out / MODEL_FOLDER) as folder:
            if is_adapted:
                stage = self.as_stage(verdict, training.queries)
                self.write(folder, [stage], torch.from_numpy(matrix))
            elif self.recipe.pooling is None:
                shutil.copytree(self.start.folder, folder, dirs_exist_ok=True)
            else:  # whose own files do not state it
                self.write(folder)
        self.store_vectors(out, stored, matrix if is_adapted else None)
        facts = {"verdict": verdict.to_dict(), "is_adapted": is_adapted}
        seconds = round(time.perf_counter() - started, 1)
        record = {"seed": self.recipe.seed, "train_seconds": seconds}
        record_run(out, {**facts, **record})
        write_json(out / VERDICT_FILE, facts)
        return Adaptation(out / MODEL_FOLDER, verdict, is_adapted)

    def store_vectors(self, out: Path, stored: Embeddings, matrix: np.ndarray | None) -> None:
        """Write the vectors of the written model, which a search finds beside it."""
        folder = out / EMBEDDINGS_FOLDER
        shutil.rmtree(folder, ignore_errors=True)  # of a killed call
        model = Retriever(out / MODEL_FOLDER, dtype=self.recipe.dtype)
        made = claim_folder(model, self.passages, folder, shard_size=stored.shard_size)
        for shard, block in enumerate(stored.blocks()):
            made.write_shard(shard, block if matrix is None else apply_map(block, matrix))

    def measure(self, passages: np.ndarray, queries: np.ndarray, asked: Questions) -> Values:
        """The figure of each query, from vectors (N, D) and (Q, D)."""
        run = search_exact_arrays(
            passages,
            self.ids,
            query_embeddings=queries,
            query_ids=asked.names,
            depth=min(_DEPTH, len(self.ids)),
        )
        return evaluate_run(asked.qrels, run, measures=[MEASURE]).per_query[MEASURE]

    def verdict(self, after: Values, before: Values) -> Verdict:
        made = (
            f"{len(before)} queries made from passages, of kinds that were not trained on; this is "
            "no evidence for users' queries: add judged dev queries"
        )
        return Verdict(
            compare(after, before, seed=self.recipe.seed),
            measure=MEASURE,
            queries=made if self.dev is None else f"{len(before)} judged dev queries",
            margin=MARGIN if self.dev is None else 0.0,
        )

    def as_stage(self, verdict: Verdict, trained: Sequence[Query]) -> Stage:
        """The adaptation as a stage of the model's provenance."""
        objective = "adapt" if self.cross_encoder is None else "adapt_cross_encoder"
        is_judged = [query.kind == JUDGED for query in trained]
        counts = {"n_passages": len(self.ids), "n_queries": is_judged.count(False)}
        if n_judgements := sum(is_judged):
            counts["n_judgements"] = n_judgements
        run = {**describe_machine(), **counts, "objective": objective, "verdict": str(verdict)}
        settings = {**asdict(self.recipe), **asdict(self.settings)}
        recipe = publishable({"encoder": settings.pop("model"), **settings})
        return Stage(ADAPTATION, recipe, publishable(run))

    def write(
        self, folder: Path, stages: Sequence[Stage] = (), matrix: torch.Tensor | None = None
    ) -> None:
        """Write the start's encoder, followed by a map, with a card if there are new stages."""
        # In float32, whatever the dtype of encoding is.
        start = open_trainable(self.recipe.model, self.recipe.contract_changes)
        transformer: Any = start.model[0]
        folder_of_config = start.folder / module_paths(start.folder)[0]
        precision = AutoConfig.from_pretrained(folder_of_config).dtype or torch.float32
        write_repository(
            folder,
            transformer.model.to(precision),
            transformer.tokenizer,
            start.contract,
            [*read_provenance(start.folder), *stages],
            matrix=matrix,
            with_card=bool(stages),
        )

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
        for kind, asked in self.questions(training).items():
            before |= self.measure(vectors, asked.vectors, asked)
            own = maps if kind == _DEV else fit(training.without(kind))
            for values, matrix in zip(after, own, strict=True):
                moved = apply_map(vectors, matrix), apply_map(asked.vectors, matrix)
                values |= self.measure(*moved, asked)
        best = max(range(len(maps)), key=lambda i: fmean(after[i].values()))
        if not compare(after[best], after[0], seed=self.recipe.seed).p_value < ALPHA:
            best = 0
        logger.info("The scale of the map is %g.", self.settings.scales[best])
        return maps[best], before, after[best]

    def questions(self, training: TrainingQueries) -> dict[str, Questions]:
        """The queries of the verdict: those of the split dev, or else some of each kind."""
        if self.dev is not None:
            vectors = self.start.encode_queries(list(self.dev.queries.values()))
            return {_DEV: Questions(vectors, list(self.dev.queries), self.dev.qrels)}
        found, queries = dict[str, Questions](), training.queries
        for kind in dict.fromkeys(query.kind for query in queries):
            rows = [row for row, query in enumerate(queries) if query.kind == kind]
            if len(rows) < min(_LEAST_ASKED, len(queries)) or len(rows) == len(queries):
                continue
            rows = rows[:_MOST_ASKED]
            names = [f"{kind} {row}" for row in rows]
            own = [self.ids[queries[row].passage] for row in rows]
            qrels = {name: {passage: 1} for name, passage in zip(names, own, strict=True)}
            found[kind] = Questions(training.vectors[rows], names, qrels)
        if not found:
            raise ValueError(_NO_JUDGES)
        return found


def read_adaptation(out: Path) -> Adaptation:
    """Read what an earlier call did in this folder."""
    facts = read_json(out / VERDICT_FILE, {})
    stored = {name: value for name, value in facts["verdict"].items() if name != "outcome"}
    comparison = stored.pop("comparison")
    if comparison["interval"] is not None:
        comparison["interval"] = tuple(comparison["interval"])  # a list in JSON
    verdict = Verdict(Comparison(**comparison), **stored)
    return Adaptation(out / MODEL_FOLDER, verdict, facts["is_adapted"])
