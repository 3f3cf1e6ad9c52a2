"""Encoders, texts and passages for the tests of encoding, and a stand-in for `Retriever`."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer
from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from modeling_condenser.encoding.embeddings import Embeddings
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.files.models import EncodingContract

LONG = "The glacier visits Oslo, and the violin measures the orchard near Kyoto. "
# Of very mixed length, out of order, with copies.
MIXED = [LONG * 9, "", "Why?", "東京大学 café naïveté \N{SNOWMAN}", LONG]
MIXED += [" ", "Why?", LONG * 2, "x"]


def save_modules(
    folder: Path,
    encoder: Path,
    modules: Callable[[int], list],
    *,
    length: int = 64,
    **settings: Any,
) -> Path:
    """Save a sentence-transformers model: an encoder, and the modules after it."""
    transformer = Transformer(str(encoder), max_seq_length=length)
    following = modules(transformer.get_embedding_dimension())
    settings = {"similarity_fn_name": "dot", **settings}
    model = SentenceTransformer(modules=[transformer, *following], device="cpu", **settings)
    model.save_pretrained(str(folder))
    return folder


def save_pooled(folder: Path, encoder: Path, mode: object) -> Path:
    """Save a sentence-transformers model with one pooling and the dot product."""
    return save_modules(folder, encoder, lambda size: [Pooling(size, pooling_mode=mode)])


def save_mapped(folder: Path, encoder: Path) -> Path:
    """Save one whose token vectors are mapped before they are pooled."""
    names = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    return save_modules(
        folder, encoder, lambda size: [Dense(size, 12, **names), Pooling(12, pooling_mode="mean")]
    )


def change_json(file: Path, **fields: object) -> None:
    """Change fields of a JSON file and its layout; None removes a field."""
    content = json.loads(file.read_text()) | fields
    for name in [name for name, value in fields.items() if value is None]:
        del content[name]
    file.write_text(json.dumps(content, indent=7))


def with_segments(encoder: Path, folder: Path) -> Path:
    """A copy of an encoder whose tokenizer gives segment 1 to all tokens but the first."""
    shutil.copytree(encoder, folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=64,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        pad_token="[PAD]",
    ).save_pretrained(folder)
    return folder


def as_passages(texts: list[str], titles: list[str] | None = None) -> Dataset:
    return Dataset.from_dict({"title": titles or [""] * len(texts), "text": texts})


def make_passages(n: int) -> Dataset:
    """N small passages whose ids are not sorted."""
    columns = {"_id": [f"p{(7919 * i) % n}-{i}" for i in range(n)]}
    columns["title"] = [f"title {i}" if i % 3 else "" for i in range(n)]
    return Dataset.from_dict({**columns, "text": [f"text {i}" for i in range(n)]})


def hash_vectors(passages: Dataset) -> np.ndarray:
    """(N, 16) float32, whole numbers."""
    pairs = zip(passages["title"], passages["text"], strict=True)
    digests = [hashlib.sha512(f"{title}\n{text}".encode()).digest() for title, text in pairs]
    return np.frombuffer(b"".join(digests), dtype=np.uint32).reshape(-1, 16).astype(np.float32)


def all_bytes(embeddings: Embeddings) -> bytes:
    return b"".join(block.tobytes() for block in embeddings.blocks())


def note_encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the passages that retrievers encode from now on."""
    encoded: list[str] = []
    encode_passages = Retriever.encode_passages

    def note(self: Retriever, passages: Dataset, **progress: Any) -> np.ndarray:
        encoded.extend(passages["_id"])
        return encode_passages(self, passages, **progress)

    monkeypatch.setattr(Retriever, "encode_passages", note)
    return encoded


class HashRetriever:
    """What `encode_collection` uses of a `Retriever`; its vectors are hashes of the texts.

    `calls` has the first text of each call, and `texts` all that were encoded; the call that begins
    with `fails_on` fails.
    """

    dimension, fingerprint, passage_fingerprint = 16, "stub", "stub"
    contract = EncodingContract(query_max_length=8, passage_max_length=8)
    folder, arguments = Path("stub"), {}
    model = SimpleNamespace(device=torch.device("cpu"))

    def __init__(self, *, fails_on: str | None = None) -> None:
        self.fails_on = fails_on
        self.calls: list[str] = []
        self.texts: list[str] = []

    def encode_passages(self, passages: Dataset, **_: Any) -> np.ndarray:
        self.calls.append(passages["text"][0])
        if self.calls[-1] == self.fails_on:
            raise OSError("No space left on device")
        self.texts += passages["text"]
        return hash_vectors(passages)
