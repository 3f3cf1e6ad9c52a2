"""Adapt a retriever's query vectors to a collection by judged queries, if they prove it.

1. Encode the passages once, or take the vectors that are stored.
2. Cross-validate maps over all judged queries (`cross_validation.py`).
3. Learn the map with the chosen ridge from all of them (`query_map.py`); dev queries judge it.
4. Write the start with the map in the route of queries, so that passages have the start's vectors,
   bit for bit; or with the map on both sides. If it is not better, write the start as it is.
"""

import logging
import shutil
import time
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import compress
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from sentence_transformers.base.modules import Module
from sentence_transformers.sentence_transformer.modules import Dense, Dropout, Router

from modeling_condenser.collection.collection import (
    Collection,
    fingerprint_judgements,
    fingerprint_passages,
    keep_queries,
)
from modeling_condenser.collection.load import load_collection, load_dev, name_collection
from modeling_condenser.encoding.embeddings import encode_collection
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.evaluation.measures import compare
from modeling_condenser.evaluation.verdict import MEASURE, Verdict, read_verdict
from modeling_condenser.files.models import (
    LENGTHS,
    MAP_FOLDER,
    MODULES_FILE,
    QUERY_FOLDER,
    Dtype,
    EncodingContract,
    find_model_folder,
    read_contract,
    refuse_links,
    states_encoding,
)
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
from modeling_condenser.finetuning.hard_negatives import judged_positives
from modeling_condenser.publishing.card import CARD_FILE, read_start_metadata, write_card
from modeling_condenser.publishing.export import add_records
from modeling_condenser.publishing.provenance import (
    ADAPTATION,
    RESULTS_FILE,
    describe_stage,
    read_start,
)
from modeling_condenser.retrieval.bm25 import Bm25
from modeling_condenser.retrieval.runs import DEFAULT, FEWEST_QUERIES
from modeling_condenser.retrieval.systems import (
    EMBEDDINGS_FOLDER,
    HYBRID,
    System,
    find_vectors,
    link,
    link_vectors,
)

from .cross_validation import (
    Figures,
    MapEvaluator,
    Values,
    cross_validate,
    find_named,
    group_by_passage,
    group_questions,
    make_folds,
    merge_copies,
)
from .query_map import JudgedQueries, choose_candidates, learn_map
from .recipe import AdaptationRecipe, Sides, Use

logger = logging.getLogger(__name__)

VERDICT_FILE = "verdict.json"
RIDGES = (8.0, 32.0)
_VERDICT_NAMES = ("hybrid", "alone", "named", "others", "dev hybrid", "dev alone")
MOST_QUERIES = 2_000  # that are learned from


@dataclass(frozen=True)
class Adaptation:
    """What `adapt` did.

    Attributes:
        model: folder of the written model.
        is_adapted: whether it is the adapted one, or the start.
        use: what the map was learned for, which decides.
        sides: what it moves; if both, passages must be encoded again.
        verdicts: "hybrid" and "alone", of the cross-validation; "named", of questions that share a
            passage with others, and "others", of all, by maps of questions that share none with
            them; "dev hybrid" and "dev alone", of dev queries, if there are 20.
        dtype: that passages were encoded in.
    """

    model: Path
    is_adapted: bool
    use: Use
    sides: Sides
    verdicts: Mapping[str, Verdict]
    dtype: Dtype = "float32"

    @property
    def system(self) -> str:
        """What searches better by the judged queries: the written model with BM25, or alone.

        It is the model alone if that is its use.

        The fusion is that of the verdicts: dev queries that were learned from must not choose one.
        """
        hybrid, alone = (self.verdicts[use].comparison for use in ("hybrid", "alone"))
        is_hybrid_better = hybrid.mean_baseline >= alone.mean_baseline
        if self.is_adapted:
            is_hybrid_better = hybrid.mean_system >= alone.mean_system
        settings = {} if self.dtype == "float32" else {"dtype": self.dtype}
        system = System(str(self.model), settings)
        if is_hybrid_better and self.use == "hybrid":
            fusion = {"fusion": str(DEFAULT.weight)}
            system = System(f"{HYBRID}{self.model}", {**settings, **fusion})
        return system.text

    def __str__(self) -> str:
        return "\n".join(f"{name}: {verdict}" for name, verdict in self.verdicts.items())


