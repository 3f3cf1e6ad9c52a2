"""Search a collection with one system, measure its run, and put the results on its card.

    <folder>/run-<depth>.trec     the run
    <folder>/run-<depth>.json     what was searched (model, passages, queries, index), and the time
    <folder>/metrics.json         the measures

A second call reads the run, because a search may take hours. Measures are computed again, because
judgements may change.
"""

import hashlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from modeling_condenser.collection.collection import (
    Collection,
    checksum_qrels,
    fingerprint_passages,
)
from modeling_condenser.collection.load import load_collection
from modeling_condenser.collection.passages import find_rows
from modeling_condenser.model_files.model_folder import split_revision
from modeling_condenser.publishing.card import write_card
from modeling_condenser.publishing.provenance import EvaluationResult, add_result, hub_name
from modeling_condenser.retrieval.dense import EXACT, DenseSearcher, SearchSettings
from modeling_condenser.retrieval.fusion import HybridSearcher
from modeling_condenser.retrieval.runs import (
    Run,
    cut_run,
    drop_own_passages,
    find_own,
    read_run,
    write_run,
)
from modeling_condenser.retrieval.systems import (
    StoredRun,
    SystemLike,
    as_folder,
    open_searcher,
    parse_system,
)
from modeling_condenser.runs.whole_files import write_json

from .measures import Evaluation, evaluate_run
from .significance import correct

logger = logging.getLogger(__name__)

# Fields of `SearchSettings` that an approximate search's result depends on.
INDEX_SETTINGS = ("index", "search_parameters", "rescore", "index_seed")


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

    def read_run(self) -> Run:
        return read_run(str(self.run_file))


def evaluate_system(
    system: SystemLike,
    collection: str | Path | Collection,
    out: str | Path,
    *,
    split: str = "test",
    depth: int = 100,
    measures: Sequence[str] | None = None,
    search: SearchSettings | None = None,
    work_folder: Path | None = None,
    dev: Collection | None = None,
) -> SystemResult:
    """Search a collection with a system, and measure its run.

    If `out` contains the run of the same search, it is only measured again.

    Args:
        system: a system, or the argument of `parse_system`.
        collection: a collection, or the argument of `load_collection`.
        out: folder for the run and the measures.
        depth: passages to retrieve for each query.
        measures: see `evaluate_run` for the default.
        search: exact by default.
        work_folder: for embeddings and index; `out` by default.
        dev: the collection's dev split, to choose the fusion of a hybrid system.

    Raises:
        ValueError: `out` contains another run, or a measure does not fit the collection.
    """
    out, search = Path(out), search or SearchSettings()
    system = parse_system(system).completed(search)
    if not isinstance(collection, Collection):
        collection = load_collection(collection, split=split)
    queries = json.dumps(list(collection.queries.items())).encode()
    identity = {
        "system": system.fingerprint,
        "passages": fingerprint_passages(collection.passages),
        "queries": hashlib.sha256(queries).hexdigest(),
        "depth": depth,
    }
    if system.kind == "hybrid" and "fusion" not in system.settings:
        identity["dev"] = checksum_qrels(dev.qrels) if dev else None
    words = ["run", str(depth)]
    if system.has_vectors:
        identity |= {name: getattr(search, name) for name in INDEX_SETTINGS}
        identity["index"] = search.published_index
        if not search.is_exact:
            words += filter(None, (search.published_index, search.search_parameters))
    run_name = as_folder("-".join(words))
    run_file, record_file = out / f"{run_name}.trec", out / f"{run_name}.json"
    if not record_file.is_file():
        how: Any = {"settings": search, "dev": dev}
        searcher = open_searcher(system, collection.passages, work_folder or out, **how)
        if isinstance(searcher, StoredRun) and searcher.run.keys().isdisjoint(collection.queries):
            raise ValueError(
                f"{system.model} has none of the {len(collection.queries)} queries: use a run of"
                " their split."
            )
        n_own = _count_own_passages(collection)
        started = time.perf_counter()
        found = searcher.search(collection.queries, depth=depth + (n_own > 0))
        seconds = time.perf_counter() - started
        record: dict[str, Any] = {
            "identity": identity,
            "search_seconds": round(seconds, 3),
            "queries_per_second": round(len(collection.queries) / seconds, 1),
        }
        if isinstance(searcher, HybridSearcher):
            record["fusion"] = str(searcher.fusion)
            record["bytes_per_vector"] = searcher.dense.bytes_per_vector
        if isinstance(searcher, DenseSearcher):
            record |= searcher.measure_recall(collection.queries, found, depth=depth)
            record["encoding"] = searcher.embeddings.record
            record["bytes_per_vector"] = searcher.bytes_per_vector
        run = cut_run(drop_own_passages(found, collection.qrels), depth)
        out.mkdir(parents=True, exist_ok=True)
        write_run(run, run_file, tag="_".join(system.name.split()))
        write_json(record_file, record)  # last, so that there is a run beside every record
    record = json.loads(record_file.read_text())
    if changed := [key for key in identity if record["identity"].get(key) != identity[key]]:
        raise ValueError(
            f"{out} contains another run, with a different {', '.join(changed)}: choose another"
            " output_dir, or remove this one"
        )
    judged: Any = {"answers": collection.answers, "passages": collection.passages}
    evaluation = evaluate_run(collection.qrels, read_run(run_file), measures=measures, **judged)
    facts: Any = {"system": system.name, "collection": collection.name, "split": split}
    write_json(out / "metrics.json", {**facts, "depth": depth, "evaluation": asdict(evaluation)})
    return SystemResult(
        **facts, evaluation=evaluation, run_file=run_file, record=record, settings=system.settings
    )


def _count_own_passages(collection: Collection) -> int:
    """Count the queries that are passages themselves (`find_own`)."""
    own = find_own(collection.qrels)
    n_own = len(find_rows(collection.passages, own, strict=False)) if own else 0
    if n_own:
        logger.info(
            "%d queries have the id of a passage, which is left out of their rankings, as in BEIR."
            " If these passages are other texts, give them other ids.",
            n_own,
        )
    return n_own


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
    changed = {name: identity[name] for name in INDEX_SETTINGS if identity[name]}
    own = EvaluationResult(
        collection=result.collection,
        split=result.split,
        depth=identity["depth"],
        n_queries=evaluation.n_items,
        values=dict(evaluation.means),
        source=source_name,
        revision=revision,
        search=changed if identity["index"] != EXACT else {},
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
