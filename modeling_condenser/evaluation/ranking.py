"""Rankings: a system and a collection in, a run out, searched once and read from then on.

    <folder>/run-<depth>.trec     what the system answered
    <folder>/run-<depth>.json     what it was asked: model, passages, queries, search; and how long

Measures follow from a run and the judgements in no time, so they are not kept from one evaluation
to the next; searching is, because it may take hours.
"""

import hashlib
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.fingerprint import fingerprint_passages
from modeling_condenser.retrieval.dense import DenseSearcher, SearchSettings
from modeling_condenser.retrieval.runs import Run, read_run, write_run
from modeling_condenser.retrieval.systems import System, open_searcher
from modeling_condenser.runs.whole_files import write_json

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ranking:
    """What a system answered.

    Attributes:
        run: query id -> passage id -> score, for the collection's queries.
        file: the run as a TREC file.
        record: what was asked (`identity`), and `search_seconds` and `queries_per_second` of the
            search itself, queries' encoding included, passages' encoding not; `encoding` of the
            passages; and the recall of an approximate search.
    """

    run: Run
    file: Path
    record: dict[str, Any]


def rank(
    system: System,
    collection: Collection,
    folder: Path,
    *,
    depth: int = 100,
    search: SearchSettings | None = None,
    work_folder: Path | None = None,
    progress: bool = True,
) -> Ranking:
    """Search a collection, or read what an earlier search of the same things found.

    Args:
        system: see `parse_system`.
        collection: its queries are searched.
        folder: of the run.
        depth: passages a query.
        search: how a dense system searches.
        work_folder: of embeddings and index; by default `folder`.
        progress: whether to show progress bars.

    Raises:
        ValueError: the folder holds a run of something else.
    """
    search = search or SearchSettings()
    system = system.in_dtype(search.dtype)
    if depth < 1:
        raise ValueError(f"depth is {depth}, expected at least 1, e.g. 100.")
    stem = "-".join(["run", str(depth), *_index_name(system, search)])
    file, record_file = folder / f"{stem}.trec", folder / f"{stem}.json"
    identity = _identity(system, collection, depth=depth, search=search)
    if file.is_file() and record_file.is_file():
        record = json.loads(record_file.read_text())
        _refuse_other(folder, record["identity"], identity)
        return Ranking(read_run(file), file, record)
    logger.info("Searching %s with %s", collection.name, system.name)
    searcher = open_searcher(
        system, collection.passages, work_folder or folder, settings=search, progress=progress
    )
    started = time.perf_counter()
    run = searcher.search(collection.queries, depth=depth)
    seconds = time.perf_counter() - started
    record = {
        "identity": identity,
        "search_seconds": round(seconds, 3),
        "queries_per_second": round(len(collection.queries) / seconds, 1),
    }
    if isinstance(searcher, DenseSearcher):
        record |= searcher.measure_recall(collection.queries, run, depth=depth)
        record["encoding"] = searcher.embeddings.record
    folder.mkdir(parents=True, exist_ok=True)
    write_run(run, file, tag="_".join(system.name.split()))
    write_json(record_file, record)
    return Ranking(run, file, record)


def _index_name(system: System, search: SearchSettings) -> list[str]:
    """What tells an approximate search's file from the exact one's."""
    if not system.is_dense or search.is_exact:
        return []
    words = [search.index, *([search.search_parameters] if search.search_parameters else [])]
    return ["".join(c if c.isalnum() or c in "=-" else "_" for c in word) for word in words]


def _identity(
    system: System, collection: Collection, *, depth: int, search: SearchSettings
) -> dict[str, Any]:
    """What a run depends on, wherever it lies."""
    searched = asdict(search) if system.is_dense else {}
    names = ("index", "search_parameters", "index_seed", "rescore")
    return {
        "system": system.fingerprint,
        "passages": fingerprint_passages(collection.passages),
        "queries": _fingerprint_queries(collection.queries),
        "depth": depth,
        **{name: value for name, value in searched.items() if name in names},
    }


def _fingerprint_queries(queries: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(list(queries.items())).encode()).hexdigest()


def _refuse_other(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    changed = [name for name in now if before.get(name) != now[name]]
    if changed:
        differences = ", ".join(
            f"{name}: {before.get(name, 'none')!s:.12} then, {now[name]!s:.12} now"
            for name in changed
        )
        raise ValueError(
            f"{folder} holds a run of something else ({differences}): choose another output_dir, "
            "so that it is not overwritten, or remove it."
        )
