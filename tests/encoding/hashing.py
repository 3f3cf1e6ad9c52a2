"""A stand-in for `Retriever` without a model: its vectors are a hash of the text."""

import hashlib
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from datasets import Dataset

from modeling_condenser.hub.contract import EncodingContract


def hash_vectors(passages: Dataset) -> np.ndarray:
    """(N, 16) float32, whole numbers."""
    pairs = zip(passages["title"], passages["text"], strict=True)
    digests = [hashlib.sha512(f"{title}\n{text}".encode()).digest() for title, text in pairs]
    return np.frombuffer(b"".join(digests), dtype=np.uint32).reshape(-1, 16).astype(np.float32)


class HashRetriever:
    """What `encode_collection` uses of a `Retriever`.

    It writes the first text of each call to `log`, and fails on the one that is `fails_on`.
    """

    dimension, token_budget, dtype, fingerprint = 16, 2048, "float32", "stub"
    contract = EncodingContract(query_max_length=8, passage_max_length=8)
    folder, settings = Path("stub"), {}
    model = SimpleNamespace(device=torch.device("cpu"))

    def __init__(self, log: Path, *, seconds: float = 0.0, fails_on: str | None = None) -> None:
        self.log, self.seconds, self.fails_on = log, seconds, fails_on

    def encode_passages(self, passages: Dataset) -> np.ndarray:
        with self.log.open("a") as file:
            file.write(f"{passages['text'][0]}\n")
        time.sleep(self.seconds)
        if passages["text"][0] == self.fails_on:
            raise OSError("No space left on device")
        return hash_vectors(passages)


def make_passages(n: int) -> Dataset:
    """N small passages whose ids are not sorted."""
    return Dataset.from_dict(
        {
            "_id": [f"p{(7919 * i) % n}-{i}" for i in range(n)],
            "title": [f"title {i}" if i % 3 else "" for i in range(n)],
            "text": [f"text {i}" for i in range(n)],
        }
    )
