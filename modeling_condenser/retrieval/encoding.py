"""Texts in, vectors out, as a retriever's encoding contract says."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from datasets import Dataset
from sentence_transformers import SentenceTransformer

from modeling_condenser.publishing.contract import EncodingContract


class Retriever:
    """A bi-encoder: one encoder for queries and passages, through sentence-transformers.

    Args:
        folder: of an export or a fine-tuned retriever.
        batch_size: texts encoded together.

    Raises:
        FileNotFoundError: the folder has no encoding contract.
    """

    def __init__(self, folder: str | Path, *, batch_size: int = 64):
        self.folder = Path(folder)
        self.contract = EncodingContract.load(self.folder)
        self.model = SentenceTransformer(str(folder))
        self.batch_size = batch_size

    def encode_queries(self, texts: Sequence[str], *, progress: bool = False) -> np.ndarray:
        """Vectors of queries, (N, H) float32."""
        return self._encode(texts, self.contract.query_max_length, progress)

    def encode_passages(self, passages: Dataset, *, progress: bool = False) -> np.ndarray:
        """Vectors of passages with columns `title` and `text`, (N, H) float32."""
        texts = [
            self.contract.passage(title, text)
            for title, text in zip(passages["title"], passages["text"], strict=True)
        ]
        return self._encode(texts, self.contract.passage_max_length, progress)

    def _encode(self, texts: Sequence[str], max_length: int, progress: bool) -> np.ndarray:
        self.model.max_seq_length = max_length
        return self.model.encode(
            list(texts),
            batch_size=self.batch_size,
            convert_to_numpy=True,
            normalize_embeddings=self.contract.similarity == "cosine",
            show_progress_bar=progress,
        )