def adapt(**settings: Any) -> Adaptation:
    """Adapt a retriever to a collection by its judged queries; a finished folder is left unchanged.

    Args:
        **settings: fields of `AdaptationRecipe`.

    Raises:
        ValueError: a setting, the model or the collection does not fit, fewer than 20 queries are
            judged, or `output_dir` holds another run.
        FileNotFoundError: the model or the collection does not exist.
    """
    [recipe] = parse_settings(settings, AdaptationRecipe)
    out = Path(recipe.output_dir)
    check_run_folder(out, settings)
    labels, start = load_labels(recipe), open_start(recipe)
    dev = None
    if "dev" not in recipe.splits:
        dev = load_dev(recipe.collection, judged=recipe.splits[0], reported=labels)
        dev = _without_copies(dev, labels) if dev else None
        if dev is not None and _count_questions(dev) < FEWEST_QUERIES:
            dev = None
    judgements = [fingerprint_judgements(each) for each in (labels, dev) if each]
    data = hash_data(start.fingerprint, fingerprint_passages(labels.passages), *judgements)
    claim_run_folder(out, settings, data)
    if (out / VERDICT_FILE).is_file():
        logger.info("%s is finished.", out)
    else:
        _learn_and_write(recipe, start, labels, dev)
    facts = read_json(out / VERDICT_FILE, {})
    stored = facts["verdicts"]  # JSON has them in another order
    verdicts = {name: read_verdict(stored[name]) for name in _VERDICT_NAMES if name in stored}
    return Adaptation(
        out / MODEL_FOLDER, facts["is_adapted"], recipe.use, recipe.sides, verdicts, recipe.dtype
    )


def _without_copies(dev: Collection, labels: Collection) -> Collection | None:
    """Leave out dev queries of the same words as a label; None if no query is left."""
    groups = group_questions([*labels.queries.values(), *dev.queries.values()])
    of_labels, of_dev = np.split(groups, [len(labels.queries)])
    is_new = ~np.isin(of_dev, of_labels)
    return keep_queries(dev, set(compress(dev.queries, is_new))) if is_new.any() else None


def _count_questions(collection: Collection) -> int:
    """How many different questions have a relevant passage."""
    texts = [collection.queries[name] for name in judged_positives(collection)]
    return len(np.unique(group_questions(texts)))


def open_start(recipe: AdaptationRecipe) -> Retriever:
    """Open the retriever to adapt; a ValueError if it cannot be adapted."""
    if not states_encoding(find_model_folder(recipe.model)):
        raise ValueError(
            f"{recipe.model} does not state how its vectors are made: adapt a model of "
            "sentence-transformers, or an export of this package."
        )
    start = Retriever(recipe.model, dtype=recipe.dtype)
    if start.contract.similarity != "cosine":
        raise ValueError(
            f"{recipe.model} compares by {start.contract.similarity}, expected a model that "
            "compares by the cosine. Fine-tune it with similarity: cosine first."
        )
    if any((start.folder / name).exists() for name in (QUERY_FOLDER, MAP_FOLDER)):
        raise ValueError(f"{recipe.model} is adapted already: adapt its start, with all labels.")
    if missing := {name for name in LENGTHS if name not in read_contract(start.folder)}:
        raise ValueError(  # the card needs all fields
            f"{recipe.model} does not state {' and '.join(sorted(missing))}: set max_seq_length in "
            "its sentence_bert_config.json."
        )
    EncodingContract.load(start.folder)
    refuse_links(start.folder)
    return start


def load_labels(recipe: AdaptationRecipe) -> Collection:
    """The judged queries to learn from; a ValueError if they are fewer than 20."""
    parts, problem = [], ""
    for split in recipe.splits:
        try:
            parts.append(load_collection(recipe.collection, split=split))
        except (ValueError, FileNotFoundError) as error:
            problem = f" ({error})"
            logger.warning("The split %s is left out: %s", split, error)
    texts = dict(ChainMap(*(part.queries for part in parts)))
    names = list(dict.fromkeys(name for part in parts for name in judged_positives(part)))
    n_questions = len(np.unique(group_questions([texts[name] for name in names])))
    if n_questions < FEWEST_QUERIES:
        raise ValueError(
            f"{recipe.collection} has {n_questions} judged queries in {', '.join(recipe.splits)}"
            f"{problem}; at least {FEWEST_QUERIES} are needed, to learn from and to judge, and "
            "100 are better. Label questions (`condenser collect FILES OUT --labels QUESTIONS`), "
            "or name other splits."
        )
    if (recipe.train_size or 0) > len(names):
        raise ValueError(
            f"train_size is {recipe.train_size}, but {recipe.collection} has {len(names)} judged "
            "queries."
        )
    n_kept = min(recipe.train_size or MOST_QUERIES, MOST_QUERIES)
    if n_kept < len(names):
        logger.info("%d of %d judged queries are used, at random.", n_kept, len(names))
    order = np.random.default_rng(recipe.seed).permutation(names)
    qrels: dict[str, dict[str, int]] = {name: {} for name in texts}
    for part in reversed(parts):
        for name, grades in part.qrels.items():
            qrels[name] |= grades
    labels = replace(
        parts[0],
        queries=texts,
        qrels=qrels,
        absent=frozenset().union(*(part.absent for part in parts)),
    )
    return keep_queries(labels, set(order[:n_kept].tolist()))


