"""What a collection holds, as a few characters: content in, a SHA-256 out.

Stored vectors and figures belong to a content, wherever and however it lies: the same passages read
from JSON, TSV or the Hub have the same fingerprint, and one changed letter gives another.
"""

import hashlib
import json
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from .collection import Collection, Qrels
from .passages import COLUMNS

_BATCH_ROWS = 8192  # part of the definition: a batch's lengths come before its texts
_PASSAGES_VERSION = b"condenser passages 1"
_ROWS_VERSION = b"condenser rows 1"
_JUDGEMENTS_VERSION = b"condenser judgements 1"


def fingerprint_passages(passages: Dataset) -> str:
    """Identify passages by their ids, titles and texts, in their order.

    Args:
        passages: columns `_id`, `title`, `text`, strings of any kind; N rows.

    Returns:
        64 hexadecimal digits: SHA-256 over, for each 8,192 rows and each column, the lengths in
        bytes (int64, little-endian) and then the texts (UTF-8) end to end.

    Raises:
        ValueError: a null, which is no text.
    """
    digest = hashlib.sha256(_PASSAGES_VERSION)
    table = passages.select_columns(list(COLUMNS)).with_format("arrow")
    for batch in table.iter(batch_size=_BATCH_ROWS):
        for column in COLUMNS:
            texts = batch[column].cast(pa.large_binary()).combine_chunks()
            if texts.null_count:
                raise ValueError(
                    f"column {column!r} of the passages has nulls, expected strings: load them with"
                    ' load_passages, or write "" for none'
                )
            digest.update(pc.binary_length(texts).to_numpy().astype("<i8").tobytes())
            digest.update(_content(texts))
    digest.update(np.int64(len(passages)).tobytes())
    return digest.hexdigest()


def _content(texts: pa.Array) -> memoryview:
    """The texts end to end, without a copy."""
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return memoryview(data or b"")[int(bounds[0]) : int(bounds[-1])]


def fingerprint_judgements(collection: Collection) -> str:
    """Identify queries, judgements and answers, whatever their order: 64 hexadecimal digits."""
    digest = hashlib.sha256(_JUDGEMENTS_VERSION)
    for query_id in sorted(collection.queries):
        grades = sorted(collection.qrels.get(query_id, {}).items())
        answers = sorted(collection.answers.get(query_id, ()))
        digest.update(_line([query_id, collection.queries[query_id], grades, answers]))
    return digest.hexdigest()


def checksum_qrels(qrels: Qrels | Mapping[str, Mapping[str, int]]) -> str:
    """Identify judgements, so that two reports can be seen to use the same ones.

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
    """Identify the rows of any data set, in their order: 64 hexadecimal digits."""
    digest = hashlib.sha256(_ROWS_VERSION)
    for batch in table.with_format("arrow").iter(batch_size=_BATCH_ROWS):
        for part in batch.combine_chunks().to_batches():
            digest.update(part.serialize())
    return digest.hexdigest()


def _line(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
