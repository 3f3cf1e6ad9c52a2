"""Evaluate this repository's encoder on a retrieval collection, and compare with its model card.

    python evaluate_retrieval.py COLLECTION --split test

COLLECTION is a folder or a Hub data set in the layout of BEIR (corpus.jsonl, queries.jsonl,
qrels/SPLIT.tsv, or the judgements in COLLECTION-qrels), or with the configurations corpus, queries
and qrels (or default), as in MTEB. A passage with the id of its query is left out of the ranking,
as in BEIR, unless it is judged relevant to that query. Search is exact. The exit status is 1 if a
figure differs from the card in 4 decimals. Needs sentence-transformers, datasets and ir-measures;
no remote code.
"""

import argparse
import gzip
import heapq
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import ir_measures
import torch
from huggingface_hub import snapshot_download
from sentence_transformers import SentenceTransformer

FILES = ["README.md", "corpus.jsonl*", "queries.jsonl*", "*.tsv*"]
OTHER_SPLIT = {"dev": "validation", "validation": "dev"}  # data sets have the one for the other
CHUNK = 4096  # passages that are searched together
MARGIN = 32  # passages beyond the depth, among which ids decide where scores are equal
Encoder = tuple[SentenceTransformer, str]  # and what stands between title and text
Qrels = dict[str, dict[str, int]]  # query id -> passage id -> grade
Run = dict[str, list[tuple[float, str]]]  # query id -> minus score and passage id, best first


def open_encoder(folder: Path, device: str | None = None) -> Encoder:
    weights = {"use_safetensors": True, "dtype": torch.float32}
    model = SentenceTransformer(str(folder), device=device, model_kwargs=weights)
    config = json.loads((folder / "config_sentence_transformers.json").read_text("utf-8"))
    return model, config.get("title_separator", " ")


def read_collection(name: str, split: str) -> tuple[Iterable[dict], dict[str, str], Qrels]:
    """Passages, and the queries of a split that have a relevant passage, with their judgements."""
    folder, splits = find_folder(name), [split, OTHER_SPLIT.get(split, split)]
    if not any(folder.glob("corpus.jsonl*")):
        passages = load_table(name, ["corpus"], splits)
        asked = load_table(name, ["queries"], splits)
        table = load_table(name, ["default", "qrels"], splits)
        judgements = [[row[k] for k in ("query-id", "corpus-id", "score")] for row in table]
    else:
        passages = map(json.loads, read_lines(folder, ["corpus.jsonl"]))
        asked = map(json.loads, read_lines(folder, ["queries.jsonl"]))
        has_qrels = (folder / "qrels").is_dir()
        place = folder / "qrels" if has_qrels else find_folder(f"{name.rstrip('/')}-qrels")
        lines = read_lines(place, [f"{each}.tsv" for each in splits])
        judgements = [line.split("\t") for line in islice(lines, 1, None)]  # after the header
    qrels: Qrels = {}
    for query, passage, grade in judgements:
        qrels.setdefault(str(query), {})[str(passage)] = int(float(grade))
    qrels = {query: grades for query, grades in qrels.items() if max(grades.values()) > 0}
    texts = {identify(row): row["text"] for row in asked}
    missing = qrels.keys() - texts.keys()
    if missing or not qrels:
        raise ValueError(f"{len(qrels)} queries have a relevant passage, {len(missing)} no text")
    return passages, {query: texts[query] for query in qrels}, qrels


def identify(row: dict[str, Any]) -> str:
    return str(row["_id"] if "_id" in row else row["id"])


def find_folder(name: str) -> Path:
    if Path(name).is_dir():
        return Path(name)
    return Path(snapshot_download(name, allow_patterns=FILES, repo_type="dataset"))


def read_lines(folder: Path, names: list[str]) -> Iterator[str]:
    """The lines of the first file that exists, which may be compressed (.gz)."""
    files = [file for name in names for file in (folder / name, folder / f"{name}.gz")]
    file = next((file for file in files if file.is_file()), files[0])
    opener: Any = gzip.open if file.suffix == ".gz" else open
    with opener(file, "rt", encoding="utf-8-sig", newline="\n") as lines:
        yield from (line.rstrip("\r\n") for line in lines if line.strip())


