"""Search a collection for one query, or for many."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import Dataset

from modeling_condenser.collection.collection import check_text, find_rows
from modeling_condenser.collection.load import load_dev, load_passages, name_collection
from modeling_condenser.files.settings import check_least, parse_settings
from modeling_condenser.retrieval.index import (
    Passage,
    load_with_sources,
    make_passage,
    words_of,
)
from modeling_condenser.retrieval.systems import (
    CACHE,
    Searcher,
    SearchSettings,
    as_folder,
    open_stored,
    parse_systems,
)
from modeling_condenser.retrieval.words import Words

_SHOWN = 300  # characters of a passage


@dataclass(frozen=True)
class SearchRecipe:
    """The fields of `condenser search`.

    Attributes:
        model: a system: an encoder (MODEL,pooling=mean), bm25, or hybrid:MODEL.
        collection: folder or Hub name.
        query: by default the lines of standard input.
        k: passages to show.
        json: print one JSON object a query, with `query` and `passages` (id, score, title, text,
            and of a collection by `condenser collect` headings and file).
        embeddings: folder of the embeddings of these passages, written if it is new.
        output_dir: folder for new embeddings and indices, which `condenser evaluate` shares.
    """

    model: str | dict[str, Any]
    collection: str
    query: str | None = None
    k: int = field(default=5, metadata={"aliases": ["-k"]})
    json: bool = False
    embeddings: str | None = None
    output_dir: str = CACHE

    def __post_init__(self) -> None:
        check_least(self, k=1)


def run(**settings: Any) -> None:
    """Search and print; the settings are fields of `SearchRecipe` and `SearchSettings`."""
    fields, search = parse_settings(settings, SearchRecipe, SearchSettings)
    [system] = parse_systems([fields.model], search)
    if system.kind == "run":
        raise ValueError(f"{system.model} is a run file, which cannot answer a new query.")
    if system.kind == "bm25" and fields.embeddings:
        raise ValueError("bm25 has no vectors: leave out --embeddings.")
    folder = Path(fields.output_dir, as_folder(name_collection(fields.collection)))
    load = load_with_sources if fields.json else load_passages
    passages = load(fields.collection)
    searcher = open_stored(
        system,
        passages,
        folder,
        embeddings=Path(fields.embeddings) if fields.embeddings else None,
        settings=search,
        dev=load_dev(fields.collection, judged="") if system.needs_dev else None,
    )
    words = words_of(searcher, passages)
    typed = (line.strip("\ufeff\r\n ") for line in sys.stdin)  # some files begin with a mark
    for query in [fields.query] if fields.query is not None else filter(None, typed):
        hits = find(searcher, passages, query, depth=fields.k)
        if fields.json:
            answer = json.dumps({"query": query, "passages": hits}, ensure_ascii=False)
        else:
            answer = "\n".join(_as_text(hits, query, words)) or "nothing found"
            if fields.query is None:
                answer = f"{query}\n{answer}"
        print(answer, flush=True)
    if fields.query is not None and not fields.json:
        call = f"Index.build({fields.collection!r}, {system.text!r})"
        print(f"in an application: modeling_condenser.{call}")


def find(searcher: Searcher, passages: Dataset, query: str, *, depth: int) -> list[dict[str, Any]]:
    """Find the best `depth` passages for one query: id, score, and the other columns."""
    check_text(query, "the query")
    scores = searcher.search({"query": query}, depth).get("query", {})
    rows = find_rows(passages, scores)
    hits = []
    for name, score in scores.items():
        columns = dict(passages[rows[name]])
        hits.append({"id": columns.pop("_id"), "score": score, **columns})
    return hits


def _as_text(hits: list[dict[str, Any]], query: str, words: Words) -> Iterator[str]:
    """The lines that show the passages."""
    for rank, hit in enumerate(hits, start=1):
        passage = make_passage({**hit, "_id": hit["id"]}, hit["score"], query, words)
        title = " ".join(passage.title.split())
        yield f"{rank}. {passage.id}  ({passage.score:.4g})  {title}".rstrip()
        yield f"   {_cut_out(passage)}"


def _cut_out(passage: Passage) -> str:
    """A short text, or the part that begins with the sentence that matches the query."""
    text = passage.text
    if len(text) > _SHOWN:
        text = text[text.find(passage.sentence) :]
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"  # some scripts have no blanks
