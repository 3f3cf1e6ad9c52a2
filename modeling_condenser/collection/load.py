"""Loads a collection from a folder in a known layout, or from the Hub (in BEIR's layout)."""

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from datasets import Dataset

from modeling_condenser.hub.fetching import HubName, fetch

from . import beir, dpr, msmarco
from .collection import Collection
from .text_files import find_file, list_names

logger = logging.getLogger(__name__)

_LAYOUTS = (beir, dpr, msmarco)
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")
_BEIR_PATTERNS = (beir.CARD_FILE, "corpus.jsonl*", "queries.jsonl*", "qrels/*")


def load_collection(source: str | Path, *, split: str = "test") -> Collection:
    """Load one split of a collection.

    Args:
        source: a folder in the layout of BEIR, MTEB, MS MARCO or DPR, or a data set on the Hub in
            the layout of BEIR or MTEB: `owner/name`, or `owner/name@revision`.
        split: whose queries and judgements to load: "test" for most collections, but "dev.small"
            or "dl19" for MS MARCO and "nq-test" for DPR.

    Raises:
        FileNotFoundError: there is no such collection, or one of its files is missing.
        ValueError: the split is unknown, or the files are malformed or do not fit together.
    """
    layout = _find_layout(source)
    if layout is not None:
        return layout.load_collection(Path(source), split=split)
    name = str(source)
    folder = _fetch_collection(name)
    beside = None if beir.find_judgements(folder) else _fetch_qrels(name)
    own_name = HubName.parse(name).name.rpartition("/")[2]
    return beir.load_collection(folder, split=split, beside=beside, name=own_name)


def load_passages(source: str | Path) -> Dataset:
    """Load the passages of a collection alone: columns `_id`, `title`, `text`."""
    layout = _find_layout(source)
    if layout is not None:
        return layout.load_passages(Path(source))
    return beir.load_passages(_fetch_collection(str(source)))


def _find_layout(source: str | Path) -> ModuleType | None:
    """The module that reads a folder; None for a name on the Hub."""
    folder = Path(source)
    if not folder.exists() and _HUB_NAME.fullmatch(str(source)):
        return None
    if not folder.is_dir():
        raise FileNotFoundError(
            f"no collection at {source}: expected a folder, or a data set on the Hub as owner/name."
        )
    layout = next((layout for layout in _LAYOUTS if layout.is_layout(folder)), None)
    if layout is None:
        raise FileNotFoundError(
            f"no collection in {folder}: it holds {list_names(folder)}, expected"
            f" {'; or '.join(layout.DESCRIPTION for layout in _LAYOUTS)}."
        )
    return layout


def _fetch_collection(name: str) -> Path:
    """Download a collection in BEIR's layout: its files, or else all of its tables."""
    folder = _fetch(name, _BEIR_PATTERNS)
    if find_file(folder, beir.CORPUS_FILE):
        return folder
    if not beir.is_layout(folder):
        tables = ", ".join(beir.read_tables(folder)) or "(none)"
        raise ValueError(
            f"{name} has no {beir.CORPUS_FILE}, and its tables are {tables}; expected corpus and"
            " queries."
        )
    return _fetch(name)


def _fetch_qrels(name: str) -> Path | None:
    """Download the judgements from a repository of their own, `<name>-qrels`, if there is one."""
    try:
        return _fetch(f"{HubName.parse(name).name}-qrels")
    except FileNotFoundError as error:
        logger.warning("%s holds no judgements, and %s", name, error)
        return None


def _fetch(name: str, patterns: Sequence[str] | None = None) -> Path:
    try:
        return fetch(name, repo_type="dataset", only=patterns)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"no collection {name}: neither a folder nor a data set on the Hub. {error}"
        ) from None
