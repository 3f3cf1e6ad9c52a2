"""The mining stage: a system and labelled queries in, a folder with their hard negatives out.

negatives.jsonl   one line a query; see `negatives.py`
examples.jsonl    on request: the same with texts
recipe.yaml, run.json

Queries are mined in windows. Memory does not grow with their number beyond the texts and judgements
of the collection, and a run that was killed goes on with the window that it was in.
"""

import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.fingerprint import fingerprint_judgements, fingerprint_passages
from modeling_condenser.collection.load import load_collection
from modeling_condenser.retrieval.bm25 import Bm25
from modeling_condenser.retrieval.dense import DenseSearcher, SearchSettings
from modeling_condenser.retrieval.systems import Searcher, System, open_searcher, parse_system
from modeling_condenser.runs.recipe import fill
from modeling_condenser.runs.run_folder import (
    RECIPE_FILE,
    RUN_FILE,
    claim_run_folder,
    record_run,
)

from .candidates import RANK_FILTERS
from .judging import TEXT_FILTERS
from .miner import Miner
from .negatives import EXAMPLES_FILE, NEGATIVES_FILE
from .positives import Positives, judged_positives
from .recipe import MiningRecipe
from .run_file import RunFile
from .teacher import Teacher
from .twins import find_twins
from .windows import Windows, remove_windows

logger = logging.getLogger(__name__)

SEARCH_FOLDER = "search"
# What may change between two sessions of a run, because its result does not depend on it.
_FREE = frozenset({"n_processes", "devices", "work_folder"})
_COUNTED = (
    "queries_without_candidates",
    "queries_without_negatives",
    "queries_with_fewer",
    "candidates",
    "negatives",
)


def mine(settings: Mapping[str, Any], *, progress: bool = True) -> Path:
    """Run a mining recipe, or go on with it.

    Args:
        settings: fields of `MiningRecipe` and of `SearchSettings`.
        progress: whether to show progress bars.

    Returns:
        The file of hard negatives, within the run folder.

    Raises:
        ValueError: a setting does not fit, or the folder holds another run; the message says which
            and what to do.
        FileNotFoundError: the system, the collection or the cross-encoder is missing.
    """
    recipe, search = fill(settings, MiningRecipe, SearchSettings)
    folder = Path(recipe.output_dir)
    file = folder / NEGATIVES_FILE
    claimed = {name: value for name, value in settings.items() if name not in _FREE}
    if (folder / RECIPE_FILE).is_file():
        claim_run_folder(folder, claimed)
        if (folder / RUN_FILE).is_file() and file.is_file():
            remove_windows(folder)  # of a process that was killed
            logger.info("%s is finished.", folder)
            return file
    started = time.perf_counter()
    collection = load_collection(recipe.collection, split=recipe.split)
    query_ids, positives = _queries(recipe, collection)
    system = _system(recipe, settings).in_dtype(search.dtype)
    # Before the folder is claimed, so that a wrong name leaves none behind.
    device = search.devices.split(",")[0] if search.devices else None
    teacher = _open_teacher(recipe, device, progress=progress)
    identity = {
        "system": system.fingerprint,
        "passages": fingerprint_passages(collection.passages),
        "judgements": fingerprint_judgements(collection),
        "cross_encoder": teacher.fingerprint if teacher else None,
    }
    claim_run_folder(folder, claimed)

    def open_miner() -> Miner:
        work_folder = Path(recipe.work_folder or folder / SEARCH_FOLDER)
        return Miner(
            recipe,
            collection,
            _open_searcher(system, collection, work_folder, search, progress=progress),
            positives,
            twins=_twins(collection, positives, progress=progress),
            teacher=teacher,
            is_trusted=not system.is_stored,
        )

    files = [NEGATIVES_FILE, *([EXAMPLES_FILE] if recipe.with_text else [])]
    windows = Windows(folder, files, identity=identity)
    counts = _mine_windows(recipe, query_ids, windows, open_miner, progress=progress)
    facts = _facts(counts, n_queries=len(collection.queries))
    record_run(
        folder,
        {
            "seed": recipe.seed,
            "system": system.name,
            "identity": identity,
            **facts,
            "session_seconds": round(time.perf_counter() - started, 1),
        },
    )
    remove_windows(folder)
    return file


