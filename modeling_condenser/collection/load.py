"""Loads a collection from a folder in a known layout, or from the Hub (in BEIR's layout)."""

import logging
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from datasets import Dataset

from modeling_condenser.hub.model_folder import fetch, split_revision
from modeling_condenser.hub.provenance import hub_name

from . import beir, dpr, msmarco
from .collection import Collection, build_collection
from .passages import store_passages
from .text_files import find_file, list_names

logger = logging.getLogger(__name__)

HEALTH = "health"
"""Name of the collection that comes with the package."""

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
    layout, folder = _find(source)
    name, options = name_collection(source), dict[str, Any]()
    if _is_on_hub(source):
        repository = split_revision(str(source))[0]
        if not beir.find_judgements(folder):
            with suppress(FileNotFoundError):
                options["beside"] = fetch(f"{repository}-qrels", repo_type="dataset")
    questions, judgements = layout.read_split(folder, split, **options)
    passages = store_passages(*layout.read_passages(folder, split))
    try:
        return build_collection(passages, questions, judgements, name=name)
    except ValueError as error:
        raise ValueError(f"{source}, split {split}: {error}") from error


def load_dev(source: str | Path, *, judged: str) -> Collection | None:
    """Load the split `dev` for choosing settings; None if the collection has none.

    The result is also None if the reported split, `judged`, may share queries with it (dev.small).
    """
    if judged.startswith(("dev", "validation")):
        return None
    try:
        return load_collection(source, split="dev")
    except (ValueError, FileNotFoundError) as error:
        logger.info("No dev queries: %s", error)
        return None


def load_passages(source: str | Path) -> Dataset:
    """Load the passages of a collection alone: columns `_id`, `title`, `text`."""
    layout, folder = _find(source)
    return store_passages(*layout.read_passages(folder, "test"))


def resolve_collection_name(name: str | Path) -> str:
    """Return the folder of the bundled collection for "health", and any other name unchanged."""
    return str(Path(__file__).parent.parent / HEALTH if name == HEALTH else name)


def name_collection(source: str | Path) -> str:
    """Return the name of a collection in files and tables: the last part of folder or Hub name."""
    if _is_on_hub(source):
        return split_revision(str(source))[0].rpartition("/")[2]
    return Path(resolve_collection_name(source)).resolve().name


def _is_on_hub(source: str | Path) -> bool:
    return not Path(source).exists() and hub_name(str(source)) is not None


def _find(source: str | Path) -> tuple[ModuleType, Path]:
    """Find the layout and the folder of a collection; download it if it is on the Hub."""
    folder = Path(resolve_collection_name(source)).absolute()  # "." has no name
    if _is_on_hub(source):
        folder = fetch(str(source), repo_type="dataset", only=_BEIR_PATTERNS)
        if beir.is_layout(folder) and not find_file(folder, beir.CORPUS_FILE):
            folder = fetch(str(source), repo_type="dataset")  # for the tables
    for layout in _LAYOUTS:
        if layout.is_layout(folder):
            return layout, folder
    known = "; or ".join(layout.DESCRIPTION for layout in _LAYOUTS)
    raise FileNotFoundError(
        f"no collection at {source}, which holds {list_names(folder)}: expected a data set on the"
        f" Hub (owner/name), or a folder with {known}."
    )
