"""A labelled collection with copies, titles, answers and several positives, and runs for it."""

import json
import random
from pathlib import Path

import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
)

from modeling_condenser.retrieval.runs import write_run
from tests.hub.making import write_collection

N_PASSAGES, N_QUERIES = 50, 23
WORDS = "amber birch coral delta ember fjord grove haven inlet juniper kelp lagoon".split()


def make_labelled(folder: Path, *, has_answers: bool = True, has_qrels: bool = True) -> Path:
    """A BEIR folder: q3 has one grade 0 only; p40 and p41 are copies of p4, p42 of p5."""
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=9)) + f" café {i}" for i in range(N_PASSAGES)]
    texts[40] = texts[41] = texts[4]
    texts[42] = texts[5]
    texts[43] = texts[44] = ""
    passages = [
        {"_id": f"p{i}", "title": f"Title {i}" if i % 4 == 0 else "", "text": text}
        for i, text in enumerate(texts)
    ]
    passages[43]["title"], passages[44]["title"] = "one", "another"
    queries = []
    for i in range(N_QUERIES):
        query = {"_id": f"q{i}", "text": " ".join(rng.choices(WORDS, k=3))}
        if has_answers and i % 5:
            query["answers"] = [f"{WORDS[i % 12]} {word}" for word in WORDS[:3]]
        queries.append(query)
    judged = [("q3", "p3", 0)]
    for i in range(N_QUERIES):
        if i != 3:
            judged += [(f"q{i}", f"p{i}", 1), (f"q{i}", f"p{i + 20}", 0)]
            judged += [(f"q{i}", f"p{i + 5}", 2)] if i % 6 == 0 else []
    return write_collection(folder, passages, queries, **({"train": judged} if has_qrels else {}))


def make_run_file(file: Path) -> dict[str, dict[str, float]]:
    """A run with ties over the same collection, in which q7 found nothing, and q8 two passages."""
    rng = random.Random(1)
    run = {}
    for i in range(N_QUERIES):
        n_found = {7: 0, 8: 2}.get(i, rng.randint(25, 45))
        found = rng.sample(range(N_PASSAGES), n_found)
        run[f"q{i}"] = {f"p{j}": rng.randint(-40, 160) / 8 for j in found}
    write_run(run, file, tag="made")
    return run


def read_lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def make_cross_encoder(folder: Path, encoder: Path, *, n_labels: int = 1) -> Path:
    """A tiny random cross-encoder whose scores differ."""
    config = BertConfig.from_pretrained(encoder, num_labels=n_labels, initializer_range=0.3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        BertForSequenceClassification(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(encoder).save_pretrained(folder)
    return folder


def plain_logits(folder: Path, pairs: list[tuple[str, str]], max_length: int = 64) -> list[list]:
    """Logits of pairs by transformers alone, one pair at a time and so without padding."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    settings = {"truncation": True, "max_length": max_length, "return_tensors": "pt"}
    with torch.no_grad():
        return [model(**tokenizer(*pair, **settings)).logits[0].tolist() for pair in pairs]
