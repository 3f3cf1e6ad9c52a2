"""Evaluate systems: search a collection or compare texts, measure, test, and write a report.

<output_dir>/<collection>/embeddings/<system>/              vectors and indices, for all splits
<output_dir>/<collection>/bm25/<settings>/                  BM25's indexes, also those of hybrids
<output_dir>/<collection>/<split>/<system>/run-100.trec     the run; beside it, in JSON, its record
<output_dir>/<collection>/<split>/report.md                 the report; other files are beside it
"""

import json
import logging
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from modeling_condenser.collection.collection import Collection, find_rows, fingerprint_passages
from modeling_condenser.collection.load import load_dev, load_reported
from modeling_condenser.encoding.embeddings import local_device
from modeling_condenser.files.run_folder import hash_data, read_json, write_json
from modeling_condenser.files.settings import check_least, parse_settings
from modeling_condenser.retrieval.bm25 import Bm25
from modeling_condenser.retrieval.runs import (
    Run,
    cut_run,
    drop_own_passages,
    find_own,
    read_run,
    write_run,
)
from modeling_condenser.retrieval.systems import (
    CACHE,
    DenseSearcher,
    HybridSearcher,
    Searcher,
    SearchSettings,
    System,
    as_folder,
    open_stored,
    parse_system,
    parse_systems,
)

from .measures import check_measures, default_measures, evaluate_run
from .report import Report, SystemResult, write_report

logger = logging.getLogger(__name__)

INDEX_SETTINGS = ("index", "search_parameters")  # that a run depends on
_LEAST_DEPTH = 100
_WHOLE_RUN = 1000  # passages, of TREC's runs; for measures without a cut-off
_OF_QUERIES = ("query_prompt", "query_max_length")  # settings without effect on passages
_NOT_IN_COMMAND = {"systems", "collection", "output_dir", "card", "embeddings"}


@dataclass(frozen=True)
class EvaluationRecipe:
    """What to evaluate.

    Attributes:
        systems: folders or Hub names of encoders, TREC run files, bm25, or hybrid:ENCODER, with
            settings behind commas, as in google-bert/bert-base-uncased,pooling=mean.
        collection: folder (BEIR, MS MARCO or DPR) or Hub name; for graded pairs and triplets, their
            file.
        output_dir: folder for the results.
        task: "retrieval", "graded_pairs" (STS-b), or "triplets" (Wikipedia sections).
        split: of the queries and judgements.
        baseline: a further system to compare the others with; by default the first system.
        measures: such as MRR@10; the first one is the main measure of the report. By default
            MRR@10, nDCG@10 and R@100, or Hit@20 and Hit@100 for a collection with answers only;
            of these, those that `depth` allows.
        depth: passages to retrieve for each query; by default as many as the measures need, and at
            least 100.
        embeddings: folder of the encoder's vectors of these passages, such as `condenser encode` or
            `EncodeShards` writes; written if it is new. By default they are in output_dir.
        cost: also measure time and memory of an encoding step.
        card: also put the results on the model cards of the local exports.
        seed: of the resampling in tests and intervals.
    """

    systems: list[str | dict[str, Any]]
    collection: str
    output_dir: str = CACHE
    task: Literal["retrieval", "graded_pairs", "triplets"] = "retrieval"
    split: str = "test"
    baseline: str | dict[str, Any] | None = None
    measures: list[str] | None = None
    depth: int | None = None
    embeddings: str | None = None
    cost: bool = False
    card: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.systems:
            raise ValueError("Nothing to evaluate: name at least one system.")
        check_least(self, depth=1)
        if self.measures is not None:
            if self.task != "retrieval":
                raise ValueError(f"measures are for retrieval, and {self.task} has its own.")
            deepest = _deepest(self.measures)
            if self.depth is not None and deepest > self.depth:
                raise ValueError(
                    f"measures needs {deepest} passages for each query, and depth is {self.depth}: "
                    "leave depth out."
                )
        if self.task != "retrieval":
            usual = {field.name: field.default for field in fields(self)}
            for name in ("split", "depth", "embeddings"):
                if getattr(self, name) != usual[name]:
                    raise ValueError(f"{name} is for retrieval, and not for {self.task}.")

    @property
    def run_depth(self) -> int:
        """The passages to retrieve for each query."""
        deepest = _deepest(self.measures, uncut=_WHOLE_RUN) if self.measures else 0
        return self.depth or max(_LEAST_DEPTH, deepest)


