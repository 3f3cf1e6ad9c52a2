"""condenser search: show the best passages for queries.

    condenser search runs/demo "how do I sort a list"
    condenser search MODEL COLLECTION "how do I sort a list"
    condenser search MODEL COLLECTION

A study (runs/demo) names its collection and embeddings itself; with a retriever or bm25, name the
collection. Without a query, queries are read from standard input, one a line. The first search
encodes the collection; its embeddings are stored next to the model, or in runs/ for a Hub model.
"""

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from datasets import Dataset

    from modeling_condenser.retrieval.systems import Searcher, System

STUDY_FILE = "search.json"
_SHOWN_LETTERS = 160


class Answer(NamedTuple):
    """A passage found for a query."""

    passage_id: str
    score: float
    title: str
    text: str


def run(words: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="condenser search",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help="a study's folder; or MODEL[,setting=value]..., or bm25")
    parser.add_argument("collection", nargs="?", help="folder or Hub name; not for a study")
    parser.add_argument("query", nargs="?", help="(default: lines of standard input)")
    parser.add_argument("-k", type=int, default=5, help="passages to show (default: 5)")
    parser.add_argument("--embeddings", type=Path, help="folder of embeddings")
    parser.add_argument(
        "--dtype", default="float32", help="of the weights: float32 (default) or bfloat16"
    )
    parser.add_argument("--index", metavar="FACTORY", help="search approximately by a faiss index")
    parser.add_argument("--search_parameters", help="of the index, such as nprobe=16")
    arguments = parser.parse_intermixed_args(words)
    if arguments.k < 1:
        parser.error(f"-k {arguments.k}: expected at least 1")
    _resolve_study(arguments)
    if arguments.query is not None and not arguments.query.strip():
        parser.error("the query is empty: give one, or leave it out to read standard input")
    searcher, passages = _open(arguments)
    for query in [arguments.query] if arguments.query is not None else _ask():
        _show(find(searcher, passages, query, depth=arguments.k))


def find(searcher: "Searcher", passages: "Dataset", query: str, *, depth: int) -> list[Answer]:
    """The best `depth` passages for one query, with their texts."""
    from modeling_condenser.collection.lookup import find_rows

    scores = searcher.search({"query": query}, depth=depth).get("query", {})
    rows = find_rows(passages, scores)
    found = ((passage_id, passages[rows[passage_id]]) for passage_id in scores)
    return [Answer(i, scores[i], passage["title"], passage["text"]) for i, passage in found]


def _resolve_study(arguments: argparse.Namespace) -> None:
    """Replace a study's folder by its model, collection and embeddings."""
    file = Path(arguments.model) / STUDY_FILE
    if not file.is_file():
        if arguments.collection is None:
            raise FileNotFoundError(f"{_no_study(arguments.model)}.")
        return
    if arguments.query is not None:
        raise ValueError(
            f"{arguments.model} is a study, which names its collection itself: leave out "
            f'{arguments.collection!r} (condenser search STUDY "query").'
        )
    named = json.loads(file.read_text())
    if not {"model", "collection", "embeddings"} <= named.keys():
        raise ValueError(f"{file} names no embeddings: run the study again with this version.")
    folder = Path(arguments.model)
    arguments.query = arguments.collection
    arguments.model = str(folder / named["model"])
    arguments.collection = str(folder / named["collection"])
    arguments.embeddings = arguments.embeddings or folder / named["embeddings"]


def _no_study(model: str) -> str:
    return (
        f"{model} holds no {STUDY_FILE}, so it is not the folder of a finished study; with a "
        'retriever or bm25, name the collection too (condenser search MODEL COLLECTION "query")'
    )


def _open(arguments: argparse.Namespace) -> "tuple[Searcher, Dataset]":
    from modeling_condenser.collection.load import load_passages
    from modeling_condenser.retrieval.bm25 import Bm25
    from modeling_condenser.retrieval.dense import EXACT, DenseSearcher, SearchSettings
    from modeling_condenser.retrieval.systems import open_searcher, parse_system

    system = parse_system(arguments.model).in_dtype(arguments.dtype)
    if system.is_stored:
        raise ValueError(f"{system.model} is a run file, which cannot answer a new query.")
    if system.is_lexical and (arguments.index or arguments.embeddings):
        raise ValueError("bm25 has no vectors: leave out --index and --embeddings.")
    try:
        passages = load_passages(arguments.collection)
    except (OSError, ValueError) as error:
        if arguments.query is not None or not system.is_dense:
            raise
        raise FileNotFoundError(f"{_no_study(arguments.model)}; and {error}") from error
    searcher = open_searcher(
        system,
        passages,
        _beside(system, arguments.collection),
        embeddings=arguments.embeddings,
        settings=SearchSettings(
            index=arguments.index or EXACT, search_parameters=arguments.search_parameters
        ),
    )
    # No progress bar for each query.
    if isinstance(searcher, DenseSearcher):
        searcher = dataclasses.replace(searcher, progress=False)
    if isinstance(searcher, Bm25):
        searcher.show_progress = False
    return searcher, passages


def _beside(system: "System", collection: str) -> Path:
    """The folder for the embeddings of a collection, or for its BM25 index."""
    model = Path(system.model).resolve()
    words = [model.name, *map(str, system.settings.values()), "search"]
    words.append(Path(collection).resolve().name)
    name = re.sub(r"[^\w.-]+", "_", "-".join(words))
    return (model.parent if model.is_dir() else Path("runs")) / name


def _ask() -> Iterator[str]:
    """Yield queries from standard input, with a prompt on a terminal."""
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
