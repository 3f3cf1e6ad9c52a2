"""Loads a collection from a folder in a known layout, or from the Hub (in BEIR's layout)."""

import logging
import re
from pathlib import Path
from types import ModuleType

from datasets import Dataset

from modeling_condenser.hub.model_folder import fetch, split_revision

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
    if not _is_on_hub(source):
        return _find_layout(Path(source)).load_collection(Path(source), split=split)
    name, _ = split_revision(str(source))
    folder = _fetch_collection(str(source))
    beside = None if beir.find_judgements(folder) else _fetch_qrels(name)
    own_name = name.rpartition("/")[2]
    return beir.load_collection(folder, split=split, beside=beside, name=own_name)


def load_passages(source: str | Path) -> Dataset:
    """Load the passages of a collection alone: columns `_id`, `title`, `text`."""
    if _is_on_hub(source):
        return beir.load_passages(_fetch_collection(str(source)))
    return _find_layout(Path(source)).load_passages(Path(source))


def _is_on_hub(source: str | Path) -> bool:
    return not Path(source).exists() and _HUB_NAME.fullmatch(str(source)) is not None


def _find_layout(folder: Path) -> ModuleType:
    """The module that reads a folder."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"no collection at {folder}: expected a folder, or a data set on the Hub as owner/name."
        )
    for layout in _LAYOUTS:
        if layout.is_layout(folder):
            return layout
    raise FileNotFoundError(
        f"no collection in {folder}: it holds {list_names(folder)}, expected"
        f" {'; or '.join(layout.DESCRIPTION for layout in _LAYOUTS)}."
    )


def _fetch_collection(name: str) -> Path:
    """Download a collection in BEIR's layout: its files, or else all of its tables."""
    try:
        folder = fetch(name, repo_type="dataset", only=_BEIR_PATTERNS)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"no collection {name}: there is no such folder. {error}") from None
    if find_file(folder, beir.CORPUS_FILE):
        return folder
    if not beir.is_layout(folder):
        tables = ", ".join(beir.list_tables(folder)) or "(none)"
        raise ValueError(f"{name} has the tables {tables}, expected {beir.DESCRIPTION}.")
    return fetch(name, repo_type="dataset")


def _fetch_qrels(name: str) -> Path | None:
    """Download the judgements from a repository of their own, `<name>-qrels`, if there is one."""
    try:
        return fetch(f"{name}-qrels", repo_type="dataset")
    except FileNotFoundError as error:
        logger.warning("%s holds no judgements. %s", name, error)
        return None
