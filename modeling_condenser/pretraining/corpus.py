"""Raw text in, documents out: a Hub data set or local files become a column `text`.

A document is what a block never crosses: a line of a .txt file, or a row of anything else.
"""

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from datasets import (
    Dataset,
    Features,
    IterableDataset,
    Value,
    concatenate_datasets,
    interleave_datasets,
)
from datasets import load_dataset as load_hub_dataset

_BUILDERS = {
    ".txt": "text",
    ".jsonl": "json",
    ".json": "json",
    ".parquet": "parquet",
    ".csv": "csv",
}
_FEATURES = Features({"text": Value("string")})


@dataclass(frozen=True)
class Source:
    """One part of a corpus.

    Attributes:
        path: Hub data set name, or a local file, folder or glob pattern of .txt, .jsonl, .json,
            .csv or .parquet files (also with .gz, .xz, .zst behind the ending).
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
    """Open a corpus.

    Args:
        sources: its parts, one after the other (when streaming: in turns).
        streaming: read as needed, never holding the corpus on disk or in memory.

    Returns:
        A data set with the one column `text`, a document a row.

    Raises:
        FileNotFoundError: a local file does not exist.
        ValueError: no source, no such column, or an empty corpus.
    """
    if not sources:
        raise ValueError("The corpus has no source: name a Hub data set or local files.")
    parts = [_load_source(source, streaming) for source in sources]
    if len(parts) == 1:
        return parts[0]
    if streaming:
        return interleave_datasets(parts, stopping_strategy="all_exhausted_without_replacement")
    return concatenate_datasets(parts)


def _load_source(source: Source, streaming: bool) -> Dataset | IterableDataset:
    empty = ValueError(f"{source.path} holds no documents: the corpus is empty.")
    try:
        rows = _load_rows(source, streaming)
        columns = _columns(rows)
    except StopIteration:  # what the library raises for files without a row
        raise empty from None
    if not columns:
        raise empty
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
    if rows.features != _FEATURES:
        # Parquet often holds large strings, which cannot be put together with others.
        rows = rows.cast(_FEATURES)
    if source.join_rows > 1:
        rows = rows.map(_join, batched=True, batch_size=source.join_rows)
    return rows


def _load_rows(source: Source, streaming: bool) -> Dataset | IterableDataset:
    files = _local_files(source.path)
    if files is None:
        return load_hub_dataset(
            source.path,
            source.name,
            split=source.split,
            revision=source.revision,
            streaming=streaming,
        )
    builder = _builder(source.path, files)
    data_files = [str(file) for file in files if file.stat().st_size > 0]
    if not data_files:
        return Dataset.from_dict({})
    return load_hub_dataset(builder, data_files=data_files, split="train", streaming=streaming)


def _columns(rows: Dataset | IterableDataset) -> list[str]:
    """The columns of a data set; none if it has no rows."""
    if isinstance(rows, Dataset):
        return rows.column_names if len(rows) else []
    return list(next(iter(rows), {}))


def _local_files(path: str) -> list[Path] | None:
    """The local files that a path means, sorted; None if it names a Hub data set."""
    if glob.has_magic(path):
        files = [Path(match) for match in sorted(glob.glob(path, recursive=True))]
        files = [file for file in files if file.is_file()]
        if not files:
            raise FileNotFoundError(f"No file matches {path!r}.")
        return files
    local = Path(path)
    if local.is_file():
        return [local]
    if local.is_dir():
        files = [file for file in sorted(local.rglob("*")) if file.is_file()]
        files = [file for file in files if _ending(file) in _BUILDERS]
        if not files:
            raise FileNotFoundError(f"{path} holds no {', '.join(_BUILDERS)} file.")
        return files
    looks_local = local.is_absolute() or path.startswith((".", "~")) or path.count("/") > 1
    if looks_local or _ending(local) in _BUILDERS:
        raise FileNotFoundError(
            f"{path} does not exist. A corpus is a Hub data set name (owner/name), or a local "
            f"file, folder or pattern of {', '.join(_BUILDERS)} files."
        )
    return None


def _builder(path: str, files: list[Path]) -> str:
    endings = {_ending(file) for file in files}
    builders = {_BUILDERS.get(ending) for ending in endings}
    if None in builders or len(builders) != 1:
        raise ValueError(
            f"{path} means files ending in {', '.join(sorted(endings))}; expected files of one "
            f"kind among {', '.join(_BUILDERS)}."
        )
    return builders.pop() or ""


def _ending(file: Path) -> str:
    """The kind of a file, below a compression ending."""
    suffixes = [suffix.lower() for suffix in file.suffixes]
    if suffixes and suffixes[-1] in (".gz", ".xz", ".zst", ".bz2"):
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _join(rows: dict[str, list[Any]]) -> dict[str, list[str]]:
    return {"text": [" ".join(text for text in rows["text"] if text)]}