def _deepest(measures: Sequence[str], *, uncut: int = 0) -> int:
    """The largest cut-off of some measures; `uncut` is that of measures without one."""
    return max(measure.params.get("cutoff", uncut) for measure in check_measures(measures).values())


def evaluate(**settings: Any) -> Report:
    """Search a collection with one or more systems, measure them, and test the differences.

    Runs and a report are written to `output_dir`; a search whose run is already there is not
    repeated. Nothing else is written, unless `card` is true.

    Args:
        **settings: fields of `EvaluationRecipe` and of `SearchSettings`. A system may also be a
            mapping, such as {"model": "my-encoder", "pooling": "mean"}.

    Example:
        >>> report = evaluate(systems="my-retriever", collection="my-collection", baseline="bm25")
        >>> print(report)
        >>> report.comparisons["my-retriever", "MRR@10"].p_adjusted
    """
    recipe, search = parse_settings(settings, EvaluationRecipe, SearchSettings)
    baseline = [] if recipe.baseline is None else [recipe.baseline]
    systems = parse_systems([*baseline, *recipe.systems], search)
    encoders = {
        (system.encoder.model, *system.encoder.without(*_OF_QUERIES).settings.items())
        for system in systems
        if system.has_vectors
    }
    n_encoders = len(encoders)
    if recipe.embeddings and n_encoders > 1:  # such as a model and what `adapt` made of it
        opened = [system.encoder.open() for system in systems if system.has_vectors]
        n_encoders = len({encoder.passage_fingerprint for encoder in opened})
    if recipe.embeddings and n_encoders != 1:
        raise ValueError(f"embeddings are of one encoder, and {n_encoders} are named.")
    if recipe.cost and not any(system.kind == "encoder" for system in systems):
        raise ValueError("cost is measured of encoders, and none is among the systems.")
    exports = []
    if recipe.card:
        from .results_on_cards import add_to_card, find_exports

        named = [parse_system(system) for system in recipe.systems]
        exports = find_exports([system for system in systems if system in named], recipe.task)
    if recipe.task != "retrieval" and not search.is_exact:
        raise ValueError(f"index and search_parameters are for retrieval, not for {recipe.task}.")
    out, collection = Path(recipe.output_dir), None
    if recipe.task == "retrieval":
        collection = load_reported(recipe.collection, split=recipe.split)
        if recipe.measures is None:
            qrels, answers = collection.qrels, collection.answers
            usual = default_measures(qrels, answers, depth=recipe.run_depth)
            recipe = replace(recipe, measures=usual)
        name, split = collection.name, recipe.split
        folder = out / as_folder(name) / as_folder(split)
        dev = None
        if any(system.needs_dev for system in systems):
            dev = load_dev(recipe.collection, judged=split, reported=collection)
        results = [
            _evaluate_system(system, collection, dev, recipe=recipe, search=search, folder=folder)
            for system in systems
        ]
    else:
        from .similarity import measure_similarity, read_items

        name, split = Path(recipe.collection).stem, recipe.task.replace("_", " ")
        folder = out / as_folder(name) / recipe.task
        items = read_items(recipe.collection, recipe.task)
        results = []
        for system in systems:
            evaluation = measure_similarity(system.open(), items)
            results.append(SystemResult(system.name, evaluation, settings=system.settings))
    if recipe.cost:
        device = local_device(search.device_list)
        results = [_add_cost(*pair, device) for pair in zip(systems, results, strict=True)]
    report = write_report(
        folder,
        results,
        name=name,
        split=split,
        collection=collection,
        command=make_command(settings, [system.text for system in systems], recipe.collection),
        seed=recipe.seed,
    )
    for system in exports:
        assert collection is not None
        complete = {"settings": settings, "recipe": recipe, "search": search}
        add_to_card(report, system, systems, collection, **complete)
    return report


