"""Run a mining recipe: the output folder holds the hard negatives of labelled queries.

    negatives.jsonl   ids, one line a query, in the order of the queries
    examples.jsonl    on request, texts, one line for each query and positive
    recipe.yaml, run.json

Queries are mined in windows, so memory does not grow with their number beyond the texts and
judgements of the collection. A finished window is a folder `windows/NNNNN`; an interrupted command
resumes with the first one that is missing.
"""

import dataclasses
import json
import logging
import shutil
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
    whole_folder,
)
from modeling_condenser.runs.whole_files import remove_partials, whole_file, write_json

from .candidates import RANK_FILTERS
from .cross_encoder import RelevanceScorer
from .judging import TEXT_FILTERS
from .miner import Miner
from .positives import Positives, find_copies, judged_positives
from .recipe import MiningRecipe
from .run_file import RunFile

logger = logging.getLogger(__name__)

NEGATIVES_FILE, EXAMPLES_FILE = "negatives.jsonl", "examples.jsonl"
SEARCH_FOLDER = "search"
_WINDOWS_FOLDER, _IDENTITY_FILE, _COUNTS_FILE = "windows", "identity.json", "counts.json"
# Settings that may change when a command is resumed, because the result does not depend on them.
_FREE = frozenset({"devices", "work_folder"})
_COUNTED = (
    *("queries_without_candidates", "queries_without_negatives", "queries_with_fewer"),
    *("candidates", "negatives"),
)


def mine(settings: Mapping[str, Any], *, progress: bool = True) -> Path:
    """Run a mining recipe, or resume it.

    Args:
        settings: fields of `MiningRecipe` and of `SearchSettings`.
        progress: whether to show progress bars.

    Returns:
        The file of hard negatives, within the output folder.

    Raises:
        ValueError: a setting does not fit, or the folder holds the results of other settings.
        FileNotFoundError: the system, the collection or the cross-encoder is missing.
    """
    recipe, search = fill(settings, MiningRecipe, SearchSettings)
    folder = Path(recipe.output_dir)
    file = folder / NEGATIVES_FILE
    claimed = {name: value for name, value in settings.items() if name not in _FREE}
    if (folder / RECIPE_FILE).is_file():
        claim_run_folder(folder, claimed)
        if (folder / RUN_FILE).is_file() and file.is_file():
            shutil.rmtree(folder / _WINDOWS_FOLDER, ignore_errors=True)
            logger.info("%s is finished.", folder)
            return file
    started = time.perf_counter()
    collection = load_collection(recipe.collection, split=recipe.split)
    query_ids, positives = _queries(recipe, collection)
    system = _system(recipe, settings).in_dtype(search.dtype)
    # Opened before the folder is created, so that a wrong name leaves no folder behind.
    scorer = _open_scorer(recipe, search, progress=progress)
    identity = {
        "system": system.fingerprint,
        "passages": fingerprint_passages(collection.passages),
        "judgements": fingerprint_judgements(collection),
        "cross_encoder": scorer.fingerprint if scorer else None,
    }
    claim_run_folder(folder, claimed)

    def open_miner() -> Miner:
        work_folder = Path(recipe.work_folder or folder / SEARCH_FOLDER)
        return Miner(
            recipe,
            collection,
            _open_searcher(system, collection, work_folder, search, progress=progress),
            positives,
            copies=_copies(collection, positives, progress=progress),
            scorer=scorer,
            checks_ids=system.is_stored,
        )

    _check_identity(folder, identity)
    counts = _mine_windows(recipe, query_ids, open_miner, progress=progress)
    facts = {"seed": recipe.seed, "system": system.name, "identity": identity}
    facts |= _facts(counts, n_queries=len(collection.queries))
    record_run(folder, {**facts, "session_seconds": round(time.perf_counter() - started, 1)})
    shutil.rmtree(folder / _WINDOWS_FOLDER, ignore_errors=True)
    return file


def _queries(
    recipe: MiningRecipe, collection: Collection
) -> tuple[list[str], dict[str, tuple[str, ...]] | None]:
    """The queries to search, and their positives if judgements name them."""
    if recipe.needs_answers and not collection.answers:
        raise ValueError(
            f"{collection.name} has no answers, which answer_filter and positives: answers need: "
            "remove both, or add answers to its queries."
        )
    if recipe.positives == "answers":
        return [q for q in collection.queries if collection.answers.get(q)], None
    positives = judged_positives(collection)
    if not positives:
        hint = " Its queries have answers: set positives to answers." if collection.answers else ""
        raise ValueError(
            f"No query of {recipe.collection}, split {recipe.split}, has a passage judged "
            f"relevant: choose another split.{hint}"
        )
    return list(positives), positives


