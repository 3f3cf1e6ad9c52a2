"""A Hub data set or local files as a data set with a column `text`, a document a row."""

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset, Features, IterableDataset, Value, load_dataset

_BUILDERS = {".txt": "text", ".jsonl": "json", ".json": "json"}
_BUILDERS |= {".parquet": "parquet", ".csv": "csv"}
_COMPRESSED = (".gz", ".xz", ".zst", ".bz2")
_FEATURES = Features({"text": Value("string")})


@dataclass(frozen=True)
class Source:
    """One part of a corpus.

    Attributes:
        path: Hub data set name, or a local file, folder or glob pattern of .txt (a document a
            line), .jsonl, .json, .csv or .parquet files, perhaps compressed (.gz, .xz, .zst).
        name: configuration of a Hub data set, such as a language.
        split: split of a Hub data set.
        revision: branch, tag or commit of a Hub data set.
        text_column: column that holds the text.
        join_rows: how many consecutive rows make one document, for data sets of one sentence a
            row, such as BookCorpus.
    """

    path: str
    name: str | None = None
    split: str = "train"
    revision: str | None = None
    text_column: str = "text"
    join_rows: int = 1


def load_documents(
    sources: Sequence[Source], *, streaming: bool = False
) -> Dataset | IterableDataset:
    """Open the parts of a corpus, one after the other; in turns when streaming.

    Returns:
        A data set with the one column `text`, a document a row. When streaming, it is read as
        needed and never held on disk or in memory.

    Raises:
        FileNotFoundError: a local file does not exist.
        ValueError: no such column, files of several kinds, or an empty corpus.
    """
    parts = [_load_source(source, streaming) for source in sources]
    if len(parts) == 1:
        return parts[0]
    if streaming:
        return datasets.interleave_datasets(
            parts, stopping_strategy="all_exhausted_without_replacement"
        )
    return datasets.concatenate_datasets(parts)


def _load_source(source: Source, streaming: bool) -> Dataset | IterableDataset:
    try:
        rows = _load_rows(source, streaming)
        columns = list(next(iter(rows)))
    except StopIteration:  # of no rows; the library raises it, too
        raise ValueError(f"{source.path} holds no documents: the corpus is empty.") from None
    if source.text_column not in columns:
        nearest = get_close_matches(source.text_column, columns, n=1)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        raise ValueError(
            f"{source.path} has no column {source.text_column!r}: its columns are "
            f"{', '.join(sorted(columns))}.{hint} Set text_column."
        )
    rows = rows.select_columns([source.text_column])
    if source.text_column != "text":
        rows = rows.rename_column(source.text_column, "text")
    if rows.features != _FEATURES:  # Parquet often holds large strings
        rows = rows.cast(_FEATURES)
    if source.join_rows > 1:
        rows = rows.map(_join, batched=True, batch_size=source.join_rows)
    return rows


def _load_rows(source: Source, streaming: bool) -> Dataset | IterableDataset:
    files = _local_files(source.path)
    if files is None:
        options = {"split": source.split, "revision": source.revision, "streaming": streaming}
        return load_dataset(source.path, source.name, **options)
    if not files:
        raise FileNotFoundError(
            f"There are no documents at {source.path}. A corpus is a Hub data set name "
            f"(owner/name), or a local file, folder or pattern of {', '.join(_BUILDERS)} files."
        )
    kinds = {_ending(file) for file in files}
    builders = {_BUILDERS.get(kind) for kind in kinds}
    if None in builders or len(builders) != 1:
        raise ValueError(
            f"{source.path} means files ending in {', '.join(sorted(kinds))}; expected files of "
            f"one kind among {', '.join(_BUILDERS)}."
        )
    filled = [str(file) for file in files if file.stat().st_size > 0]
    if not filled:
        return Dataset.from_dict({})
    return load_dataset(builders.pop(), data_files=filled, split="train", streaming=streaming)


def _local_files(path: str) -> list[Path] | None:
    """The local files that a path means, sorted; None if it names a Hub data set."""
    local = Path(path)
    if local.is_file():
        return [local]
    if local.is_dir():
        found = [file for file in sorted(local.rglob("*")) if _ending(file) in _BUILDERS]
    else:
        found = [Path(match) for match in sorted(glob.glob(path, recursive=True))]
    is_path = path.startswith(("/", ".", "~")) or path.count("/") > 1 or glob.has_magic(path)
    if not is_path and not local.is_dir() and _ending(local) not in _BUILDERS:
        return None
    return [file for file in found if file.is_file()]


def _ending(file: Path) -> str:
    """The kind of a file, below a compression ending."""
    suffixes = [suffix.lower() for suffix in file.suffixes]
    if suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _join(rows: dict[str, list[Any]]) -> dict[str, list[str]]:
    return {"text": [" ".join(text for text in rows["text"] if text)]}
