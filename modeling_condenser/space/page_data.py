"""The data of the search page: passages, the scores of BM25, and vectors.

passages.json   ids, titles and texts, in the order of the ids, so that equal scores are too
words.json      V words that are not stopwords
bm25.bin        V + 1 offsets (uint32), then of each word its passages' rows (uint32) from its
                offset on, and then likewise their scores (float32)
vectors.bin     D starts and D steps (float32), then N x D codes c (uint8) for start + c step
"""

import json
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from datasets import Dataset

from modeling_condenser.encoding.embeddings import id_column
from modeling_condenser.retrieval.bm25 import Bm25


def write_page_data(folder: Path, passages: Dataset, index: Any, *, text_length: int) -> None:
    """Write the data into a new folder.

    Args:
        folder: of the data.
        passages: columns `_id`, `title`, `text`.
        index: their vectors, by `build_quantised` with the precision int8.
        text_length: characters of a text to write; the rest is cut.
    """
    folder.mkdir()
    ids = id_column(passages).to_pylist()
    order = np.array(sorted(range(len(ids)), key=ids.__getitem__))
    ordered = passages.select(order)
    n, texts = text_length, ordered["text"]
    shown = [text if len(text) <= n else f"{text[:n].rstrip()} …" for text in texts]
    columns = {"ids": sorted(ids), "titles": ordered["title"][:], "texts": shown}
    _write_json(folder / "passages.json", columns)

    bm25 = Bm25(ordered).index
    words = sorted(bm25.vocab_dict, key=bm25.vocab_dict.__getitem__)
    _write_json(folder / "words.json", [word for word in words if word])  # bm25s adds ""
    parts = (bm25.scores[name] for name in ("indptr", "indices", "data"))
    _write_numbers(folder / "bm25.bin", "<u4 <u4 <f4", *parts)

    codes = faiss.vector_to_array(index.codes).reshape(len(ids), -1)[order]  # (N, D)
    starts, widths = faiss.vector_to_array(index.sq.trained).reshape(2, -1)
    steps = widths / 255  # faiss restores a code c as start + (c + 1/2) step
    _write_numbers(folder / "vectors.bin", "<f4 <f4 u1", starts + steps / 2, steps, codes)


def _write_json(file: Path, content: object) -> None:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    file.write_text(text, encoding="utf-8")


def _write_numbers(file: Path, dtypes: str, *parts: np.ndarray) -> None:
    pairs = zip(dtypes.split(), parts, strict=True)
    file.write_bytes(b"".join(part.astype(dtype).tobytes() for dtype, part in pairs))
