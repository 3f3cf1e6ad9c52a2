"""Speed of our collator and of the reference's loop, in turns, in one process.

    python -m benchmarks.pretraining_collator [--batch 64 --max_length 128]

Real text in blocks that fill the length, one thread, medians over the turns.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from benchmarks.harness import docstrings, make_encoder, make_parser, print_table, time_in_turns
from benchmarks.naive_baseline import LoopCollator
from modeling_condenser import CondenserDataCollator

_BATCHES = 20


def main() -> None:
    """Time the collators on the same batches."""
    arguments = make_parser(__doc__, batch=64, max_length=128, repeats=9).parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        texts = docstrings(Path(scratch) / "text")
        sizes = argparse.Namespace(layers=1, hidden=64, vocabulary=8000)
        encoder = make_encoder(texts, Path(scratch) / "encoder", sizes, positions=128)
        tokenizer = AutoTokenizer.from_pretrained(encoder)
    rows = tokenizer(texts[:1000], add_special_tokens=False, verbose=False)["input_ids"]
    tokens = np.concatenate([np.array(row, dtype=np.int32) for row in rows])
    length, size = arguments.max_length, arguments.batch
    blocks = [tokens[i : i + length - 2] for i in range(0, len(tokens) - length, length - 2)]
    examples = [
        {"input_ids": blocks[i % len(blocks)], "mask_key": i} for i in range(_BATCHES * size)
    ]
    collators: dict[str, Callable[[Any], Any]] = {
        "ours": CondenserDataCollator(tokenizer, max_length=length),
        "ours, packed": CondenserDataCollator(tokenizer, max_length=length, packed=True),
        "loop": LoopCollator(tokenizer, length),
    }

    def collate(name: str) -> None:
        for first in range(0, len(examples), size):
            collators[name](examples[first : first + size])

    sides = {name: lambda name=name: collate(name) for name in collators}
    seconds = time_in_turns(sides, repeats=arguments.repeats)
    medians = {name: statistics.median(times) / _BATCHES for name, times in seconds.items()}
    print(f"{size} blocks of {length} tokens, one thread")
    print_table(
        ["collator", "ms a batch", "blocks/s", "times the loop's speed"],
        (
            [name, 1000 * median, size / median, medians["loop"] / median]
            for name, median in medians.items()
        ),
    )


if __name__ == "__main__":
    main()
