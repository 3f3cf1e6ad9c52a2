"""Collections: passages, queries and relevance judgements of one split.

In: a BEIR folder (Thakur et al. 2021): `corpus.jsonl` (`_id`, `title`, `text`), `queries.jsonl`
(`_id`, `text`), `qrels/<split>.tsv` (header `query-id corpus-id score`). Out: a `Collection` whose
ids are known to fit together, so that nothing later needs to check them. Passages are a
memory-mapped `datasets.Dataset` and may be millions; only the judged queries are kept.
"""

import csv
import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, load_dataset

CORPUS_FILE = "corpus.jsonl"
QUERIES_FILE = "queries.jsonl"
QRELS_FOLDER = "qrels"
QRELS_HEADER = ("query-id", "corpus-id", "score")

Qrels = dict[str, dict[str, int]]
"""Query id -> passage id -> grade; above 0 is relevant."""


@dataclass(frozen=True)
class Collection:
    """Passages, and the queries and judgements of one split.

    Attributes:
        passages: columns `_id`, `title`, `text`, all strings; ids are unique.
        queries: query id -> text, the judged queries only, in the order of `queries.jsonl`.
        qrels: query id -> passage id -> grade, for the same queries.
    """

    passages: Dataset
    queries: dict[str, str]
    qrels: Qrels


def load_collection(path: str | Path, *, split: str = "test") -> Collection:
    """Load one split of a BEIR folder.

    Args:
        path: the folder.
        split: name of a file in `qrels/`, without `.tsv`.

    Returns:
        All passages, and the queries that the split judges.

    Raises:
        FileNotFoundError: the folder or one of its files is missing.
        ValueError: unknown split, missing column, empty file, duplicate id, or an id in the qrels
            that the corpus or the queries lack.
    """
    folder = _find_folder(path)
    qrels = _read_qrels(_find_qrels(folder, split))
    passages = load_passages(folder)
    all_queries = _load_texts(folder / QUERIES_FILE, columns=("_id", "text"))
    place = f"{QRELS_FOLDER}/{split}.tsv"
    passage_ids = {passage_id for grades in qrels.values() for passage_id in grades}
    _check_known(passage_ids, known=_ids(passages), where=folder / CORPUS_FILE, place=place)
    _check_known(qrels, known=_ids(all_queries), where=folder / QUERIES_FILE, place=place)
    pairs = zip(all_queries["_id"], all_queries["text"], strict=True)
    queries = {query_id: text for query_id, text in pairs if query_id in qrels}
    qrels = {query_id: qrels[query_id] for query_id in queries}
    return Collection(passages=passages, queries=queries, qrels=qrels)


def load_passages(path: str | Path) -> Dataset:
    """Load the passages of a BEIR folder: columns `_id`, `title`, `text`.

    Raises:
        FileNotFoundError: the folder or its corpus is missing.
        ValueError: missing column, empty file or duplicate id.
    """
    return _load_texts(_find_folder(path) / CORPUS_FILE, columns=("_id", "title", "text"))


def _find_folder(path: str | Path) -> Path:
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"no collection at {folder}: expected a folder with {CORPUS_FILE}, {QUERIES_FILE} and"
            f" {QRELS_FOLDER}/; mend the path"
        )
    return folder


def _find_qrels(folder: Path, split: str) -> Path:
    path = folder / QRELS_FOLDER / f"{split}.tsv"
    if path.is_file():
        return path
    splits = sorted(file.stem for file in (folder / QRELS_FOLDER).glob("*.tsv"))
    if not splits:
        raise FileNotFoundError(
            f"{folder} judges nothing: expected {QRELS_FOLDER}/<split>.tsv; add a qrels file"
        )
    raise ValueError(
        f"{folder} has no split {split!r}, expected one of {', '.join(splits)}: choose one of them"
    )


def _read_qrels(path: Path) -> Qrels:
    qrels: Qrels = {}
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        header = tuple(next(rows, ()))
        if header != QRELS_HEADER:
            raise ValueError(
                f"{path}:1: header {header}, expected {QRELS_HEADER}, separated by tabs: add it"
            )
        for number, row in enumerate(rows, start=2):
            query_id, passage_id, grade = _parse_judgement(row, place=f"{path}:{number}")
            grades = qrels.setdefault(query_id, {})
            if passage_id in grades:
                raise ValueError(
                    f"{path}:{number}: query {query_id!r} judges passage {passage_id!r} a second"
                    " time, expected once: drop one of the two lines"
                )
            grades[passage_id] = grade
    if not qrels:
        raise ValueError(f"{path} judges no query, expected at least one line after the header")
    return qrels


def _parse_judgement(row: Sequence[str], *, place: str) -> tuple[str, str, int]:
    try:
        query_id, passage_id, grade = row
        return query_id, passage_id, int(grade)
    except ValueError as error:
        raise ValueError(
            f"{place}: {list(row)}, expected a query id, a passage id and a whole number,"
            " separated by tabs: mend the line"
        ) from error


def _load_texts(path: Path, *, columns: Sequence[str]) -> Dataset:
    """Load the text columns of a JSON-lines file and check that ids are unique."""
    if not path.is_file():
        raise FileNotFoundError(f"no {path.name} in {path.parent}: a BEIR folder has one; add it")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty, expected at least one line with {', '.join(columns)}")
    dataset = load_dataset("json", data_files=str(path), split="train")
    _check_columns(dataset, columns=columns, path=path)
    dataset = dataset.select_columns(list(columns))
    ids = _ids(dataset)
    if pc.count_distinct(ids).as_py() < len(ids):
        counts = pc.value_counts(ids)
        repeated = counts.filter(pc.greater(counts.field("counts"), 1))[0].as_py()
        raise ValueError(
            f"{path}: id {repeated['values']!r} stands on {repeated['counts']} lines, expected"
            " unique ids: rename or drop the others"
        )
    return dataset


def _check_columns(dataset: Dataset, *, columns: Sequence[str], path: Path) -> None:
    found = dataset.column_names
    for column in columns:
        if column not in found:
            nearest = difflib.get_close_matches(column, found, n=1, cutoff=0.0)
            raise ValueError(
                f"{path} has the columns {', '.join(found)}, expected {', '.join(columns)}:"
                f" {column!r} is missing; rename {nearest[0]!r}, or add it (a title may be empty)"
            )
        # datasets guesses types: an id like 2020-01-01 becomes a time stamp, and would come back
        # spelt differently. So anything but text is refused instead of cast.
        kind = dataset.features[column].dtype
        if kind not in ("string", "large_string") or dataset.data.column(column).null_count:
            raise ValueError(
                f"{path}: column {column!r} was read as {kind} or has nulls, expected a JSON string"
                f' on every line: quote the values, and write "" for none'
            )


def _ids(dataset: Dataset) -> pa.ChunkedArray:
    return dataset.data.column("_id").cast(pa.large_string())


def _check_known(ids: Iterable[str], *, known: pa.ChunkedArray, where: Path, place: str) -> None:
    wanted = pa.array(sorted(ids), type=pa.large_string())
    missing = wanted.filter(pc.invert(pc.is_in(wanted, value_set=known)))
    if len(missing):
        raise ValueError(
            f"{place} names {len(missing)} ids that {where} lacks, such as {missing[0].as_py()!r}:"
            " expected every judged id there; take both files from the same release"
        )