def _learn_and_write(
    recipe: AdaptationRecipe, start: Retriever, labels: Collection, dev: Collection | None
) -> None:
    """Learn a map, judge it, and write model and verdicts."""
    started, out = time.perf_counter(), Path(recipe.output_dir)
    place = Path(recipe.embeddings or out / EMBEDDINGS_FOLDER)
    if not place.exists():
        stored = find_vectors(start, name_collection(recipe.collection))
        if stored:
            link_vectors(stored, start, labels.passages, place)
    embeddings, bm25 = encode_collection(start, labels.passages, place), Bm25(labels.passages)
    evaluator = MapEvaluator.open(labels, start, embeddings, bm25, recipe.sides)
    queries = evaluator.queries()
    ridge, verdicts = compare_by_folds(evaluator, queries, use=recipe.use, seed=recipe.seed)
    change = learn_map(
        queries,
        choose_candidates(queries, embeddings),
        ridge=ridge,
        with_bm25=recipe.use == "hybrid",
        sides=recipe.sides,
    )
    if dev is not None:
        evaluator = MapEvaluator.open(dev, start, embeddings, bm25, recipe.sides)
        after, before = evaluator.measure(change), evaluator.measure(None)
        queries_of_dev = evaluator.asked.queries
        for use, values in after.items():
            verdict = _compare(values, before[use], queries_of_dev, "dev queries", recipe.seed)
            verdicts[f"dev {use}"] = verdict
    is_adapted = is_better(verdicts, recipe.use)
    with atomic_folder(out / MODEL_FOLDER) as folder:
        if is_adapted:
            _write_adapted(folder, change, recipe, start.folder, labels, verdicts)
        else:
            shutil.copytree(start.folder, folder, dirs_exist_ok=True)
    if recipe.embeddings and recipe.sides == "query":
        with atomic_folder(out / EMBEDDINGS_FOLDER) as folder:
            shutil.copytree(recipe.embeddings, folder, copy_function=link, dirs_exist_ok=True)
    written = {name: verdict.to_dict() for name, verdict in verdicts.items()}
    facts = {"is_adapted": is_adapted, "ridge": ridge, "verdicts": written}
    seconds = round(time.perf_counter() - started, 1)
    record_run(out, {**facts, "seed": recipe.seed, "train_seconds": seconds})
    write_json(out / VERDICT_FILE, facts)


def compare_by_folds(
    evaluator: MapEvaluator, queries: JudgedQueries, *, use: Use, seed: int
) -> tuple[float, dict[str, Verdict]]:
    """Choose the ridge by cross-validation, and judge it; see `Adaptation.verdicts`."""
    before, texts = evaluator.measure(None), evaluator.asked.queries

    def gains(figures: Sequence[Figures]) -> list[float]:
        return [mean_gain(after[use], before[use]) for after in figures]

    groups = group_questions(list(texts.values()))
    folds = make_folds(groups, seed=seed)
    by_question = cross_validate(evaluator, queries, folds, RIDGES, use=use)
    by_passage = by_question
    is_named = find_named(folds, queries)
    folds_by_passage = make_folds(group_by_passage(groups, queries), seed=seed)
    is_split = bool(np.bincount(folds_by_passage).max() <= len(texts) / 2)
    if is_named.any() and is_split:
        by_passage = cross_validate(evaluator, queries, folds_by_passage, RIDGES, use=use)
    elif is_named.any():
        logger.warning(
            "More than half of the questions are tied by passages that they share: there is no "
            "line `others`, and only dev queries can show that the map is better."
        )
    best = choose_ridge(gains(by_question), gains(by_passage))
    after, after_by_passage = by_question[best], by_passage[best]
    asked = "judged queries, cross-validated"
    verdicts: dict[str, Verdict] = {
        each: _compare(after[each], before[each], texts, asked, seed) for each in before
    }
    if is_named.any():
        named = [name for name, known in zip(evaluator.names, is_named, strict=True) if known]
        after_named, before_named = (
            {name: figures[use][name] for name in named} for figures in (after, before)
        )
        asked = "of these, of whose passages others name one"
        verdicts["named"] = _compare(after_named, before_named, texts, asked, seed)
    if is_named.any() and is_split:
        asked = "judged queries, each by a map of queries that name none of its passages"
        verdicts["others"] = _compare(after_by_passage[use], before[use], texts, asked, seed)
    return RIDGES[best], verdicts


