"""Search a collection for one query, or for many."""

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from datasets import Dataset

from modeling_condenser.collection.beir import CORPUS_FILE
from modeling_condenser.collection.load import (
    load_dev,
    load_passages,
    name_collection,
    resolve_collection_name,
)
from modeling_condenser.collection.passages import find_rows
from modeling_condenser.collection.text_files import find_file, read_json
from modeling_condenser.files.settings import check_least, parse_settings
from modeling_condenser.retrieval.dense import SearchSettings
from modeling_condenser.retrieval.searchers import Searcher, open_searcher
from modeling_condenser.retrieval.systems import as_folder, parse_systems

from .command_line import CommandLine


@dataclass(frozen=True)
class SearchFields:
    """The fields of `condenser search`.

    Attributes:
        model: a system: an encoder (MODEL,pooling=mean), bm25, or hybrid:MODEL.
        collection: folder or Hub name.
        query: by default the lines of standard input.
        k: passages to show.
        json: print one JSON object a query, with `query` and `passages` (id, score, title, text,
            and of a collection by `condenser collect` headings and file).
        embeddings: folder of the passages' embeddings, written if it is new.
        output_dir: folder for new embeddings and indices, which `condenser evaluate` shares.
    """

    model: str
    collection: str
    query: str | None = None
    k: int = 5
    json: bool = False
    embeddings: str | None = None
    output_dir: str = "runs/evaluation"

    def __post_init__(self) -> None:
        check_least(self, k=1)


def run(line: CommandLine) -> None:
    both = (SearchFields, SearchSettings)
    fields, how = parse_settings(line.read(*both, plain=("model", "collection", "query")), *both)
    [system] = parse_systems([fields.model], how)
    if system.kind == "run":
        raise ValueError(f"{system.model} is a run file, which cannot answer a new query.")
    if system.kind == "bm25" and fields.embeddings:
        raise ValueError("bm25 has no vectors: leave out --embeddings.")
    folder = Path(fields.output_dir, as_folder(name_collection(fields.collection)), "embeddings")
    passages = load_passages(fields.collection)
    searcher = open_searcher(
        system,
        passages,
        folder / system.vectors_name,
        embeddings=Path(fields.embeddings) if fields.embeddings else None,
        settings=how,
        dev=load_dev(fields.collection, judged="") if system.kind == "hybrid" else None,
    )
    places = _read_places(fields.collection) if fields.json else {}
    for query in [fields.query] if fields.query is not None else _ask():
        found = find(searcher, passages, query, depth=fields.k)
        found = [passage | places.get(passage["id"], {}) for passage in found]
        answer = json.dumps({"query": query, "passages": found}, ensure_ascii=False)
        title = f"{query}\n" if fields.query is None and not sys.stdin.isatty() else ""
        print(answer if fields.json else title + _as_text(found), flush=True)


def find(searcher: Searcher, passages: Dataset, query: str, *, depth: int) -> list[dict[str, Any]]:
    """Find the best `depth` passages for one query: id, score, title and text."""
    scores = searcher.search({"query": query}, depth=depth).get("query", {})
    rows = find_rows(passages, scores)
    found = [(name, score, passages[rows[name]]) for name, score in scores.items()]
    return [
        {"id": name, "score": score, "title": row["title"], "text": row["text"]}
        for name, score, row in found
    ]


def _read_places(collection: str) -> dict[str, dict[str, str]]:
    """Passage -> its headings and file, which only `condenser collect` writes."""
    corpus = find_file(Path(resolve_collection_name(collection)), CORPUS_FILE)
    rows = iter(read_json(corpus) if corpus else ())
    first = next(rows, {})
    if not first.keys() >= {"headings", "file"}:
        return {}
    return {
        str(row["_id"]): {name: row[name] for name in ("headings", "file")}
        for row in chain([first], rows)
    }


def _as_text(found: Sequence[dict[str, Any]]) -> str:
    lines = []
    for rank, passage in enumerate(found, start=1):
        title, text = (" ".join(passage[name].split()) for name in ("title", "text"))
        lines.append(f"{rank}. {passage['id']}  ({passage['score']:.4g})  {title}".rstrip())
        lines.append(f"   {text[:160]}")
    return "\n".join(lines) or "nothing found"


def _ask() -> Iterator[str]:
    """Yield the queries of standard input; on a terminal, an empty line ends them."""
    prompt = "query: " if sys.stdin.isatty() else ""
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            if query := input(prompt).lstrip("\ufeff").strip():  # some files begin with a mark
                yield query
            elif prompt:
                return