def _evaluate_system(
    system: System,
    collection: Collection,
    dev: Collection | None,
    *,
    recipe: EvaluationRecipe,
    search: SearchSettings,
    folder: Path,
) -> SystemResult:
    """Search, unless the run of the same search is stored, and measure."""
    run_file = folder / as_folder(system.name) / f"run-{recipe.run_depth}.trec"
    record_file = run_file.with_suffix(".json")
    identity = hash_data(
        system.fingerprint,
        fingerprint_passages(collection.passages),
        collection.queries,
        sorted(find_own(collection.qrels)),
        recipe.run_depth,
        [getattr(search, name) for name in INDEX_SETTINGS] if system.has_vectors else None,
        (dev.queries, dev.qrels) if dev and system.needs_dev else None,
    )
    record = read_json(record_file, {})
    if record.get("identity") != identity or not run_file.is_file():
        searcher = open_stored(
            *(system, collection.passages, folder.parent),
            settings=search,
            dev=dev,
            embeddings=Path(recipe.embeddings) if recipe.embeddings else None,
        )
        run, record = _search(searcher, collection, recipe.run_depth)
        if system.kind == "run" and not run:
            n = len(collection.queries)
            raise ValueError(f"{system.model} has none of the {n} queries: is it of their split?")
        if system.kind == "run":
            _check_ids(system, run, collection)
        run_file.parent.mkdir(parents=True, exist_ok=True)
        record_file.unlink(missing_ok=True)  # of another search, whose run is replaced
        write_run(run, run_file, tag="_".join(system.name.split()))
        write_json(record_file, {"identity": identity, **record})
    evaluation = evaluate_run(
        collection.qrels,
        read_run(run_file),
        measures=recipe.measures,
        answers=collection.answers,
        passages=collection.passages,
        is_given=system.kind == "run",
    )
    return SystemResult(system.name, evaluation, run_file, record, system.settings)


def _check_ids(system: System, run: Run, collection: Collection) -> None:
    """Raise a ValueError if a run file names passages of another collection; warn of some."""
    ids = {passage for scores in run.values() for passage in scores}
    if unknown := sorted(ids - find_rows(collection.passages, ids, strict=False).keys()):
        message = f"{system.model}: {len(unknown)} of {len(ids)} passages are not in the collection"
        if len(unknown) == len(ids):
            raise ValueError(
                f"{message}, such as {unknown[0]!r}: are their ids of another edition?"
            )
        logger.warning("%s, such as %r.", message, unknown[0])


def _search(searcher: Searcher, collection: Collection, depth: int) -> tuple[Run, dict[str, Any]]:
    """The run without the queries themselves, and facts about the search."""
    is_passage = find_rows(collection.passages, find_own(collection.qrels), strict=False)
    started = time.perf_counter()
    run = searcher.search(collection.queries, depth=depth + bool(is_passage))
    seconds = max(time.perf_counter() - started, 0.001)
    record: dict[str, Any] = {
        "search_seconds": round(seconds, 3),
        "queries_per_second": round(len(collection.queries) / seconds, 1),
    }
    if isinstance(searcher, HybridSearcher):
        record["fusion"] = str(searcher.fusion)
    bm25 = searcher.bm25 if isinstance(searcher, HybridSearcher) else searcher
    if isinstance(bm25, Bm25):
        record["language"] = bm25.words.language
    if isinstance(searcher, DenseSearcher):
        record |= searcher.measure_recall(collection.queries, run, depth=depth)
        record["bytes_per_vector"] = searcher.bytes_per_vector
    return cut_run(drop_own_passages(run, collection.qrels), depth), record


def _add_cost(system: System, result: SystemResult, device: str | None) -> SystemResult:
    """Measure time and memory of encoding, if the system is an encoder."""
    from .cost import measure_cost

    if system.kind != "encoder":
        return result
    settings = {**system.settings, "device": device}
    return replace(result, cost=measure_cost(system.model, settings=settings))


def make_command(settings: Mapping[str, Any], systems: Sequence[str], collection: str) -> str:
    """The command with these settings, for systems (a baseline first) and a collection."""
    options = {name: value for name, value in settings.items() if name not in _NOT_IN_COMMAND}
    if options.get("baseline"):
        options["baseline"], *others = systems
        systems = others or systems  # it is also the only system
    words = ["condenser", "evaluate", *systems, collection]
    for name, value in options.items():
        if value is not None:
            values = value if isinstance(value, list | tuple) else [value]
            texts = [item if isinstance(item, str) else json.dumps(item) for item in values]
            words += [f"--{name}", *texts]
    return shlex.join(words)
