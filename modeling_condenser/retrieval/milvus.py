"""Searches in Milvus, which stores vectors, ids and texts in a file or on a cluster.

`--index milvus:URI` names a file (`milvus:vectors.db`, Milvus Lite) or a server
(`milvus:http://localhost:19530`), whose token is in the environment variable MILVUS_TOKEN.
"""

import hashlib
import importlib.util
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from datasets import Dataset

from modeling_condenser.collection.chunks import in_chunks
from modeling_condenser.encoding.embeddings import Embeddings, hash_passages
from modeling_condenser.files.progress import bar

logger = logging.getLogger(__name__)

MILVUS = "milvus:"
_LONGEST = 65_535  # bytes of a Milvus string
_ROWS_A_REQUEST, _QUERIES_A_REQUEST = 500, 100
_SECONDS_TO_CONNECT = 10


@dataclass(frozen=True)
class MilvusIndex:
    """The passages of one collection with the vectors of one retriever, in Milvus.

    The fields are `id` (the primary key), `title`, `text`, `embedding`, and `hash`, that of the
    embeddings. Scores are inner products.
    """

    client: Any  # a `pymilvus.MilvusClient`
    name: str  # of the Milvus collection
    parameters: dict[str, Any]  # of the search, such as {"ef": 128}
    embeddings: Embeddings

    @cached_property
    def ids(self) -> pd.Index:
        """The ids in the order of the rows."""
        return pd.Index(self.embeddings.passage_ids.to_pylist())

    def search(
        self, queries: np.ndarray, k: int, *, filter: str = ""
    ) -> tuple[np.ndarray, np.ndarray]:
        """Find the k best passages for queries, (Q, D) float32.

        `filter` is an expression of Milvus over the fields, such as `title like "Oslo%"`.

        Returns:
            Scores (Q, k) float32 and rows (Q, k) int64, best first; row -1 for none.
        """
        scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
        rows = np.full((len(queries), k), -1)
        for first in range(0, len(queries), _QUERIES_A_REQUEST):
            some = list(queries[first : first + _QUERIES_A_REQUEST])
            with _clear_errors():
                found = self.client.search(
                    self.name,
                    some,
                    filter=filter,
                    limit=k,
                    anns_field="embedding",
                    search_params={"params": self.parameters},
                )
            for query, hits in enumerate(found, start=first):
                scores[query, : len(hits)] = [hit["distance"] for hit in hits]
                rows[query, : len(hits)] = self.ids.get_indexer([hit["id"] for hit in hits])
        return scores, rows


def connect(index: str) -> Any:
    """Connect to `milvus:URI`; return a `pymilvus.MilvusClient`.

    Raises:
        ValueError: pymilvus is not installed, or the URI is not valid.
        OSError: the server cannot be reached, or refuses.
    """
    uri = index.removeprefix(MILVUS)
    is_file = uri.endswith(".db") and Path(uri).absolute().parent.is_dir()
    if uri == index or not ("://" in uri or is_file):
        raise ValueError(
            f"{index!r} is not a Milvus URI: expected {MILVUS}FILE.db in a folder that exists, or "
            f"{MILVUS}http://HOST:19530."
        )
    needed = ["pymilvus", "milvus_lite"] if uri.endswith(".db") else ["pymilvus"]
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        hint = 'pip install -c constraints.txt -e ".[milvus]"'
        raise ValueError(f"--index {index} needs {missing[0]}: {hint}")
    from pymilvus import MilvusClient

    with _clear_errors(f" at {uri}"):
        token = os.environ.get("MILVUS_TOKEN", "")
        client = MilvusClient(uri, token=token, timeout=_SECONDS_TO_CONNECT)
        client.list_collections(timeout=_SECONDS_TO_CONNECT)
    return client


