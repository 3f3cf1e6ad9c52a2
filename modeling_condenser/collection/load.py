"""Loads any collection, from a folder in one of the known layouts or from the Hub.

Of a Hub data set, only the files that are needed are downloaded into the Hub's cache; they are then
read as a folder, and later also offline.
"""

import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from datasets import Dataset

from modeling_condenser.hub.errors import NotOnHubError
from modeling_condenser.hub.fetching import HubName, fetch

from .beir import (
    CARD_FILE,
    CORPUS_CONFIG,
    CORPUS_FILE,
    QRELS_CONFIGS,
    QRELS_FOLDER,
    QUERIES_CONFIGS,
    QUERIES_FILE,
    is_beir_folder,
    is_configured_folder,
    load_beir_collection,
    load_beir_passages,
    load_configured_collection,
    load_configured_passages,
    qrels_readers,
    read_configs,
)
from .collection import Collection
from .dpr import is_dpr_folder, load_dpr_collection, load_dpr_passages
from .msmarco import is_msmarco_folder, load_msmarco_collection, load_msmarco_passages
from .text_files import list_names

logger = logging.getLogger(__name__)

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")
_BEIR_PATTERNS = (f"{CORPUS_FILE}*", f"{QUERIES_FILE}*", f"{QRELS_FOLDER}/*")
_QRELS_PATTERNS = ("*.tsv", "*.tsv.gz", "*.jsonl", "*.jsonl.gz")


class Layout(NamedTuple):
    """One way in which a collection is laid out in a folder."""

    description: str
    is_in: Callable[[Path], bool]
    load_collection: Callable[..., Collection]
    load_passages: Callable[[Path], Dataset]


_LAYOUTS = (
    Layout("corpus.jsonl (BEIR)", is_beir_folder, load_beir_collection, load_beir_passages),
    Layout("psgs_w100.tsv (DPR)", is_dpr_folder, load_dpr_collection, load_dpr_passages),
    Layout(
        "msmarco-docs.tsv, para.txt, corpus.tsv or collection.tsv (MS MARCO)",
        is_msmarco_folder,
        load_msmarco_collection,
        load_msmarco_passages,
    ),
    Layout(
        "a README.md that declares the tables corpus and queries (a Hub data set)",
        is_configured_folder,
        load_configured_collection,
        load_configured_passages,
    ),
)


def load_collection(source: str | Path, *, split: str = "test") -> Collection:
    """Load one split of a collection.

    Args:
        source: a folder in the layout of BEIR, MTEB, MS MARCO or DPR, or a data set on the Hub in
            the layout of BEIR or MTEB: `owner/name`, or `owner/name@revision`.
        split: whose queries and judgements to load: "test" for most collections, but "dev.small"
            or "dl19" for MS MARCO and "nq-test" for DPR.

    Returns:
        All passages, and the queries that the split judges, by passages or by answers.

    Raises:
        FileNotFoundError: there is no such collection, or one of its files is missing.
        ValueError: the split is unknown, or the files are malformed or do not fit together.
    """
    layout = _find_layout(source)
    if layout is not None:
        return layout.load_collection(Path(source), split=split)
    folder, layout = _fetch_collection(str(source))
    in_files = is_beir_folder(folder)
    own = qrels_readers(folder / QRELS_FOLDER) if in_files else _patterns(folder, *QRELS_CONFIGS)
    return layout.load_collection(
        folder,
        split=split,
        qrels_folder=None if own else _fetch_qrels(str(source)),
        name=HubName.parse(str(source)).name.rpartition("/")[2],
    )


def load_passages(source: str | Path) -> Dataset:
    """Load the passages of a collection alone: columns `_id`, `title`, `text`.

    Args:
        source: see `load_collection`.
    """
    layout = _find_layout(source)
    if layout is not None:
        return layout.load_passages(Path(source))
    folder, layout = _fetch_collection(str(source))
    return layout.load_passages(folder)


def _find_layout(source: str | Path) -> Layout | None:
    """The layout of a folder; None for a name on the Hub."""
    folder = Path(source)
    if not folder.is_dir():
        if not folder.exists() and _HUB_NAME.fullmatch(str(source)):
            return None
        raise FileNotFoundError(
            f"no collection at {source}: expected a folder, or a data set on the Hub as owner/name."
        )
    layout = next((layout for layout in _LAYOUTS if layout.is_in(folder)), None)
    if layout is None:
        raise FileNotFoundError(
            f"no collection in {folder}: it holds {list_names(folder)}, expected"
            f" {'; or '.join(layout.description for layout in _LAYOUTS)}."
        )
    return layout


def _fetch_collection(name: str) -> tuple[Path, Layout]:
    """Download the files of a collection."""
    folder = _fetch(name, (CARD_FILE, *_BEIR_PATTERNS))
    if is_beir_folder(folder):
        return folder, _LAYOUTS[0]
    if not is_configured_folder(folder):
        raise ValueError(
            f"{name} has no {CORPUS_FILE} and the configurations"
            f" {', '.join(read_configs(folder)) or '(none)'}, expected {CORPUS_CONFIG} and"
            f" {QUERIES_CONFIGS[0]}. Download it and write it as a BEIR folder."
        )
    patterns = _patterns(folder, CORPUS_CONFIG, *QUERIES_CONFIGS, *QRELS_CONFIGS)
    return _fetch(name, (CARD_FILE, *patterns)), _LAYOUTS[-1]


def _fetch_qrels(name: str) -> Path | None:
    """Download the judgements from a repository of their own, `<name>-qrels`, if there is one."""
    beside = f"{HubName.parse(name).name}-qrels"
    try:
        folder = _fetch(beside, (CARD_FILE, *_QRELS_PATTERNS))
        if qrels_readers(folder):
            return folder
        return _fetch(beside, (CARD_FILE, *_patterns(folder, *QRELS_CONFIGS)))
    except FileNotFoundError as error:
        logger.warning("%s holds no judgements, and %s", name, error)
        return None


def _patterns(folder: Path, *names: str) -> list[str]:
    """The patterns of the files of some configurations."""
    configs = read_configs(folder)
    return [pattern for name in names for pattern in configs.get(name, ())]


def _fetch(name: str, patterns: Sequence[str]) -> Path:
    try:
        return fetch(name, repo_type="dataset", only=patterns)
    except (NotOnHubError, ValueError) as error:
        raise FileNotFoundError(
            f"no collection {name}: there is no such folder, and no such data set could be"
            f" downloaded. {error}"
        ) from None
