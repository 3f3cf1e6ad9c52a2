"""The passages to adapt to, and what they look like to a retriever before anything is trained."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import fmean
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

LEAST_PASSAGES = 64
_SAMPLE = 256  # passages that are looked at


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


def describe(passages: Dataset, retriever: Retriever, *, seed: int, is_encoded: bool) -> str:
    """What a sample of passages looks like to a retriever, before anything is trained.

    It also says how long encoding will take, unless the passages are encoded.
    """
    random = np.random.default_rng(seed)
    rows = random.choice(len(passages), min(_SAMPLE, len(passages)), replace=False)
    sample = passages.select(np.sort(rows))
    titles, texts = list(sample["title"]), list(sample["text"])
    tokenizer: Any = retriever.model.tokenizer
    encoded = tokenizer(texts, add_special_tokens=False, truncation=True, max_length=512)
    tokens = [token for ids in encoded["input_ids"] for token in ids]
    words = Counter((row, word) for row in range(len(texts)) for word in encoded.word_ids(row))
    n_split = sum(n_tokens > 1 for n_tokens in words.values())
    started = time.perf_counter()
    vectors = retriever.encode_passages(sample)
    seconds = (time.perf_counter() - started) * len(passages) / len(sample)
    overlap = 0.0
    if queries := make_queries(titles, texts, kinds=("sentence", "keywords"), n=100, seed=seed):
        asked, bm25 = [query.text for query in queries], Bm25(sample)
        lexical = np.stack([bm25.scores(text) for text in asked])  # (Q, N)
        dense = retriever.encode_queries(asked) @ vectors.T  # (Q, N)
        first = (np.argsort(-scores, kind="stable")[:, :10] for scores in (lexical, dense))
        overlap = fmean(len(np.intersect1d(*rows)) / 10 for rows in zip(*first, strict=True))
    unknown = tokens.count(tokenizer.unk_token_id) / max(len(tokens), 1)
    split = n_split / max(len(words), 1)
    cost = "" if is_encoded else f"; encoding takes about {seconds / 60:.1f} minutes"
    return (
        f"{unknown:.1%} of the tokens are unknown to the model, {split:.0%} of the words are split;"
        f" BM25 and the model share {overlap:.0%} of their first ten results{cost}"
    )
