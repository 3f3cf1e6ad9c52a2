"""Evaluate this repository's encoder on a retrieval collection, and print the measures.

    python evaluate_retrieval.py COLLECTION [--split test] [--model FOLDER_OR_HUB_NAME]

COLLECTION is a BEIR folder or a Hub data set of that layout (corpus.jsonl, queries.jsonl,
qrels/SPLIT.tsv). How texts are encoded is read from encoding_contract.json. Stand-alone: it needs
transformers, torch, datasets, faiss-cpu, huggingface_hub and ir-measures, and executes no remote
code.
"""

import argparse
import csv
import json
from pathlib import Path
from typing import Any

import faiss
import ir_measures
import numpy as np
import torch
from datasets import Dataset, load_dataset
from huggingface_hub import hf_hub_download, snapshot_download
from ir_measures import RR, R, nDCG
from transformers import AutoModel, AutoTokenizer

MEASURES = {"MRR@10": RR @ 10, "nDCG@10": nDCG @ 10, "R@100": R @ 100}


def read_contract(model: str) -> dict:
    """The encoding contract of a folder or a Hub repository."""
    local = Path(model) / "encoding_contract.json"
    path = local if local.is_file() else hf_hub_download(model, "encoding_contract.json")
    return json.loads(Path(path).read_text())


def read_collection(name: str, split: str) -> tuple[Dataset, dict, dict]:
    """Passages, judged queries and judgements of a BEIR folder or Hub data set."""
    folder = Path(name)
    if not folder.is_dir():
        folder = Path(snapshot_download(name, repo_type="dataset"))
    corpus = load_dataset("json", data_files=str(folder / "corpus.jsonl"), split="train")
    queries = load_dataset("json", data_files=str(folder / "queries.jsonl"), split="train")
    with (folder / "qrels" / f"{split}.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    qrels: dict[str, dict[str, int]] = {}
    for query_id, passage_id, grade in rows:
        qrels.setdefault(query_id, {})[passage_id] = int(grade)
    qrels = {q: grades for q, grades in qrels.items() if max(grades.values()) > 0}
    texts = {row["_id"]: row["text"] for row in queries if row["_id"] in qrels}
    return corpus, texts, qrels


@torch.no_grad()
def encode(
    texts: list[str],
    model: Any,
    tokenizer: Any,
    contract: dict,
    max_length: int,
    batch_size: int = 64,
) -> np.ndarray:
    """Vectors of texts, (N, H) float32; batches are of like length."""
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    vectors = np.empty((len(texts), model.config.hidden_size), dtype=np.float32)
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        batch = tokenizer(
            [texts[i] for i in rows],
            padding=True,
            truncation=True,
            max_length=max_length,
            return_tensors="pt",
            return_token_type_ids=contract["token_type_ids"],
        ).to(model.device)
        pooled = pool(model(**batch).last_hidden_state, batch["attention_mask"], contract)
        if contract["similarity"] == "cosine":
            pooled = torch.nn.functional.normalize(pooled, dim=-1)
        vectors[rows] = pooled.float().cpu().numpy()
    return vectors


def pool(hidden: torch.Tensor, mask: torch.Tensor, contract: dict) -> torch.Tensor:
    """One vector a text, (B, H), of the last hidden states (B, T, H)."""
    if contract["pooling"] == "cls":
        return hidden[:, 0]
    kept = mask[..., None].bool()  # (B, T, 1)
    if contract["pooling"] == "max":
        return hidden.masked_fill(~kept, float("-inf")).amax(dim=1)
    return hidden.masked_fill(~kept, 0.0).sum(dim=1) / kept.sum(dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("collection")
    parser.add_argument("--split", default="test")
    parser.add_argument("--model", default=str(Path(__file__).parent))
    arguments = parser.parse_args()

    contract = read_contract(arguments.model)
    if contract["similarity"] == "euclidean":
        raise SystemExit("This script ranks by inner product, but the contract says euclidean.")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    model = AutoModel.from_pretrained(arguments.model).eval().to(device)
    corpus, queries, qrels = read_collection(arguments.collection, arguments.split)

    separator, prompt = contract["title_separator"], contract["passage_prompt"]
    pairs = zip(corpus["title"], corpus["text"], strict=True)
    bodies = [f"{title}{separator}{text}" if title else text for title, text in pairs]
    passages = [prompt + body for body in bodies]
    index = faiss.IndexFlatIP(model.config.hidden_size)
    index.add(encode(passages, model, tokenizer, contract, contract["passage_max_length"]))
    texts = [contract["query_prompt"] + text for text in queries.values()]
    vectors = encode(texts, model, tokenizer, contract, contract["query_max_length"])
    depth = min(100, len(corpus))
    scores, places = index.search(vectors, depth)
    ids = list(corpus["_id"])
    run = {}
    for query_id, row_scores, row_places in zip(queries, scores, places, strict=True):
        # Best first, ties by passage id; the measures see ranks, not scores.
        ranked = sorted(zip(-row_scores, (ids[p] for p in row_places), strict=True))
        run[query_id] = {passage_id: float(depth - i) for i, (_, passage_id) in enumerate(ranked)}
    values = ir_measures.calc_aggregate(list(MEASURES.values()), qrels, run)
    print(json.dumps({name: round(values[m], 4) for name, m in MEASURES.items()}, indent=2))


if __name__ == "__main__":
    main()
