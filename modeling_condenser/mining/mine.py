"""Runs a mining recipe, and writes the hard negatives of labelled queries into a folder.

    negatives.jsonl   ids, one line per query, in the order of the queries
    examples.jsonl    on request, texts, one line per query and positive
    recipe.yaml, run.json

Queries are mined in windows, which limits memory. Each finished window is a file, so an interrupted
command resumes with the missing windows.
"""

import hashlib
import json
import logging
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from modeling_condenser.collection.collection import (
    Collection,
    fingerprint_judgements,
    fingerprint_passages,
)
from modeling_condenser.collection.load import load_collection, load_dev
from modeling_condenser.collection.passages import PassageIndex
from modeling_condenser.encoding.encode import local_device
from modeling_condenser.files.atomic import atomic_file, write_json
from modeling_condenser.files.progress import bar, show_bars
from modeling_condenser.files.run_folder import (
    check_run_folder,
    claim_run_folder,
    hash_data,
    read_run,
    record_run,
)
from modeling_condenser.files.settings import parse_settings
from modeling_condenser.retrieval.dense import SearchSettings
from modeling_condenser.retrieval.searchers import StoredRun, open_searcher
from modeling_condenser.retrieval.systems import SystemLike, parse_systems, system_text

from .hard_negatives import judged_positives, read_hard_negatives
from .miner import Miner, RelevanceScorer
from .recipe import MiningRecipe

logger = logging.getLogger(__name__)

NEGATIVES_FILE, EXAMPLES_FILE = "negatives.jsonl", "examples.jsonl"
QUERIES_A_WINDOW = 4096  # memory grows with it; exact search reads all vectors for each window


def mine(
    system: SystemLike,
    collection: str | Path,
    output_dir: str | Path,
    *,
    progress: bool = True,
    **settings: Any,
) -> Path:
    """Mine hard negatives: passages that a retriever finds for a query and that are not relevant.

    A repeated call resumes an interrupted one; a finished folder is left unchanged.

    Example:
        >>> file = mine("bm25", "my-collection", "negatives", last_rank=100, n_negatives=10)
        >>> finetune({..., "collection": "my-collection", "negatives": str(file)})

    Args:
        system: finds the candidates: "bm25", folder or Hub name of an encoder, "hybrid:ENCODER",
            or a TREC run file; with settings after commas, such as "my-encoder,pooling=mean", or a
            mapping, such as {"model": "my-encoder", "pooling": "mean"}.
        collection: folder or Hub name of a collection with judgements or answers.
        output_dir: folder for the result.
        progress: whether to show progress bars.
        **settings: further fields of `MiningRecipe` and, for encoders, of `SearchSettings`.

    Returns:
        The file of hard negatives, `negatives.jsonl` in `output_dir`.

    Raises:
        ValueError: a setting does not fit, or the folder holds the results of other settings, of
            another system or of another collection.
        FileNotFoundError: the system, the collection or the cross-encoder is missing.
    """
    settings |= {"system": system_text(system), "collection": collection, "output_dir": output_dir}
    recipe, search = parse_settings(settings, MiningRecipe, SearchSettings)
    folder = Path(recipe.output_dir)
    check_run_folder(folder, settings)
    started = time.perf_counter()
    loaded = load_collection(recipe.collection, split=recipe.split)
    labelled = _find_labelled(recipe, loaded)
    [parsed] = parse_systems([recipe.system], search)
    scorer = None
    if recipe.cross_encoder is not None:
        scorer = RelevanceScorer(recipe.cross_encoder, device=local_device(search.device_list))
    identity = {
        "system_fingerprint": parsed.fingerprint,
        "passages_fingerprint": fingerprint_passages(loaded.passages),
        "judgements_fingerprint": fingerprint_judgements(loaded),
    }
    # The fusion of a hybrid system is chosen on the dev queries.
    dev = load_dev(recipe.collection, judged=recipe.split) if parsed.kind == "hybrid" else None
    identity |= {"dev_fingerprint": fingerprint_judgements(dev)} if dev else {}
    claim_run_folder(folder, settings, hash_data(identity))
    negatives = folder / NEGATIVES_FILE
    if "negatives" in read_run(folder):
        logger.info("%s is finished.", folder)
        return negatives

    # Windows of another system or collection are in another folder.
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
    with show_bars(progress):
        searcher = open_searcher(
            parsed, loaded.passages, folder / "search", settings=search, dev=dev
        )
        if isinstance(searcher, StoredRun) and searcher.run.keys().isdisjoint(labelled):
            raise ValueError(
                f"{parsed.model} has none of the {len(labelled)} queries: use a run of this split."
            )
        miner = Miner(recipe, loaded, searcher, PassageIndex(loaded.passages), scorer)
        dropped = _mine_windows(miner, labelled, folder / f"windows-{digest}")
    if recipe.with_text:
        with atomic_file(folder / EXAMPLES_FILE) as examples:
            examples.writelines(map(str.encode, miner.examples(read_hard_negatives(negatives))))
    sizes = [len(mined.negative_ids) for mined in read_hard_negatives(negatives)]
    if n_empty := sizes.count(0):
        logger.warning("%d of %d queries have no negatives.", n_empty, len(sizes))
    facts = {
        "seed": recipe.seed,
        "system": parsed.name,
        **identity,
        "queries": len(sizes),
        "queries_without_positive": len(loaded.queries) - len(sizes),
        "queries_without_negatives": n_empty,
        "queries_with_fewer": sum(0 < size < (recipe.n_negatives or 0) for size in sizes),
        "negatives": sum(sizes),
        "mean_negatives": round(sum(sizes) / max(len(sizes), 1), 3),
        "dropped": dropped,
        "session_seconds": round(time.perf_counter() - started, 1),
    }
    record_run(folder, facts)
    for windows in folder.glob("windows-*"):
        shutil.rmtree(windows)
    return negatives


def _find_labelled(recipe: MiningRecipe, collection: Collection) -> dict[str, tuple[str, ...]]:
    """Return the queries to search -> their judged positives; () if answers decide."""
    if recipe.needs_answers and not collection.answers:
        raise ValueError(
            f"{collection.name} has no answers, but answer_filter and positives: answers need them."
        )
    if recipe.positives == "answers":
        return dict.fromkeys(filter(collection.answers.get, collection.queries), ())
    labelled = judged_positives(collection)
    if not labelled:
        hint = " Its queries have answers: set positives to answers." if collection.answers else ""
        raise ValueError(
            f"No query of {recipe.collection}, split {recipe.split}, has a passage judged "
            f"relevant: choose another split.{hint}"
        )
    return labelled


def _mine_windows(
    miner: Miner, labelled: Mapping[str, Sequence[str]], windows: Path
) -> Counter[str]:
    """Mine the missing windows, join all into the file of hard negatives, and count drops."""
    dropped = Counter[str]()
    windows.mkdir(exist_ok=True)
    starts = range(0, len(labelled), QUERIES_A_WINDOW)
    with atomic_file(windows.parent / NEGATIVES_FILE) as joined:
        for start in bar(starts, "mining", unit="window"):
            file = windows / f"{start}.json"
            if not file.is_file():
                mined, counts = miner.mine(
                    dict(islice(labelled.items(), start, start + QUERIES_A_WINDOW))
                )
                lines = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in mined)
                write_json(file, {"dropped": counts, "lines": lines})
            window = json.loads(file.read_text(encoding="utf-8"))
            dropped.update(window["dropped"])
            joined.write(window["lines"].encode())
    return dropped
