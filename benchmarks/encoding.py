"""Passages encoded a second, beside sentence-transformers' own `encode`, on the same model.

    python -m benchmarks.encoding [--layers 4 --hidden 128 --passages 600 --words 55 --pooling cls]

Passages are words of the standard library's docstrings, of skewed lengths as in a real collection
(log-normal, with a median of `--words`). Both sides run in turns in one process, in float32 and in
bfloat16; figures are medians. Memory is what encoding adds at most, each side in a process of its
own (on Linux). The vectors of both sides must agree.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from datasets import Dataset

from benchmarks.harness import (
    docstrings,
    make_encoder,
    make_parser,
    measure_sides,
    peak_memory,
    print_conditions,
    print_result,
    print_table,
    time_in_turns,
)
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.hub.contract import EncodingContract, Pooling
from modeling_condenser.hub.export import export_encoder

OURS, THEIRS = "ours", "sentence-transformers"
_SIZES = {
    **{"layers": 4, "hidden": 128, "vocabulary": 8000, "max_length": 512},
    **{"passages": 600, "words": 55, "repeats": 5, "batch": 32},
}


def main() -> None:
    """Run both sides in turns and print the table."""
    parser = make_parser(__doc__, **_SIZES)
    parser.add_argument("--device", help="(default: an accelerator, if there is one)")
    parser.add_argument("--pooling", choices=get_args(Pooling), default="cls")
    arguments = parser.parse_args()
    if arguments.side:
        encode = open_sides(arguments)[arguments.side]
        print_result({"MiB": _added_memory(encode)})
        return
    with tempfile.TemporaryDirectory() as scratch:
        arguments.folder = Path(scratch)
        prepare(arguments)
        sides = open_sides(arguments)
        agreement = _agreement({side: encode() for side, encode in sides.items()})
        seconds = time_in_turns(sides, repeats=arguments.repeats)
        memory = measure_sides(sides, arguments.folder)
    print_conditions(arguments, (*_SIZES, "pooling"), agreement=agreement)
    rows = []
    for dtype in ("float32", "bfloat16"):
        pair = [f"{who}, {dtype}" for who in (OURS, THEIRS)]
        speeds = [arguments.passages / statistics.median(seconds[side]) for side in pair]
        peaks = [memory[side][0]["MiB"] for side in pair]
        for name, (ours, theirs) in (("passages/s", speeds), ("peak memory (MiB)", peaks)):
            rows.append([f"{name}, {dtype}", ours, theirs, ours / theirs])
    print_table(["", OURS, THEIRS, "ratio"], rows)


def prepare(arguments: argparse.Namespace) -> None:
    """Write an encoder of the wanted size, and the passages."""
    folder, length = arguments.folder, arguments.max_length
    texts = docstrings(folder / "text")
    checkpoint = make_encoder(texts, folder / "checkpoint", arguments, positions=length)
    contract = EncodingContract(length, length, pooling=arguments.pooling, similarity="cosine")
    export_encoder(checkpoint, folder / "encoder", contract=contract)
    words, random = " ".join(texts).split(), np.random.default_rng(0)
    drawn = random.normal(np.log(arguments.words), 0.8, size=arguments.passages)
    lengths = np.exp(drawn).astype(int) + 1
    starts = random.integers(0, len(words) - lengths.max(), size=arguments.passages)
    pairs = zip(starts, lengths, strict=True)
    passages = [" ".join(words[start : start + length]) for start, length in pairs]
    (folder / "passages.json").write_text(json.dumps(passages))


def open_sides(arguments: argparse.Namespace) -> dict[str, Callable[[], np.ndarray]]:
    """Both ways to encode the passages with the same model, in both precisions."""
    texts = json.loads((arguments.folder / "passages.json").read_text())
    passages = Dataset.from_dict({"title": [""] * len(texts), "text": texts})
    sides: dict[str, Callable[[], np.ndarray]] = {}
    for dtype in ("float32", "bfloat16"):
        retriever = Retriever(arguments.folder / "encoder", device=arguments.device, dtype=dtype)
        sides[f"{OURS}, {dtype}"] = partial(retriever.encode_passages, passages)
        sides[f"{THEIRS}, {dtype}"] = partial(
            retriever.model.encode, texts, batch_size=arguments.batch, show_progress_bar=False
        )
    return sides


def _agreement(vectors: dict[str, np.ndarray]) -> str:
    """How well the unit vectors of all sides agree, checked."""
    exact = vectors[f"{THEIRS}, float32"]
    difference = float(np.abs(vectors[f"{OURS}, float32"] - exact).max())
    assert difference < 1e-5, f"the vectors differ by {difference}"
    cosines = []
    for who in (OURS, THEIRS):
        short = vectors[f"{who}, bfloat16"].astype(np.float64)
        short /= np.linalg.norm(short, axis=1, keepdims=True)
        cosines.append(float((short * exact).sum(axis=1).min()))
    assert min(cosines) > 0.99, f"the cosines of bfloat16 to float32 are {cosines}"
    return f"to {difference:.0e} in float32; least cosines of bfloat16 to float32 {cosines}"


def _added_memory(encode: Callable[[], np.ndarray]) -> float:
    """MiB that encoding adds at most to what is held before."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak (Linux, proc(5))
    before = peak_memory(device)
    encode()
    return 1024 * (peak_memory(device) - before)


if __name__ == "__main__":
    main()
