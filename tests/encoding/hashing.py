"""A stand-in for `Retriever` without a model: its vectors are a hash of the text."""

import hashlib
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from datasets import Dataset

from modeling_condenser.hub.contract import EncodingContract

DIMENSION = 16


def hash_vectors(titles: list[str], texts: list[str]) -> np.ndarray:
    """(N, 16) float32, whole numbers."""
    digests = [hashlib.sha512(f"{a}\n{b}".encode()) for a, b in zip(titles, texts, strict=True)]
    numbers = np.frombuffer(b"".join(d.digest() for d in digests), dtype=np.uint32)
    return numbers.reshape(-1, DIMENSION).astype(np.float32)


class HashRetriever:
    """What `encode_collection` uses of a `Retriever`; `fails_on` is the first text of a call."""

    dimension = DIMENSION
    contract = EncodingContract(query_max_length=8, passage_max_length=8)
    token_budget, dtype = 2048, "float32"
    folder, settings = Path("stub"), {}

    def __init__(
        self,
        seconds: float = 0.0,
        *,
        log: Path | None = None,
        fingerprint: str = "stub",
        fails_on: str | None = None,
        device: str = "cpu",
    ) -> None:
        self.model = SimpleNamespace(device=torch.device(device))
        self.seconds, self.log = seconds, log
        self.fingerprint, self.fails_on = fingerprint, fails_on

    def encode_passages(self, passages: Dataset) -> np.ndarray:
        rows = passages[:]
        if self.log:
            with self.log.open("a") as file:
                file.write(f"{rows['text'][0]}\n")
        time.sleep(self.seconds)
        if rows["text"][0] == self.fails_on:
            raise OSError("No space left on device")
        return hash_vectors(list(rows["title"]), list(rows["text"]))


def make_passages(n: int) -> Dataset:
    """N small passages whose ids are not sorted."""
    return Dataset.from_dict(
        {
            "_id": [f"p{(7919 * i) % n}-{i}" for i in range(n)],
            "title": [f"title {i}" if i % 3 else "" for i in range(n)],
            "text": [f"text {i}" for i in range(n)],
        }
    )