def _system(recipe: MiningRecipe, settings: Mapping[str, Any]) -> System:
    system = parse_system(recipe.system)
    unused = sorted({f.name for f in dataclasses.fields(SearchSettings)} & settings.keys() - _FREE)
    if unused and not system.is_dense:
        raise ValueError(f"{system.model} is not an encoder: remove {', '.join(unused)}.")
    return system


def _open_scorer(
    recipe: MiningRecipe, search: SearchSettings, *, progress: bool
) -> RelevanceScorer | None:
    if recipe.cross_encoder is None:
        return None
    return RelevanceScorer(
        recipe.cross_encoder,
        max_length=recipe.cross_encoder_max_length,
        batch_size=recipe.cross_encoder_batch_size,
        device=search.devices.split(",")[0] if search.devices else None,
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
    """Open a searcher that shows no bars while it searches, because the windows have one."""
    if system.is_stored:
        run = RunFile(system.model, progress=progress)
        if not run.query_numbers.keys() & collection.queries.keys():
            raise ValueError(
                f"{system.model} has none of the {len(collection.queries)} queries of "
                f"{collection.name}: use a run of the same split."
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


def _copies(
    collection: Collection, positives: Positives | None, *, progress: bool
) -> dict[str, tuple[str, ...]]:
    """Copies of judged positives; where answers decide, a copy has the answer and is dropped."""
    if positives is None:
        return {}
    ids = {passage_id for own in positives.values() for passage_id in own}
    return find_copies(collection.passages, ids, progress=progress)


def _check_identity(folder: Path, identity: Mapping[str, Any]) -> None:
    """Refuse to resume with another system, collection or cross-encoder of the same name."""
    file = folder / _WINDOWS_FOLDER / _IDENTITY_FILE
    if not file.is_file():
        file.parent.mkdir(exist_ok=True)
        write_json(file, dict(identity))
    before = json.loads(file.read_text())
    changed = [name for name, value in identity.items() if before.get(name) != value]
    if changed:
        raise ValueError(
            f"{folder} was started with other contents of: {', '.join(changed)}. Choose another "
            "output_dir, or remove this one."
        )


def _mine_windows(
    recipe: MiningRecipe,
    query_ids: Sequence[str],
    open_miner: Callable[[], Miner],
    *,
    progress: bool,
) -> Counter[str]:
    """Mine the windows that are missing, join all of them, and add up their counts."""
    counts: Counter[str] = Counter()
    miner = None
    windows: list[Path] = []
    folder = Path(recipe.output_dir)
    with tqdm(total=len(query_ids), desc="Mining", unit="query", disable=not progress) as bar:
        for start in range(0, len(query_ids), recipe.queries_per_window):
            part = query_ids[start : start + recipe.queries_per_window]
            windows.append(folder / _WINDOWS_FOLDER / f"{len(windows):05d}")
            if not windows[-1].is_dir():
                miner = miner or open_miner()
                _mine_window(miner, part, windows[-1])
            counts.update(json.loads((windows[-1] / _COUNTS_FILE).read_text()))
            bar.update(len(part))
    for name in (NEGATIVES_FILE, *([EXAMPLES_FILE] if recipe.with_text else [])):
        remove_partials(folder, name)
        with whole_file(folder / name) as joined:
            for window in windows:
                with (window / name).open("rb") as part_file:
                    shutil.copyfileobj(part_file, joined)
    return counts


def _mine_window(miner: Miner, query_ids: Sequence[str], window: Path) -> None:
    mined, counts = miner.mine(query_ids)
    with whole_folder(window) as partial:
        write_json(partial / _COUNTS_FILE, dict(counts))
        with (partial / NEGATIVES_FILE).open("w", encoding="utf-8") as file:
            file.writelines(entry.line() for entry in mined)
        if miner.recipe.with_text:
            with (partial / EXAMPLES_FILE).open("w", encoding="utf-8") as file:
                file.writelines(miner.example_lines(mined))


def _facts(counts: Mapping[str, int], *, n_queries: int) -> dict[str, Any]:
    """The part of the record that describes the negatives."""
    filters = [*RANK_FILTERS, *TEXT_FILTERS]
    n_mined = counts.get("queries", 0)
    return {
        "queries": n_mined,
        "queries_without_positive": n_queries - n_mined,
        **{name: counts.get(name, 0) for name in _COUNTED},
        "mean_negatives": round(counts.get("negatives", 0) / n_mined, 3) if n_mined else 0.0,
        "dropped": {name: counts.get(name, 0) for name in filters},
    }
