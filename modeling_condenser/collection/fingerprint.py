"""Fingerprints of the content of a collection, whatever its layout or its place.

Embeddings, run folders and model cards record them, so these functions must not change.
"""

import hashlib
import json
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from .collection import Collection
from .passages import COLUMNS

_BATCH_ROWS = 8192  # part of the definition: the lengths of a batch come before its texts


def fingerprint_passages(passages: Dataset) -> str:
    """Fingerprint the ids, titles and texts of passages, in their order.

    Returns:
        64 hexadecimal digits: SHA-256 over, for each 8,192 rows and each column, the lengths in
        bytes (int64, little-endian) and then the texts (UTF-8) end to end.
    """
    digest = hashlib.sha256(b"condenser passages 1")
    table = passages.select_columns(list(COLUMNS)).with_format("arrow")
    for batch in table.iter(batch_size=_BATCH_ROWS):
        for column in COLUMNS:
            texts = batch[column].cast(pa.large_binary()).combine_chunks()
            if texts.null_count:
                raise ValueError(f"column {column!r} of the passages has nulls, expected strings.")
            digest.update(pc.binary_length(texts).to_numpy().astype("<i8").tobytes())
            _, offsets, data = texts.buffers()  # the texts end to end, without a copy
            bounds = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
            digest.update(memoryview(data or b"")[int(bounds[0]) : int(bounds[-1])])
    digest.update(np.int64(len(passages)).tobytes())
    return digest.hexdigest()


def fingerprint_judgements(collection: Collection) -> str:
    """Fingerprint queries, judgements and answers, in any order: 64 hexadecimal digits."""
    digest = hashlib.sha256(b"condenser judgements 1")
    for query_id in sorted(collection.queries):
        grades = sorted(collection.qrels.get(query_id, {}).items())
        answers = sorted(collection.answers.get(query_id, ()))
        line = [query_id, collection.queries[query_id], grades, answers]
        digest.update(json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
    return digest.hexdigest()


def checksum_qrels(qrels: Mapping[str, Mapping[str, int]]) -> str:
    """Fingerprint judgements alone.

    Returns:
        SHA-256 of their lines in TREC's form, `query 0 passage grade`, sorted by bytes. From a file
        of such lines: `LC_ALL=C sort FILE | sha256sum`.
    """
    lines = sorted(
        f"{query_id} 0 {passage_id} {grade}\n".encode()
        for query_id, grades in qrels.items()
        for passage_id, grade in grades.items()
    )
    return hashlib.sha256(b"".join(lines)).hexdigest()


def fingerprint_rows(table: Dataset) -> str:
    """Fingerprint the rows of any data set, in their order: 64 hexadecimal digits."""
    digest = hashlib.sha256(b"condenser rows 1")
    for batch in table.with_format("arrow").iter(batch_size=_BATCH_ROWS):
        for part in batch.combine_chunks().to_batches():
            digest.update(part.serialize())
    return digest.hexdigest()
