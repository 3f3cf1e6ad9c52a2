"""Loads a collection from a folder in a known layout, or from the Hub (in BEIR's layout)."""

import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from datasets import Dataset

from modeling_condenser.files.hub import fetch, split_revision
from modeling_condenser.files.settings import refuse_ambiguous

from . import beir, dpr, msmarco
from .collection import Collection, build_collection, keep_queries
from .passages import plain_text, store_passages
from .text_files import find_file, list_names

logger = logging.getLogger(__name__)

HEALTH = "health"
"""Name of the collection that comes with the package."""

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@.+)?")  # owner/name@revision
_LAYOUTS = (beir, dpr, msmarco)
_BEIR_PATTERNS = (beir.CARD_FILE, "corpus.jsonl*", "queries.jsonl*", "qrels/*")


def load_collection(source: str | Path, *, split: str = "test") -> Collection:
    """Load one split of a collection.

    Args:
        source: a folder in the layout of BEIR, MTEB, MS MARCO or DPR; a Hub data set in the layout
            of BEIR or MTEB (`owner/name` or `owner/name@revision`); or "health", the bundled one.
        split: such as "test", or "dev.small" or "dl19" for MS MARCO, or "nq-test" for DPR.

    Raises:
        FileNotFoundError: the collection or one of its files is missing.
        ValueError: the split is unknown, or the files are malformed or do not fit together.
    """
    layout, folder, beside = _find(source)
    questions, judgements = layout.read_split(folder, split, **beside)
    passages, name = store_passages(*layout.read_passages(folder, split)), name_collection(source)
    try:
        return build_collection(passages, questions, judgements, name=name)
    except ValueError as error:
        raise ValueError(f"{source}, split {split}: {error}") from error


def load_reported(source: str | Path, *, split: str) -> Collection:
    """Load a split whose results are reported, and warn of queries that other splits have too.

    A query is the same if its id or its text is. Only BEIR's layout has all splits in one place.
    """
    loaded, (layout, folder, beside) = load_collection(source, split=split), _find(source)
    others = set(beir.find_judgements(folder, **beside)) if layout is beir else set()
    shared: dict[str, int] = {}
    for other in sorted(others - {split, beir.SAME_SPLITS.get(split)}):
        with suppress(ValueError):  # it cannot be read
            questions, judgements = beir.read_split(folder, other, **beside)
            judged = {query for query, _, _ in judgements or ()}
            queries = {query: text for query, text, _ in questions if query in judged}
            if n_shared := len(_find_shared(loaded.queries, queries)):
                shared[other] = n_shared
                logger.warning(
                    "%d of the %d queries of %s are also in %s: results are too good if the system"
                    " was trained or chosen on these.",
                    *(n_shared, len(loaded.queries), split, other),
                )
    return replace(loaded, shared=shared)


def _find_shared(queries: Mapping[str, str], others: Mapping[str, str]) -> set[str]:
    """Find the queries whose id or text is among the others."""
    texts = set(map(plain_text, others.values()))
    return {q for q, text in queries.items() if q in others or plain_text(text) in texts}


def load_dev(
    source: str | Path, *, judged: str, reported: Collection | None = None
) -> Collection | None:
    """Load the split `dev` for choosing settings; None if the collection has none.

    The queries of `reported`, a collection of the reported split `judged`, are left out. The result
    is also None if that split is one of dev (dev.small).
    """
    if judged.startswith(("dev", "validation")):
        return None
    try:
        dev = load_collection(source, split="dev")
    except (ValueError, FileNotFoundError) as error:
        logger.info("No dev queries: %s", error)
        return None
    if not reported or not (shared := _find_shared(dev.queries, reported.queries)):
        return dev
    logger.info("Settings are not chosen on %d dev queries that %s has too", len(shared), judged)
    if len(shared) == len(dev.queries):
        return None
    return keep_queries(dev, dev.queries.keys() - shared)


def load_passages(source: str | Path) -> Dataset:
    """Load the passages of a collection alone: columns `_id`, `title`, `text`."""
    layout, folder, _ = _find(source)
    return store_passages(*layout.read_passages(folder, "test"))


def resolve_collection_name(name: str | Path) -> str:
    """Return the folder of the bundled collection for "health", and any other name unchanged.

    If there also is a file or folder `health` here, a ValueError is raised.
    """
    if name != HEALTH:
        return str(name)
    refuse_ambiguous(HEALTH, "the collection")
    return str(Path(__file__).parent.parent / HEALTH)


def name_collection(source: str | Path) -> str:
    """Return the name of a collection in files and tables: the last part of folder or Hub name."""
    if _is_on_hub(source):
        return split_revision(str(source))[0].rpartition("/")[2]
    return Path(resolve_collection_name(source)).resolve().name


def _is_on_hub(source: str | Path) -> bool:
    return not Path(source).exists() and _HUB_NAME.fullmatch(str(source)) is not None


def _find(source: str | Path) -> tuple[ModuleType, Path, dict[str, Path]]:
    """Find the layout and the folder of a collection; download it if it is on the Hub.

    Also return the judgements beside a data set on the Hub, as an argument of `beir.read_split`.
    """
    folder = Path(resolve_collection_name(source)).absolute()  # "." has no name
    beside: dict[str, Path] = {}
    if _is_on_hub(source):
        folder = fetch(str(source), repo_type="dataset", only=_BEIR_PATTERNS)
        if beir.is_layout(folder) and not find_file(folder, beir.CORPUS_FILE):
            folder = fetch(str(source), repo_type="dataset")  # for the tables
        if not beir.find_judgements(folder):
            with suppress(FileNotFoundError):
                name = f"{split_revision(str(source))[0]}-qrels"
                beside["beside"] = fetch(name, repo_type="dataset")
    for layout in _LAYOUTS:
        if layout.is_layout(folder):
            return layout, folder, beside
    known = "; or ".join(layout.DESCRIPTION for layout in _LAYOUTS)
    state = f"which holds {list_names(folder)}" if folder.exists() else "which does not exist"
    raise FileNotFoundError(
        f"no collection at {source}, {state}: expected a data set on the Hub (owner/name), or a"
        f" folder with {known}."
    )