def load_table(name: str, configs: list[str], wanted: list[str]) -> Iterable[dict[str, Any]]:
    """The wanted split, or the only split, of the first configuration that exists."""
    known = datasets.get_dataset_config_names(name)
    config = next((config for config in configs if config in known), configs[0])
    splits = datasets.get_dataset_split_names(name, config)
    chosen = [split for split in wanted if split in splits]
    if not chosen and ("qrels" in configs or len(splits) > 1):
        raise ValueError(f"{name} has no split {wanted[0]!r}, but {', '.join(splits)}")
    return datasets.load_dataset(name, config, split=(chosen or splits)[0])


def search(
    encoder: Encoder, passages: Iterable[dict], queries: dict[str, str], qrels: Qrels, depth: int
) -> Run:
    """The best `depth` passages of each query, ties by id; one chunk of passages at a time."""
    model, separator = encoder
    asked = model.encode_query([*queries.values()], show_progress_bar=False)  # (Q, H)
    best: Run = {query: [] for query in queries}
    remaining = iter(passages)
    while chunk := list(islice(remaining, CHUNK)):
        texts = []
        for row in chunk:
            start = f"{row['title']}{separator}" if row.get("title") else ""
            texts.append(f"{start}{row['text']}")
        vectors = model.encode_document(texts)  # (P, H)
        # Rounded to float32, so that equal vectors have equal scores.
        scores = model.similarity(asked.astype(float), vectors.astype(float)).float()  # (Q, P)
        top, rows = scores.topk(min(depth + MARGIN, len(chunk)))  # (Q, k) both
        for i, query in enumerate(queries):
            for score, row in zip(top[i].tolist(), rows[i].tolist(), strict=True):
                passage = identify(chunk[row])
                if passage != query or qrels[query].get(passage, 0) > 0:
                    best[query].append((-score, passage))
            best[query] = heapq.nsmallest(depth, best[query])
    return best


def measure(qrels: Qrels, run: Run, names: list[str]) -> dict[str, float]:
    """Means of those measures that ir_measures knows, which breaks ties in another way."""
    ranks: dict[str, dict[str, float]] = {}
    for query, ranking in run.items():
        ranks[query] = {passage: -float(rank) for rank, (_, passage) in enumerate(ranking)}
    figures = {}
    for name in names:
        try:
            parsed = ir_measures.parse_measure(name.replace("R-Prec", "Rprec"))
        except NameError:  # Hit@k, or a measure of the user's own
            continue
        figures[name] = ir_measures.calc_aggregate([parsed], qrels, ranks)[parsed]
    return figures


def read_card(folder: Path, collection: str, split: str, depth: int) -> dict[str, float]:
    """The figures of the model card for a collection; empty if it has none."""
    file, name = folder / "evaluation_results.json", Path(collection).resolve().name
    for result in json.loads(file.read_text("utf-8")) if file.is_file() else []:
        evaluated = (result["collection"].rpartition("/")[2], result["split"], result["depth"])
        if evaluated == (name, split, depth) and not result.get("search"):
            return result["values"]
    return {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("collection", help="folder or Hub name; see this script's top")
    parser.add_argument("--split", default="test")
    parser.add_argument("--measures", nargs="+", default=["MRR@10", "nDCG@10", "R@100"])
    parser.add_argument("--depth", type=int, default=100, help="passages of a query")
    parser.add_argument("--model", type=Path, default=Path(__file__).absolute().parent)
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    arguments = parser.parse_args()
    name, split, depth = arguments.collection, arguments.split, arguments.depth
    encoder = open_encoder(arguments.model)
    card = read_card(arguments.model, name, split, depth)
    passages, queries, qrels = read_collection(name, split)
    run = search(encoder, passages, queries, qrels, depth)
    here = measure(qrels, run, [*dict.fromkeys([*arguments.measures, *card])])
    print(f"{name} ({split}): {len(queries)} queries, depth {depth}")
    print(f"{'measure':16}{'card':>8}{'here':>8}")
    n_differing = 0
    for measure_name in {**here, **card}:
        columns = [
            f"{each[measure_name]:.4f}" if measure_name in each else "-" for each in (card, here)
        ]
        differs = "-" not in columns and columns[0] != columns[1]
        n_differing += differs
        print(f"{measure_name:16}{columns[0]:>8}{columns[1]:>8}{'  differs' if differs else ''}")
    if arguments.json:
        arguments.json.write_text(json.dumps(here, indent=2) + "\n", encoding="utf-8")
    return 1 if n_differing else 0


if __name__ == "__main__":
    sys.exit(main())
