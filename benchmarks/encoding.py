"""Passages encoded per second, compared with sentence-transformers' `encode` on the same model.

    python -m benchmarks.encoding [--layers 4 --hidden 128 --passages 600 --words 55 --pooling cls]

Passages are words of the collection `health`, of skewed lengths (log-normal, with a median of
`--words`). The sides, in float32 and in bfloat16, take turns, each in
a process of its own; figures are medians. Memory is the peak that encoding adds (on Linux). All
vectors must agree with those of sentence-transformers in float32.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from datasets import Dataset

from benchmarks.harness import (
    make_encoder,
    make_parser,
    measure_sides,
    medians,
    peak_memory,
    print_conditions,
    print_table,
    time_in_turns,
)
from modeling_condenser.collection.load import load_passages
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.files.models import Pooling

OURS, THEIRS = "ours", "sentence-transformers"
SPEED, MEMORY = "passages/s", "peak memory (MiB)"
_SIZES = {
    **{"layers": 4, "hidden": 128, "vocabulary": 8000, "max_length": 512},
    **{"passages": 600, "words": 55, "repeats": 5, "batch": 32},
}


def main() -> None:
    """Measure the sides in turns and print the table."""
    parser = make_parser(__doc__, **_SIZES)
    parser.add_argument("--device", help="(default: an accelerator, if there is one)")
    parser.add_argument("--pooling", choices=get_args(Pooling), default="cls")
    arguments = parser.parse_args()
    sides = [f"{who}, {dtype}" for dtype in ("float32", "bfloat16") for who in (OURS, THEIRS)]
    runs = measure_sides(sides, arguments, prepare, measure)
    print_conditions(arguments, (*_SIZES, "pooling"))
    figures = {side: medians(results) for side, results in runs.items()}
    rows = [[side, *found.values()] for side, found in figures.items()]
    for ours, theirs in (sides[:2], sides[2:]):
        ratios = [figures[ours][name] / figures[theirs][name] for name in (SPEED, MEMORY)]
        rows.append([f"ratio, {ours.split()[-1]}", *ratios, "-"])
    print_table(["", *figures[sides[0]]], rows)


def prepare(arguments: argparse.Namespace) -> None:
    """Write an encoder of the wanted size, and the passages."""
    folder, length = arguments.folder, arguments.max_length
    texts = load_passages("health")["text"]
    make_encoder(texts, folder / "encoder", arguments, positions=length)
    words, random = " ".join(texts).split(), np.random.default_rng(0)
    drawn = random.normal(np.log(arguments.words), 0.8, size=arguments.passages)
    lengths = np.exp(drawn).astype(int) + 1
    starts = random.integers(0, len(words) - lengths.max(), size=arguments.passages)
    pairs = zip(starts, lengths, strict=True)
    passages = [" ".join(words[start : start + length]) for start, length in pairs]
    (folder / "passages.json").write_text(json.dumps(passages))
    model = open_encoder(arguments).model
    np.save(folder / "exact.npy", encode_theirs(model, passages, arguments.batch))


def open_encoder(arguments: argparse.Namespace, dtype: str = "float32") -> Retriever:
    settings: Any = {"device": arguments.device, "pooling": arguments.pooling, "dtype": dtype}
    return Retriever(arguments.folder / "encoder", **settings)


def measure(side: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Encode the passages on one side in this process, and compare the vectors."""
    texts = json.loads((arguments.folder / "passages.json").read_text())
    who, dtype = side.split(", ")
    retriever = open_encoder(arguments, dtype)
    if who == OURS:
        passages = Dataset.from_dict({"title": [""] * len(texts), "text": texts})
        encode = partial(retriever.encode_passages, passages)
    else:
        encode = partial(encode_theirs, retriever.model, texts, arguments.batch)
    memory = _added_memory(encode, retriever.model.device)
    seconds = statistics.median(time_in_turns({side: encode}, repeats=3)[side])
    exact, found = np.load(arguments.folder / "exact.npy"), encode().astype(np.float64)
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(exact, axis=1)
    cosines = (found * exact).sum(axis=1) / norms
    error = 1 - float(cosines.min())
    assert error < (1e-6 if dtype == "float32" else 0.01), f"{side}: 1 - cosine is {error}"
    return {SPEED: len(texts) / seconds, MEMORY: memory, "1 - cosine": error}


def encode_theirs(model: Any, texts: list[str], batch_size: int) -> np.ndarray:
    return model.encode(texts, batch_size=batch_size, show_progress_bar=False)


def _added_memory(encode: Callable[[], np.ndarray], device: torch.device) -> float:
    """Peak memory during encoding minus the memory before, in MiB."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak (Linux, proc(5))
    before = peak_memory(device)
    encode()
    return 1024 * (peak_memory(device) - before)


if __name__ == "__main__":
    main()
