"""Collections on the Hugging Face Hub: a repository's name in, a `Collection` out.

What is needed of a repository is fetched into the Hub's cache and read there as a folder, so that
it works off line afterwards. Three layouts are known:

- A BEIR folder as files (`beir.py`), as BeIR/scifact and mteb/scifact have them. They are read as
  files so that no library guesses the type of an id; a loading script beside them does not matter.
- Configurations `corpus` and `queries` (`configured.py`), as newer sets of MTEB have them.
- Either of them with the judgements in a second repository, `<name>-qrels`, as BEIR has them.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

from datasets import Dataset

from modeling_condenser.hub.errors import NotOnHubError
from modeling_condenser.hub.fetching import HubName, fetch

from .beir import (
    CORPUS_FILE,
    QRELS_FOLDER,
    QUERIES_FILE,
    find_qrels_files,
    is_beir_folder,
    load_beir_collection,
    load_beir_passages,
)
from .collection import Collection
from .configured import (
    CARD_FILE,
    CORPUS_CONFIG,
    QRELS_CONFIGS,
    QUERIES_CONFIGS,
    load_configured_collection,
    load_configured_passages,
    read_configs,
)

logger = logging.getLogger(__name__)

_BEIR_PATTERNS = (f"{CORPUS_FILE}*", f"{QUERIES_FILE}*", f"{QRELS_FOLDER}/*")
_QRELS_PATTERNS = ("*.tsv", "*.tsv.gz", "*.jsonl", "*.jsonl.gz")


def load_hub_collection(name: str, *, split: str = "test") -> Collection:
    """Load one split of a data set on the Hub, of which only the files needed are fetched.

    Args:
        name: `owner/name`, or `owner/name@revision`.
        split: whose judgements to load.

    Returns:
        All passages, and the queries that the split judges.

    Raises:
        FileNotFoundError: there is no such data set, or it cannot be reached.
        ValueError: unknown layout or split, or contents that do not fit together; the message names
            the file and the line, or the id.
    """
    folder, own_name = _fetch_collection(name), HubName.parse(name).name.rpartition("/")[2]
    if is_beir_folder(folder):
        qrels_folder = folder / QRELS_FOLDER
        if not find_qrels_files(qrels_folder):
            qrels_folder = _fetch_qrels(name) or qrels_folder
        return load_beir_collection(folder, split=split, qrels_folder=qrels_folder, name=own_name)
    beside = None
    if not any(config in read_configs(folder) for config in QRELS_CONFIGS):
        beside = _fetch_qrels(name)
    return load_configured_collection(folder, split=split, qrels_folder=beside, name=own_name)


def load_hub_passages(name: str) -> Dataset:
    """Load the passages of a data set on the Hub; see `load_hub_collection`."""
    folder = _fetch_collection(name)
    load = load_beir_passages if is_beir_folder(folder) else load_configured_passages
    return load(folder)


def _fetch_collection(name: str) -> Path:
    """Fetch a BEIR folder, or the files of the configurations that make up a collection."""
    folder = _fetch(name, (CARD_FILE, *_BEIR_PATTERNS))
    if is_beir_folder(folder):
        return folder
    configs = read_configs(folder)
    wanted = (CORPUS_CONFIG, *QUERIES_CONFIGS, *QRELS_CONFIGS)
    if CORPUS_CONFIG not in configs:
        raise ValueError(
            f"{name} has no {CORPUS_FILE}, and the configurations {', '.join(configs) or 'none'},"
            f" expected BEIR's files, or the configurations {' and '.join(wanted[:2])}: fetch it"
            " and write it as a BEIR folder"
        )
    patterns = [pattern for config in wanted for pattern in configs.get(config, ())]
    return _fetch(name, (CARD_FILE, *patterns))


def _fetch_qrels(name: str) -> Path | None:
    """Fetch the judgements that lie in a repository of their own; None if there is none."""
    beside = f"{HubName.parse(name).name}-qrels"
    try:
        folder = _fetch(beside, (CARD_FILE, *_QRELS_PATTERNS))
        if find_qrels_files(folder):
            return folder
        patterns = [pattern for files in read_configs(folder).values() for pattern in files]
        return _fetch(beside, (CARD_FILE, *patterns))
    except FileNotFoundError as error:
        logger.warning("%s holds no judgements; beside it: %s", name, error)
        return None


def _fetch(name: str, patterns: Sequence[str]) -> Path:
    """Fetch the files of a repository that match; the folder may hold others from earlier."""
    try:
        return fetch(name, repo_type="dataset", only=patterns)
    except (NotOnHubError, ValueError) as error:
        raise FileNotFoundError(
            f"no collection {name}: there is no such folder here, and a data set of that name "
            f"could not be fetched. {error}"
        ) from None
