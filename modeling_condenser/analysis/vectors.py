"""Dense vectors of a model that is measured: texts in, (N, D) float32 out.

An export, a retriever or a plain encoder encodes as its contract says, through `Retriever`. A
checkpoint, be it on disk or in the middle of its training, has no files of an encoder yet: its
vectors are made here, and equal those of the encoder that would be exported from it.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from modeling_condenser.encoding.token_batches import padded_batches, tokenize_texts
from modeling_condenser.pretraining.positions import n_positions
from modeling_condenser.repository.contract import EncodingContract

_TOKEN_BUDGET = 2048


class Vectors(Protocol):
    """What encodes queries and passages: a `Retriever`, or a checkpoint's `LateVectors`."""

    def encode_queries(self, texts: Sequence[str], /) -> np.ndarray: ...

    def encode_passages(self, passages: Dataset, /) -> np.ndarray: ...


class LateVectors:
    """The late CLS vectors of an encoder in memory, which is left as it is.

    Args:
        encoder: a plain encoder in evaluation mode.
        tokenizer: its own; adds special tokens, CLS first.
        max_length: longest text in tokens.
    """

    def __init__(
        self, encoder: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, max_length: int
    ):
        self.encoder, self.tokenizer = encoder, tokenizer
        self.contract = EncodingContract(max_length, max_length)

    def encode_queries(self, texts: Sequence[str], /) -> np.ndarray:
        return self._encode([self.contract.query(text) for text in texts])

    def encode_passages(self, passages: Dataset, /) -> np.ndarray:
        rows = passages[:]
        pairs = zip(rows["title"], rows["text"], strict=True)
        return self._encode([self.contract.passage(title, text) for title, text in pairs])

    @torch.no_grad()
    def _encode(self, texts: list[str]) -> np.ndarray:
        vectors: list[np.ndarray | None] = [None] * len(texts)
        tokens = self.contract.passage_max_length
        for rows, batch in token_batches(self.encoder, self.tokenizer, texts, max_length=tokens):
            late = self.encoder(**batch).last_hidden_state[:, 0].float().cpu().numpy()  # (B, H)
            for row, vector in zip(rows.tolist(), late, strict=True):
                vectors[row] = vector
        return np.stack([vector for vector in vectors if vector is not None])


def token_batches(
    encoder: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    *,
    max_length: int,
) -> list[tuple[np.ndarray, dict[str, torch.Tensor]]]:
    """Texts as batches of like length on an encoder's device, each with the rows of its texts."""
    padded = padded_batches(
        tokenize_texts(tokenizer, texts, max_length=max_length),
        tokenizer=tokenizer,
        token_budget=_TOKEN_BUDGET,
        max_length=max_length,
    )
    return [
        (rows, {name: part.to(encoder.device) for name, part in batch.items()})
        for rows, batch in padded
    ]


def longest_text(encoder: PreTrainedModel, tokenizer: Any, at_most: int) -> int:
    """The longest text in tokens that tokenizer and positions allow, but no longer than that."""
    limits = (tokenizer.model_max_length, n_positions(encoder), at_most)
    return int(min(limit for limit in limits if limit is not None))