def store_in_milvus(
    embeddings: Embeddings, passages: Dataset, client: Any, *, parameters: str | None = None
) -> MilvusIndex:
    """Store vectors, ids and texts, those that are new or changed, and delete the others.

    The name of the Milvus collection is made from the fingerprints of the retriever and of the
    first version of the passages, so other vectors never mix with these. `client` is from
    `connect`; `parameters` of the search are `name=value[,name=value]...`, such as "ef=128".
    """
    origin = embeddings.origin or embeddings.passages
    identity = f"by id {embeddings.retriever} {origin} {embeddings.dimension}"
    name = f"condenser_{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
    index = MilvusIndex(client, name, _read_parameters(parameters), embeddings)
    hashes = hash_passages(passages) if embeddings.hashes is None else embeddings.hashes
    with _clear_errors():
        if not client.has_collection(name):
            _create(client, name, embeddings.dimension)
        client.load_collection(name)
        stored = _read_hashes(client, name)
        pairs = enumerate(zip(index.ids, hashes.tolist(), strict=True))
        missing = [row for row, (own, wanted) in pairs if stored.pop(own, None) != wanted]
        for first in bar(range(0, len(missing), _ROWS_A_REQUEST), "milvus", unit="batch"):
            rows = np.asarray(missing[first : first + _ROWS_A_REQUEST])
            client.upsert(name, _records(embeddings, passages, hashes, rows))
        for ids in in_chunks(stored, most=_ROWS_A_REQUEST, text=str):
            client.delete(name, ids=ids)
        if missing or stored:
            client.flush(name)
            logger.info("%s: %d passages stored, %d deleted", *(name, len(missing), len(stored)))
    return index


def _read_hashes(client: Any, name: str) -> dict[str, int]:
    """The hash of each stored passage."""
    for logger_name in ("grpc._server", "pymilvus.client.iterator.query_iterator"):
        logging.getLogger(logger_name).setLevel(logging.CRITICAL)  # Milvus Lite has no time stamps
    rows = client.query_iterator(
        name,
        batch_size=_ROWS_A_REQUEST,
        output_fields=["id", "hash"],
        consistency_level="Strong",
    )
    found: dict[str, int] = {}
    while batch := rows.next():
        found |= {row["id"]: row["hash"] for row in batch}
    rows.close()
    return found


def _read_parameters(text: str | None) -> dict[str, Any]:
    try:
        words = dict(word.split("=") for word in text.split(",")) if text else {}
        return {name: json.loads(value) for name, value in words.items()}
    except ValueError:
        raise ValueError(f"The search parameters are {text!r}, expected such as ef=128.") from None


def _create(client: Any, name: str, dimension: int) -> None:
    from pymilvus import DataType

    schema = client.create_schema(auto_id=False)
    schema.add_field("id", DataType.VARCHAR, max_length=_LONGEST, is_primary=True)
    schema.add_field("hash", DataType.INT64)
    for field in ("title", "text"):
        schema.add_field(field, DataType.VARCHAR, max_length=_LONGEST)
    schema.add_field("embedding", DataType.FLOAT_VECTOR, dim=dimension)
    indices = client.prepare_index_params()
    indices.add_index("embedding", index_type="AUTOINDEX", metric_type="IP")
    client.create_collection(name, schema=schema, index_params=indices)


def _records(
    embeddings: Embeddings, passages: Dataset, hashes: np.ndarray, rows: np.ndarray
) -> list[dict[str, Any]]:
    part, vectors = passages[rows], embeddings.vectors(rows)
    columns = (part["_id"], hashes[rows].tolist(), part["title"], part["text"], vectors)
    return [
        {"id": own, "hash": hashed, "title": _cut(title), "text": _cut(text), "embedding": vector}
        for own, hashed, title, text, vector in zip(*columns, strict=True)
    ]


def _cut(text: str) -> str:
    """Cut a text to the size of a Milvus string."""
    return text.encode()[:_LONGEST].decode(errors="ignore")


@contextmanager
def _clear_errors(place: str = "") -> Iterator[None]:
    from pymilvus.exceptions import MilvusException

    try:
        yield
    except MilvusException as error:
        raise OSError(
            f"Milvus{place} failed: {error.message} Check the address, that the server runs, and "
            "that no other process has the file open."
        ) from error