def _compare(
    after: Values, before: Values, texts: Mapping[str, str], queries: str, seed: int
) -> Verdict:
    merged, merged_before = merge_copies(after, texts), merge_copies(before, texts)
    comparison = compare(merged, merged_before, seed=seed)
    return Verdict(comparison, measure=MEASURE, queries=f"{len(merged)} {queries}")


def choose_ridge(gains: Sequence[float], gains_of_others: Sequence[float]) -> int:
    """The place of the ridge with the greatest gain, among those with which others lose nothing.

    If they lose with every one, it is that with which they lose least.
    """
    kept = [i for i, gain in enumerate(gains_of_others) if gain >= 0]
    return max(kept, key=lambda i: gains[i]) if kept else int(np.argmax(gains_of_others))


def is_better(verdicts: Mapping[str, Verdict], use: Use) -> bool:
    """Whether cross-validation or dev queries say better, and none shows a loss.

    A loss of others, whose passages no label names, counts if it is significant; where questions
    share passages and others cannot be judged, dev queries must say better. For a hybrid, no map is
    kept if the start alone is better still.
    """
    hybrid, alone = (verdicts[each].comparison for each in ("hybrid", "alone"))
    best = max(hybrid.mean_system, alone.mean_system)
    if use == "hybrid" and best < alone.mean_baseline:
        return False
    if "others" in verdicts and verdicts["others"].outcome == "worse":
        return False
    deciding = [verdicts[name] for name in (use, f"dev {use}") if name in verdicts]
    is_loss = any(verdict.comparison.difference < 0 for verdict in deciding)
    if "named" in verdicts and "others" not in verdicts:
        deciding = deciding[1:]
    return not is_loss and any(verdict.outcome == "better" for verdict in deciding)


def _write_adapted(
    folder: Path,
    change: np.ndarray,
    recipe: AdaptationRecipe,
    start: Path,
    labels: Collection,
    verdicts: Mapping[str, Verdict],
) -> None:
    """Write the start with the map, its provenance and its card."""
    left_out = shutil.ignore_patterns(CARD_FILE, RESULTS_FILE, ".*")
    shutil.copytree(start, folder, dirs_exist_ok=True, ignore=left_out)
    write_map(folder, change, recipe.sides)
    search = "in hybrid search with BM25" if recipe.use == "hybrid" else "in search without BM25"
    deciding = [
        str(verdicts[name]) for name in (recipe.use, f"dev {recipe.use}") if name in verdicts
    ]
    run = {
        **describe_machine(),
        "objective": "adapt" if recipe.sides == "query" else "adapt_both",
        "n_passages": len(labels.passages),
        "n_queries": len(labels.queries),
        "verdict": f"{search}, {'; '.join(deciding)}",
    }
    settings = asdict(recipe)
    settings["encoder"] = settings.pop("model")
    stage = describe_stage(ADAPTATION, settings, run, log=[])
    add_records(folder, [*read_start(start), stage])
    of_start = read_start_metadata(start)
    inherited = {"license", "license_name", "license_link", "language"} & of_start.keys()
    write_card(folder, metadata={name: of_start[name] for name in inherited})


def write_map(folder: Path, change: np.ndarray, sides: Sides) -> None:
    """Add a map to a sentence-transformers model, before normalisation; for queries in a router.

    The list of the start's modules is kept in it, because vectors of passages depend on it alone.
    """
    size = len(change)
    matrix = torch.eye(size) + torch.from_numpy(change)
    module: Module = Dense(size, size, bias=False, activation_function=None, init_weight=matrix)
    name = MAP_FOLDER
    if sides == "query":
        module, name = Router.for_query_document([module], [Dropout(0.0)]), QUERY_FOLDER
    (folder / name).mkdir()
    module.save(str(folder / name))
    if sides == "query":
        shutil.copyfile(folder / MODULES_FILE, folder / name / MODULES_FILE)
    modules = read_json(folder / MODULES_FILE, [])
    place = len(modules) - modules[-1]["type"].endswith(".Normalize")
    kind = f"{type(module).__module__}.{type(module).__name__}"
    modules.insert(place, {"path": name, "type": kind})
    listed = [{**each, "idx": i, "name": str(i)} for i, each in enumerate(modules)]
    write_json(folder / MODULES_FILE, listed)


def mean_gain(after: Values, before: Values) -> float:
    return fmean(after[name] - before[name] for name in before)
