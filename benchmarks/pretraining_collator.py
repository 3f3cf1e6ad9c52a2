"""How fast batches are made: our collator beside the reference's loop, in turns, in one process.

    python -m benchmarks.pretraining_collator [--batch 64 --max_length 128]

Real text, cut into blocks that fill the length, so that there is as much to do as can be; one
thread; figures are medians over the turns, and the ratio is of the medians.
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

from benchmarks.naive_baseline import LoopCollator
from benchmarks.pretraining_text import prepare
from modeling_condenser import CondenserDataCollator
from modeling_condenser.pretraining.corpus import Source, load_documents

_BATCHES = 20


def main() -> None:
    """Time both collators on the same batches."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("batch", 64), ("max_length", 128), ("repeats", 9)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"(default: {default})")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer, tokens = _read_text(Path(scratch), arguments.max_length)
    room = arguments.max_length - 2
    blocks = [tokens[first : first + room] for first in range(0, len(tokens) - room, room)]
    batches = [
        [
            {"input_ids": blocks[(number * arguments.batch + i) % len(blocks)], "mask_key": i}
            for i in range(arguments.batch)
        ]
        for number in range(_BATCHES)
    ]
    collators: dict[str, Callable[[Any], Any]] = {
        "ours": CondenserDataCollator(tokenizer, max_length=arguments.max_length),
        "ours, packed": CondenserDataCollator(
            tokenizer, max_length=arguments.max_length, packed=True
        ),
        "loop": LoopCollator(tokenizer, arguments.max_length),
    }
    seconds: dict[str, list[float]] = {name: [] for name in collators}
    for collate in collators.values():
        _time(collate, batches[:2])
    for _ in range(arguments.repeats):
        for name, collate in collators.items():
            seconds[name].append(_time(collate, batches) / _BATCHES)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    print(f"{arguments.batch} blocks of {arguments.max_length} tokens, one thread")
    print(
        "| collator | ms a batch | blocks/s | times the loop's speed |\n| --- | --- | --- | --- |"
    )
    for name, median in medians.items():
        speed = f"{arguments.batch / median:,.0f} | {medians['loop'] / median:.1f}"
        print(f"| {name} | {1000 * median:.3g} | {speed} |")


def _read_text(folder: Path, max_length: int) -> tuple[Any, np.ndarray]:
    """A tokenizer trained on docstrings, and their tokens end to end."""
    sizes = {"layers": 1, "hidden": 64, "vocabulary": 8000, "max_length": max_length}
    steps = {"batch": 1, "steps": 1, "warm_up": 0}
    prepare(argparse.Namespace(folder=folder, text=None, **sizes, **steps))
    tokenizer = AutoTokenizer.from_pretrained(folder / "encoder")
    documents = load_documents([Source(str(folder / "text" / "corpus.jsonl"))])
    texts = documents[:1000]["text"]
    rows = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    return tokenizer, np.concatenate([np.array(row, dtype=np.int32) for row in rows])


def _time(collate: Callable[[Any], Any], batches: Sequence[Any]) -> float:
    started = time.perf_counter()
    for batch in batches:
        collate(batch)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
