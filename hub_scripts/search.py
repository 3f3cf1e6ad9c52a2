"""Show the best passages for queries.

    condenser search runs/demo "how do I sort a list"
    condenser search my-encoder my-collection "how do I sort a list" -k 10
    condenser search bm25 my-collection

The folder of a study (runs/demo) names its collection and embeddings itself. Without a query,
queries are read from standard input, one a line. The first search encodes the collection; its
embeddings are stored next to the model, or in runs/ for a Hub model.
"""

import dataclasses
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .command_line import read_settings, register_model

if TYPE_CHECKING:
    from datasets import Dataset

    from modeling_condenser.retrieval.dense import SearchSettings
    from modeling_condenser.retrieval.systems import Searcher, System

STUDY_FILE = "search.json"
_SHOWN_LETTERS = 160


@dataclass(frozen=True)
class SearchFields:
    """The fields of `condenser search`.

    Attributes:
        model: folder of a study, or a system: an encoder (MODEL,pooling=mean) or bm25.
        collection: folder or Hub name; not for a study.
        query: by default the lines of standard input.
        k: passages to show.
        embeddings: folder of embeddings.
    """

    model: str
    collection: str | None = None
    query: str | None = None
    k: int = 5
    embeddings: str | None = None

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k is {self.k}, expected at least 1.")
        if self.query is not None and not self.query.strip():
            raise ValueError("the query is empty: leave it out to read standard input.")


class Answer(NamedTuple):
    """A passage found for a query."""

    passage_id: str
    score: float
    title: str
    text: str


def run(words: list[str]) -> None:
    from modeling_condenser.retrieval.dense import SearchSettings
    from modeling_condenser.runs.recipe import fill

    settings = read_settings(
        "search",
        words,
        SearchFields,
        SearchSettings,
        plain=("model", "collection", "query"),
        about=__doc__,
    )
    fields, how = fill(settings, SearchFields, SearchSettings)
    fields = _resolve_study(fields)
    register_model(fields.model)
    searcher, passages = _open(fields, how)
    for query in [fields.query] if fields.query is not None else _ask():
        _show(find(searcher, passages, query, depth=fields.k))


def find(searcher: "Searcher", passages: "Dataset", query: str, *, depth: int) -> list[Answer]:
    """The best `depth` passages for one query, with their texts."""
    from modeling_condenser.collection.passages import find_rows

    scores = searcher.search({"query": query}, depth=depth).get("query", {})
    rows = find_rows(passages, scores)
    found = ((passage_id, passages[rows[passage_id]]) for passage_id in scores)
    return [Answer(i, scores[i], passage["title"], passage["text"]) for i, passage in found]


def _resolve_study(fields: SearchFields) -> SearchFields:
    """Replace a study's folder by its model, collection and embeddings."""
    folder = Path(fields.model)
    file = folder / STUDY_FILE
    if not file.is_file():
        if fields.query is None and not _may_be_collection(fields.collection):
            raise ValueError(
                f"{fields.model} is not the folder of a finished study (it has no {STUDY_FILE}):"
                ' name a collection too, as in condenser search MODEL COLLECTION "query".'
            )
        return fields
    if fields.query is not None:
        raise ValueError(
            f"{fields.model} is a study, which names its own collection: leave out"
            f" {fields.collection!r}."
        )
    named = json.loads(file.read_text())
    if not {"model", "collection", "embeddings"} <= named.keys():
        raise ValueError(f"{file} was written by an older version: run the study again.")
    return dataclasses.replace(
        fields,
        query=fields.collection,
        model=str(folder / named["model"]),
        collection=str(folder / named["collection"]),
        embeddings=fields.embeddings or str(folder / named["embeddings"]),
    )


def _may_be_collection(name: str | None) -> bool:
    return name is not None and (Path(name).exists() or "/" in name)


def _open(fields: SearchFields, how: "SearchSettings") -> "tuple[Searcher, Dataset]":
    from modeling_condenser.collection.load import load_passages
    from modeling_condenser.retrieval.bm25 import Bm25
    from modeling_condenser.retrieval.dense import DenseSearcher
    from modeling_condenser.retrieval.systems import open_searcher, parse_system

    system = parse_system(fields.model).in_dtype(how.dtype)
    if system.is_stored:
        raise ValueError(f"{system.model} is a run file, which cannot answer a new query.")
    if system.is_lexical and (fields.embeddings or not how.is_exact):
        raise ValueError("bm25 has no vectors: leave out --index and --embeddings.")
    assert fields.collection is not None
    passages = load_passages(fields.collection)
    searcher = open_searcher(
        system,
        passages,
        _folder_for(system, fields.collection),
        embeddings=Path(fields.embeddings) if fields.embeddings else None,
        settings=how,
    )
    # No progress bar for each query.
    if isinstance(searcher, DenseSearcher):
        searcher = dataclasses.replace(searcher, progress=False)
    if isinstance(searcher, Bm25):
        searcher.show_progress = False
    return searcher, passages


def _folder_for(system: "System", collection: str) -> Path:
    """The folder for the embeddings of a collection, or for its BM25 index."""
    model = Path(system.model).resolve()
    words = [model.name, *map(str, system.settings.values()), "search"]
    words.append(Path(collection).resolve().name)
    name = re.sub(r"[^\w.-]+", "_", "-".join(words))
    return (model.parent if model.is_dir() else Path("runs")) / name


def _ask() -> Iterator[str]:
    """Yield queries from standard input until an empty line."""
    prompt = "query: " if sys.stdin.isatty() else ""
    while True:
        try:
            query = input(prompt).strip()
        except (EOFError, KeyboardInterrupt):
            return
        if not query:
            return
        yield query


def _show(answers: list[Answer]) -> None:
    if not answers:
        print("nothing found")
    for rank, answer in enumerate(answers, start=1):
        title = f"  {' '.join(answer.title.split())}" if answer.title.strip() else ""
        print(f"{rank}. {answer.passage_id}  ({answer.score:.4g}){title}")
        print(f"   {' '.join(answer.text.split())[:_SHOWN_LETTERS]}")
