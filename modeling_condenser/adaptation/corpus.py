"""The passages to adapt to, and what they look like to a retriever before anything is trained."""

import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from modeling_condenser.collection.load import load_passages
from modeling_condenser.collection.passages import iterate_rows
from modeling_condenser.collection.sentences import cut_at_sentences
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.pretraining.documents import load_documents
from modeling_condenser.retrieval.bm25 import Bm25

from .queries import make_queries

logger = logging.getLogger(__name__)

LEAST_PASSAGES = 64
_SAMPLE = 512  # passages that are looked at


def read_passages(corpus: Any, retriever: Retriever) -> Dataset:
    """Read the passages of a collection, or cut documents at sentence ends into passages that fit.

    Returns:
        Columns `_id`, `title`, `text`; ids of cut passages are their numbers.

    Raises:
        FileNotFoundError: there is no such corpus.
        ValueError: it has fewer than 64 different passages.
    """
    passages = None
    if isinstance(corpus, str | Path):
        with suppress(FileNotFoundError):
            passages = load_passages(corpus)
    if passages is None:
        texts = [
            passage
            for row in iterate_rows(load_documents(corpus))
            for passage in cut_text(row["text"] or "", retriever)
        ]
        rows = {"_id": list(map(str, range(len(texts)))), "title": [""] * len(texts)}
        passages = Dataset.from_dict({**rows, "text": texts})
    n_different = len(set(zip(passages["title"], passages["text"], strict=True)))
    if n_different < LEAST_PASSAGES:
        raise ValueError(
            f"{corpus} has {len(passages)} passages, of which {n_different} are different; at least"
            f" {LEAST_PASSAGES} are needed to learn anything: give more text."
        )
    return passages


def cut_text(text: str, retriever: Retriever) -> Iterator[str]:
    """Cut a text into passages of whole sentences that fit the retriever; none of a blank text.

    A sentence that is too long is cut, so that all of the text is kept.
    """
    tokenizer: Any = retriever.model.tokenizer
    prompt = tokenizer(retriever.contract.passage_prompt, add_special_tokens=False)["input_ids"]
    n_beside = tokenizer.num_special_tokens_to_add() + len(prompt)
    room = max(retriever.contract.passage_max_length - n_beside, 1)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    tokens = [start for start, _ in encoded["offset_mapping"]]  # their first characters
    for start, stop, _ in cut_at_sentences(text, tokens, room=room):
        if passage := text[start:stop].strip():
            yield passage


@dataclass(frozen=True)
class Look:
    """What passages look like to a retriever, from a sample.

    Attributes:
        unknown: share of tokens that are the tokenizer's unknown token.
        split: share of words that the tokenizer splits.
        overlap: share of the first ten results for made queries that BM25 and the retriever share.
        seconds: for encoding all passages.
    """

    unknown: float
    split: float
    overlap: float
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.unknown:.1%} of the tokens are unknown to the model, {self.split:.0%} of the "
            f"words are split; BM25 and the model share {self.overlap:.0%} of their first ten "
            f"results; encoding takes about {self.seconds / 60:.1f} minutes"
        )


def look_at(passages: Dataset, retriever: Retriever, *, seed: int = 0) -> Look:
    """Look at a sample of passages through a retriever."""
    random = np.random.default_rng(seed)
    rows = random.choice(len(passages), min(_SAMPLE, len(passages)), replace=False)
    sample = passages.select(np.sort(rows))
    tokenizer: Any = retriever.model.tokenizer
    titles, texts = list(sample["title"]), list(sample["text"])
    encoded = tokenizer(texts, add_special_tokens=False, truncation=True, max_length=512)
    ids = np.concatenate([np.array(row, dtype=np.int64) for row in encoded["input_ids"]])
    words: list[int] = []
    for i in range(len(sample)):
        numbers = [word for word in encoded.word_ids(i) if word is not None]
        words += np.unique(numbers, return_counts=True)[1].tolist()
    started = time.perf_counter()
    vectors = retriever.encode_passages(sample)
    seconds = (time.perf_counter() - started) * len(passages) / len(sample)
    queries = make_queries(titles, texts, kinds=("sentence", "keywords"), n=100, seed=seed)
    shared = []
    if queries:
        bm25, found = Bm25(sample), retriever.encode_queries([query.text for query in queries])
        for query, scores in zip(queries, found @ vectors.T, strict=True):
            lexical = np.argsort(-bm25.scores(query.text), kind="stable")[:10]
            shared.append(
                len(np.intersect1d(lexical, np.argsort(-scores, kind="stable")[:10])) / 10
            )
    return Look(
        unknown=float((ids == tokenizer.unk_token_id).mean()) if len(ids) else 0.0,
        split=float((np.array(words) > 1).mean()) if words else 0.0,
        overlap=float(np.mean(shared)) if shared else 0.0,
        seconds=seconds,
    )
