"""How fast batches are made: our collator beside the reference's loop, in turns, in one process.

    python -m benchmarks.pretraining_collator [--batch 64 --max_length 128]

Real text in blocks that fill the length, one thread, medians over the turns.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from benchmarks.harness import docstrings, make_encoder, make_parser, print_table
from benchmarks.naive_baseline import LoopCollator
from modeling_condenser import CondenserDataCollator

_BATCHES = 20


def main() -> None:
    """Time the collators on the same batches."""
    arguments = make_parser(__doc__ or "", batch=64, max_length=128, repeats=9).parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer, tokens = _read_text(Path(scratch))
    room, length = arguments.max_length - 2, arguments.max_length
    blocks = [tokens[first : first + room] for first in range(0, len(tokens) - room, room)]
    batches = [
        [
            {"input_ids": blocks[(number * arguments.batch + i) % len(blocks)], "mask_key": i}
            for i in range(arguments.batch)
        ]
        for number in range(_BATCHES)
    ]
    collators: dict[str, Callable[[Any], Any]] = {
        "ours": CondenserDataCollator(tokenizer, max_length=length),
        "ours, packed": CondenserDataCollator(tokenizer, max_length=length, packed=True),
        "loop": LoopCollator(tokenizer, length),
    }
    for collate in collators.values():
        _time(collate, batches[:2])
    seconds: dict[str, list[float]] = {name: [] for name in collators}
    for _ in range(arguments.repeats):
        for name, collate in collators.items():
            seconds[name].append(_time(collate, batches) / _BATCHES)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    print(f"{arguments.batch} blocks of {length} tokens, one thread")
    print_table(
        ["collator", "ms a batch", "blocks/s", "times the loop's speed"],
        (
            [name, 1000 * median, arguments.batch / median, medians["loop"] / median]
            for name, median in medians.items()
        ),
    )


def _read_text(folder: Path) -> tuple[Any, np.ndarray]:
    """A tokenizer trained on docstrings, and the tokens of some, end to end."""
    texts = docstrings(folder / "text")
    sizes = argparse.Namespace(layers=1, hidden=64, vocabulary=8000)
    tokenizer = AutoTokenizer.from_pretrained(
        make_encoder(texts, folder / "encoder", sizes, positions=128)
    )
    rows = tokenizer(texts[:1000], add_special_tokens=False, verbose=False)["input_ids"]
    return tokenizer, np.concatenate([np.array(row, dtype=np.int32) for row in rows])


def _time(collate: Callable[[Any], Any], batches: Sequence[Any]) -> float:
    started = time.perf_counter()
    for batch in batches:
        collate(batch)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
