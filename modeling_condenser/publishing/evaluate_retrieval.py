"""Evaluate this repository's encoder on a retrieval collection, and compare with its model card.

    python evaluate_retrieval.py COLLECTION --split test

COLLECTION is a folder or a Hub data set in the layout of BEIR (corpus.jsonl, queries.jsonl and
qrels/SPLIT.tsv, or COLLECTION-qrels/SPLIT.tsv), or with the configurations corpus, queries, and
default or qrels, as in MTEB. Search is exact. A passage with the id of its query is left out, as in
BEIR, unless it is judged relevant. The exit status is 1 if a figure differs from the card's in 4
decimals. Needs sentence-transformers, datasets and ir-measures; no remote code.
"""

import argparse
import csv
import gzip
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import ir_measures
import torch
from datasets import get_dataset_config_names, load_dataset
from huggingface_hub import snapshot_download
from sentence_transformers import SentenceTransformer

FILES = ["README.md", "corpus.jsonl*", "queries.jsonl*", "*.tsv*"]
OTHER_SPLIT = {"dev": "validation", "validation": "dev"}  # data sets have the one for the other
CHUNK = 4096  # passages in memory
MARGIN = 32  # passages beyond the depth, among which ids decide where scores are equal
Qrels = dict[str, dict[str, int]]  # query id -> passage id -> grade


def read_collection(name: str, split: str) -> tuple[Iterable[dict], dict[str, str], Qrels]:
    """Passages, and the queries of a split that have a relevant passage, with their judgements."""
    if corpus := find_files(name, "corpus.jsonl*"):
        passages = read_rows(corpus[0])
        asked = read_rows(find_files(name, "queries.jsonl*")[0])
        files = find_files(name, "qrels/*.tsv*") or find_files(
            name.rstrip("/\\") + "-qrels", "*.tsv*"
        )
        file = choose({file.name.partition(".tsv")[0]: file for file in files}, split)
        judged: Any = csv.DictReader(open_text(file), delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        passages = choose(load_dataset(name, "corpus"), split, "corpus")
        asked = choose(load_dataset(name, "queries"), split, "queries")
        has_default = "default" in get_dataset_config_names(name)
        judged = choose(load_dataset(name, "default" if has_default else "qrels"), split)
    qrels: Qrels = {}
    for row in judged:
        grades = qrels.setdefault(str(row["query-id"]), {})
        grades[str(row["corpus-id"])] = int(float(row.get("score", 1)))  # NanoBEIR has none
    qrels = {query: grades for query, grades in qrels.items() if max(grades.values()) > 0}
    texts = {id_of(row): row["text"] or "" for row in asked}
    return passages, {query: texts[query] for query in qrels}, qrels


def find_files(name: str, pattern: str) -> list[Path]:
    folder = Path(name)
    if not folder.is_dir():
        folder = Path(snapshot_download(name, allow_patterns=FILES, repo_type="dataset"))
    return sorted(folder.glob(pattern))


def open_text(file: Path) -> Iterable[str]:
    opener: Any = gzip.open if file.suffix == ".gz" else open
    return opener(file, "rt", encoding="utf-8-sig")


def read_rows(file: Path) -> Iterator[dict]:
    return map(json.loads, filter(str.strip, open_text(file)))


def id_of(row: Mapping[str, Any]) -> str:
    return str(row["_id"] if "_id" in row else row["id"])


def choose(by_split: Mapping[str, Any], split: str, name_of_only: str = "") -> Any:
    for name in (split, OTHER_SPLIT.get(split, ""), name_of_only):
        if name in by_split:
            return by_split[name]
    raise ValueError(f"There is no split {split!r}, only {', '.join(by_split)}.")


def with_titles(rows: Iterable[dict], separator: str = " ") -> Iterator[tuple[str, str]]:
    """Ids and texts, with the titles that passages may have."""
    for row in rows:
        title = f"{row['title']}{separator}" if row.get("title") else ""
        yield id_of(row), f"{title}{row['text'] or ''}"


def search(
    folder: Path, passages: Iterable[dict], queries: dict[str, str], qrels: Qrels, depth: int
) -> dict[str, list[str]]:
    """The best passages of each query, ties by id; memory holds one chunk of passages."""
    settings = {"use_safetensors": True, "dtype": torch.float32}
    model = SentenceTransformer(str(folder), model_kwargs=settings)
    config = json.loads((folder / "config_sentence_transformers.json").read_text("utf-8"))
    remaining = with_titles(passages, config.get("title_separator", " "))
    query_vectors = model.encode_query([*queries.values()]).astype(float)  # (Q, H)
    best, best_rows = torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.long)
    ids: list[str] = []
    while chunk := list(islice(remaining, CHUNK)):
        vectors = model.encode_document([text for _, text in chunk]).astype(float)  # (P, H)
        # Rounded to float32, so that equal vectors have equal scores.
        scores = model.similarity(query_vectors, vectors).float()  # (Q, P)
        rows = torch.arange(len(ids), len(ids) + len(chunk)).expand_as(scores)
        ids += [passage for passage, _ in chunk]
        scores, rows = torch.cat([best, scores], 1), torch.cat([best_rows, rows], 1)
        best, places = scores.topk(min(depth + MARGIN, len(ids)))  # (Q, k) both
        best_rows = rows.gather(1, places)
    rankings = {}
    for query, scores_of, rows_of in zip(queries, best.tolist(), best_rows.tolist(), strict=True):
        ranked = sorted((-score, ids[row]) for score, row in zip(scores_of, rows_of, strict=True))
        is_relevant = qrels[query].get(query, 0) > 0
        kept = [passage for _, passage in ranked if passage != query or is_relevant]
        rankings[query] = kept[:depth]
    return rankings