def _queries(
    recipe: MiningRecipe, collection: Collection
) -> tuple[list[str], dict[str, tuple[str, ...]] | None]:
    """The queries to search, and their positives where judgements tell."""
    if recipe.needs_answers and not collection.answers:
        raise ValueError(
            f"{collection.name} has no answers, which answer_filter and positives: answers need: "
            "leave both out, or add answers to its queries."
        )
    if recipe.positives == "answers":
        return [q for q in collection.queries if collection.answers.get(q)], None
    positives = judged_positives(collection)
    if not positives:
        hint = " Its queries have answers: set positives to answers." if collection.answers else ""
        raise ValueError(
            f"No query of {recipe.collection}, split {recipe.split}, is judged to have a relevant "
            f"passage, expected at least one: choose another split.{hint}"
        )
    return list(positives), positives


def _system(recipe: MiningRecipe, settings: Mapping[str, Any]) -> System:
    system = parse_system(recipe.system)
    unused = sorted({f.name for f in dataclasses.fields(SearchSettings)} & settings.keys() - _FREE)
    if unused and not system.is_dense:
        raise ValueError(
            f"{system.model} is no encoder, so {', '.join(unused)} would mean nothing: leave out."
        )
    return system


def _open_teacher(recipe: MiningRecipe, device: str | None, *, progress: bool) -> Teacher | None:
    if recipe.cross_encoder is None:
        return None
    return Teacher(
        recipe.cross_encoder,
        max_length=recipe.cross_encoder_max_length,
        batch_size=recipe.cross_encoder_batch_size,
        device=device,
        progress=progress,
    )


def _open_searcher(
    system: System,
    collection: Collection,
    folder: Path,
    search: SearchSettings,
    *,
    progress: bool,
) -> Searcher:
    """A searcher that shows no bars of its own once it is open: there is one over the windows."""
    if system.is_stored:
        run = RunFile(system.model, progress=progress)
        if not run.count_known(collection.queries):
            raise ValueError(
                f"{system.model} has none of the {len(collection.queries)} queries of "
                f"{collection.name}: make the run with the same split."
            )
        return run
    searcher = open_searcher(
        system, collection.passages, folder, settings=search, progress=progress
    )
    if isinstance(searcher, DenseSearcher):
        return dataclasses.replace(searcher, progress=False)
    if isinstance(searcher, Bm25):
        searcher.show_progress = False
    return searcher


def _twins(
    collection: Collection, positives: Positives | None, *, progress: bool
) -> dict[str, tuple[str, ...]]:
    """Copies of positives; where answers tell, a copy has the answer too and is dropped for it."""
    if positives is None:
        return {}
    ids = {passage_id for own in positives.values() for passage_id in own}
    return find_twins(collection.passages, ids, progress=progress)


def _mine_windows(
    recipe: MiningRecipe,
    query_ids: Sequence[str],
    windows: Windows,
    open_miner: Callable[[], Miner],
    *,
    progress: bool,
) -> Counter[str]:
    """Mine the windows that are not there yet, and put all together: the sum of their counts."""
    counts: Counter[str] = Counter()
    miner = None
    starts = range(0, len(query_ids), recipe.queries_per_window)
    with tqdm(total=len(query_ids), desc="Mining", unit="query", disable=not progress) as bar:
        for number, start in enumerate(starts):
            part = query_ids[start : start + recipe.queries_per_window]
            part_counts = windows.counts(number)
            if part_counts is None:
                miner = miner or open_miner()
                mined, part_counts = miner.mine(part)
                windows.write(number, miner.lines(mined), part_counts)
            counts.update(part_counts)
            bar.update(len(part))
    windows.join(len(starts))
    return counts


def _facts(counts: Mapping[str, int], *, n_queries: int) -> dict[str, Any]:
    """What the run's record says of the negatives."""
    filters = [*RANK_FILTERS, *TEXT_FILTERS]
    n_mined = counts.get("queries", 0)
    return {
        "queries": n_mined,
        "queries_without_positive": n_queries - n_mined,
        **{name: counts.get(name, 0) for name in _COUNTED},
        "mean_negatives": round(counts.get("negatives", 0) / n_mined, 3) if n_mined else 0.0,
        "dropped": {name: counts.get(name, 0) for name in filters},
    }
