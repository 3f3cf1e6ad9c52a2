"""condenser search FOLDER "query": the best passages of a study's retriever, or of any MODEL.

    condenser search runs/demo "how do I sort a list"
    condenser search MODEL COLLECTION "how do I sort a list"

A study knows its collection and its index; for a retriever, name the collection.
"""

import argparse
import json
from pathlib import Path


def run(words: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="condenser search",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, help="folder of a study or of a retriever")
    parser.add_argument("collection", type=Path, nargs="?", help="BEIR folder, with a retriever")
    parser.add_argument("query")
    parser.add_argument("-k", type=int, default=5, help="passages to show (default: 5)")
    arguments = parser.parse_args(words)
    model, collection, index_folder = _resolve(arguments.model, arguments.collection)

    from modeling_condenser.collection.beir import CORPUS_FILE, load_passages
    from modeling_condenser.retrieval.encoding import Retriever
    from modeling_condenser.retrieval.evaluate import build_index

    passages = load_passages(collection)
    retriever = Retriever(model)
    index = build_index(retriever, passages, index_folder, corpus=collection / CORPUS_FILE)
    vectors = retriever.encode_queries([arguments.query])
    found = index.search(vectors, ["query"], depth=arguments.k)["query"]
    rows = {passage_id: row for row, passage_id in enumerate(passages["_id"])}
    for rank, (passage_id, score) in enumerate(found.items(), start=1):
        text = " ".join(passages[rows[passage_id]]["text"].split())
        print(f"{rank}. {passage_id}  ({score:.2f})\n   {text[:160]}")


def _resolve(model: Path, collection: Path | None) -> tuple[Path, Path, Path]:
    """Retriever, collection and index that a study names, or those that were given."""
    if collection is not None:
        return model, collection, model.with_name(f"{model.name}-index-{collection.name}")
    file = model / "search.json"
    if not file.is_file():
        raise FileNotFoundError(
            f"{model} holds no {file.name}, so it is not the folder of a finished study: with a "
            'retriever, name the collection too (condenser search MODEL COLLECTION "query").'
        )
    named = json.loads(file.read_text())
    return model / named["model"], model / named["collection"], model / named["index"]