def read_card(folder: Path, collection: str, split: str) -> tuple[dict[str, float], int]:
    """The card's figures of exact search in a collection, and the passages found for a query."""
    file, name = folder / "evaluation_results.json", Path(collection).resolve().name
    for result in json.loads(file.read_text("utf-8")) if file.is_file() else []:
        evaluated = (result["collection"].rpartition("/")[2], result["split"])
        if evaluated == (name, split) and not result.get("search"):
            return result["values"], result["depth"]
    return {}, 100


def main(folder: Path) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("collection", help="folder or Hub name; see this script's top")
    parser.add_argument("--split", default="test")
    arguments = parser.parse_args()
    card, depth = read_card(folder, arguments.collection, arguments.split)
    passages, queries, qrels = read_collection(arguments.collection, arguments.split)
    rankings = search(folder, passages, queries, qrels, depth)
    # ir_measures gets ranks, since it breaks ties in another way, and numbers as ids, for ERR.
    run = {
        str(n): {p: -float(i) for i, p in enumerate(ranking, 1)}
        for n, ranking in enumerate(rankings.values())
    }
    qrels = {str(n): qrels[query] for n, query in enumerate(rankings)}
    print(f"{len(queries)} queries, depth {depth}\n{'measure':16}{'here':>8}{'card':>8}")
    has_difference = False
    for name in card or ("MRR@10", "nDCG@10", "R@100"):
        stated = f"{card[name]:.4f}" if card else "-"
        try:
            measure = ir_measures.parse_measure(name.replace("R-Prec", "Rprec"))
            here = f"{ir_measures.calc_aggregate([measure], qrels, run)[measure]:.4f}"
        except NameError:  # Hit@k, which needs answers, or a measure of the user's own
            here = "-"
        has_difference |= "-" not in (here, stated) and here != stated
        print(f"{name:16}{here:>8}{stated:>8}")
    return int(has_difference)


if __name__ == "__main__":
    sys.exit(main(Path(__file__).absolute().parent))
