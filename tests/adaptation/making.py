"""Vectors, judged queries and stored embeddings for the tests of adaptation."""

import numpy as np
import pyarrow as pa

from modeling_condenser.adaptation.query_map import JudgedQueries
from modeling_condenser.encoding.embeddings import Embeddings


def unit(vectors):
    """Vectors of length 1, float32."""
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def judged(vectors, positives, dense=None, excluded=None):
    """Judged queries that BM25 finds nothing for."""
    excluded = excluded or [[]] * len(vectors)
    dense = np.zeros((len(vectors), 2), dtype=np.int64) if dense is None else np.array(dense)
    scores = np.zeros(dense.shape, dtype=np.float32)
    return JudgedQueries(vectors, positives, excluded, dense, np.zeros_like(dense), scores)


def store(passages, folder):
    """Embeddings of passages p0, p1, ..."""
    n, size = passages.shape
    place = folder / "embeddings"
    embeddings = Embeddings(folder=place, n_passages=n, dimension=size, shard_size=64)
    embeddings.create(pa.array([f"p{i}" for i in range(len(passages))]))
    for shard, rows in enumerate(embeddings.shards):
        embeddings.write_shard(shard, passages[rows.start : rows.stop])
    return embeddings
