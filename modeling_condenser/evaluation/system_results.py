"""Search a collection with one system, measure its run, and put the results on its card.

    <folder>/run-<depth>.trec     the run
    <folder>/run-<depth>.json     what was searched (model, passages, queries, index), and the time
    <folder>/metrics.json         the measures

A second call reads the run, because a search may take hours. Measures are computed again, because
judgements may change. A hybrid system is the fusion of two such runs.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modeling_condenser.collection.collection import (
    Collection,
    checksum_qrels,
    fingerprint_passages,
)
from modeling_condenser.collection.passages import find_rows
from modeling_condenser.files.atomic import write_json
from modeling_condenser.files.models import split_revision
from modeling_condenser.publishing.card import write_card
from modeling_condenser.publishing.provenance import EvaluationResult, add_result, hub_name
from modeling_condenser.retrieval.dense import EXACT, DenseSearcher, SearchSettings
from modeling_condenser.retrieval.fusion import CANDIDATES, DEFAULT, FUSIONS, choose_fusion
from modeling_condenser.retrieval.runs import (
    Run,
    cut_run,
    drop_own_passages,
    find_own,
    read_run,
    write_run,
)
from modeling_condenser.retrieval.searchers import Searcher, StoredRun, open_searcher
from modeling_condenser.retrieval.systems import BM25, System, as_folder

from .measures import Evaluation, evaluate_run
from .significance import correct

# Fields of `SearchSettings` that an approximate search's result depends on.
INDEX_SETTINGS = ("index", "search_parameters", "index_seed")


@dataclass(frozen=True)
class SystemResult:
    """The measures of one system on one split of one collection or similarity task."""

    system: str
    collection: str  # or the file of pairs or triplets
    split: str  # of the queries, or the task's name
    evaluation: Evaluation
    run_file: Path | None = None  # the TREC run that was measured
    record: Mapping[str, Any] = field(default_factory=dict)  # time, and what was searched
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the system, such as its pooling
    cost: Mapping[str, Any] | None = None  # of encoding, from `measure_cost`
    first: Mapping[str, str] = field(default_factory=dict)  # query -> the passage it ranks first


@dataclass(frozen=True)
class Evaluator:
    """Searches one collection with systems, and measures their runs.

    Attributes:
        place: system -> the folder of its run and measures, and that of its embeddings and index.
        depth: passages to retrieve for each query.
        measures: see `evaluate_run` for the default.
        search: how dense systems search; exactly by default.
        dev: the collection's dev split, to choose the fusion of hybrid systems.
    """

    collection: Collection
    place: Callable[[System], tuple[Path, Path]]
    split: str = "test"
    depth: int = CANDIDATES
    measures: Sequence[str] | None = None
    search: SearchSettings = field(default_factory=SearchSettings)
    dev: Collection | None = None

    def evaluate(self, system: System) -> SystemResult:
        """Search, unless the run of the same search is stored, and measure.

        Raises:
            ValueError: the folder contains another run, or a measure does not fit the collection.
        """
        system = system.completed(self.search)
        if system.kind == "hybrid":
            run_file, record = self._fuse(system)
        else:
            run_file, record = self._search(system, self.collection, self.depth)
        run = read_run(run_file)
        evaluation = evaluate_run(
            self.collection.qrels,
            run,
            measures=self.measures,
            answers=self.collection.answers,
            passages=self.collection.passages,
        )
        names = (system.name, self.collection.name, self.split)
        first = {query: next(iter(scores)) for query, scores in run.items()}
        settings = system.settings
        result = SystemResult(*names, evaluation, run_file, record, settings, first=first)
        facts = dict(zip(("system", "collection", "split"), names, strict=True))
        content = {**facts, "depth": self.depth, "evaluation": vars(evaluation)}
        write_json(run_file.with_name("metrics.json"), content)
        return result

    def _fuse(self, system: System) -> tuple[Path, dict[str, Any]]:
        """Fuse the runs of BM25 and of the encoder: the file of the run, and its record."""
        parts, fusion = (System(BM25), system.encoder), DEFAULT
        if stated := system.settings.get("fusion"):
            fusion = FUSIONS[stated]
        elif self.dev and self.dev.qrels:
            found = [self._search(part, self.dev, CANDIDATES, "dev") for part in parts]
            lexical, dense = (read_run(file) for file, _ in found)
            fusion = choose_fusion(lexical, dense, self.dev.qrels)
        depth = max(self.depth, CANDIDATES)
        found = [self._search(part, self.collection, depth) for part in parts]
        record = _speed(sum(own["search_seconds"] for _, own in found), self.collection)
        record |= {"fusion": str(fusion), "bytes_per_vector": found[1][1]["bytes_per_vector"]}
        run_file = self._run_file(system, self.depth)
        lexical, dense = (read_run(file) for file, _ in found)
        _write(fusion.fuse(lexical, dense, depth=self.depth), run_file, system, record)
        return run_file, record

    def _run_file(self, system: System, depth: int, *place: str) -> Path:
        words = ["run", str(depth)]
        if system.has_vectors and not self.search.is_exact:
            words += filter(None, (self.search.index, self.search.search_parameters))
        return self.place(system)[0].joinpath(*place, f"{as_folder('-'.join(words))}.trec")

    def _search(
        self, system: System, collection: Collection, depth: int, *place: str
    ) -> tuple[Path, dict[str, Any]]:
        """Search, unless the run is stored, which opens nothing."""
        queries = json.dumps(list(collection.queries.items())).encode()
        identity = {
            "system": system.fingerprint,
            "passages": fingerprint_passages(collection.passages),
            "queries": hashlib.sha256(queries).hexdigest(),
            "depth": depth,
        }
        if system.has_vectors:
            identity |= {name: getattr(self.search, name) for name in INDEX_SETTINGS}
            identity["index"] = self.search.index
        run_file = self._run_file(system, depth, *place)
        record_file = run_file.with_suffix(".json")
        if not record_file.is_file():
            work_folder = self.place(system)[1]
            searcher = open_searcher(system, collection.passages, work_folder, settings=self.search)
            run, record = _search(searcher, system, collection, depth)
            _write(run, run_file, system, {"identity": identity, **record})
        record = json.loads(record_file.read_text())
        if changed := [key for key in identity if record["identity"].get(key) != identity[key]]:
            raise ValueError(
                f"{run_file.parent} holds the run of another search, which differs in"
                f" {', '.join(changed)}: choose another output_dir, or remove this one."
            )
        return run_file, record


def _write(run: Run, run_file: Path, system: System, record: Mapping[str, Any]) -> None:
    run_file.parent.mkdir(parents=True, exist_ok=True)
    write_run(run, run_file, tag="_".join(system.name.split()))
    write_json(run_file.with_suffix(".json"), record)  # last: there is a run beside every record


def _search(
    searcher: Searcher, system: System, collection: Collection, depth: int
) -> tuple[Run, dict[str, Any]]:
    """The run without the queries themselves, and facts about the search."""
    if isinstance(searcher, StoredRun) and searcher.run.keys().isdisjoint(collection.queries):
        raise ValueError(
            f"{system.model} has none of the {len(collection.queries)} queries: use a run of their"
            " split."
        )
    own = find_rows(collection.passages, find_own(collection.qrels), strict=False)
    started = time.perf_counter()
    found = searcher.search(collection.queries, depth=depth + bool(own))
    record = _speed(time.perf_counter() - started, collection)
    if isinstance(searcher, DenseSearcher):
        record |= searcher.measure_recall(collection.queries, found, depth=depth)
        record["encoding"] = searcher.embeddings.record
        record["bytes_per_vector"] = searcher.bytes_per_vector
    return cut_run(drop_own_passages(found, collection.qrels), depth), record


def _speed(seconds: float, collection: Collection) -> dict[str, Any]:
    speed = round(len(collection.queries) / max(seconds, 0.001), 1)
    return {"search_seconds": round(seconds, 3), "queries_per_second": speed}


def report_on_card(
    model: str | Path,
    result: SystemResult,
    baselines: Sequence[SystemResult],
    *,
    collection: Collection,
    source: str | Path,
    command: str,
    seed: int = 0,
) -> None:
    """Add a retriever's result, compared with each baseline, to its repository and its card.

    Results of other collections, splits, depths or search settings are kept. The p-values are
    corrected (Holm) over all measures and baselines.

    Args:
        model: the retriever's folder.
        source: the collection as the recipe names it; published if it is on the Hub.
        command: reproduces the figures of the model `OWNER/NAME`.
        seed: of the resampling in tests and intervals.
    """
    evaluation, identity = result.evaluation, result.record["identity"]
    compared = correct(
        {
            (baseline.system, measure): evaluation.compare(measure, baseline.evaluation, seed=seed)
            for baseline in baselines
            for measure in evaluation.means
        }
    )
    is_public = hub_name(str(source)) and not Path(source).exists()
    source_name, revision = split_revision(str(source)) if is_public else (None, None)
    changed = {}
    if identity["index"] != EXACT:
        changed = {name: identity[name] for name in INDEX_SETTINGS if identity[name]}
    if (dtype := result.settings.get("dtype", "float32")) != "float32":
        changed["dtype"] = dtype
    own = EvaluationResult(
        collection=result.collection,
        split=result.split,
        depth=identity["depth"],
        n_queries=evaluation.n_items,
        values=dict(evaluation.means),
        source=source_name,
        revision=revision,
        search=changed,
        intervals={m: b for m in evaluation.means if (b := evaluation.interval(m, seed=seed))},
        comparisons=[
            {
                "baseline": name,
                "measure": measure,
                "value": c.mean_baseline,
                "difference": c.difference,
                "p_value": c.p_adjusted,
            }
            for (name, measure), c in compared.items()
        ],
        shared_queries=dict(collection.shared),
        qrels_sha256=checksum_qrels(collection.qrels) if collection.qrels else None,
        fingerprint_passages=identity["passages"],
        command=command,
    )
    add_result(Path(model), own, run_file=result.run_file)
    write_card(Path(model))
