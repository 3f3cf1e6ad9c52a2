"""Speed and memory of coCondenser: packed or padded, with the gradient cache or without.

    python -m benchmarks.contrastive --text FILE.jsonl               speed
    python -m benchmarks.contrastive --hidden 128 --max_length 48 --batch 1024 --chunk 32 \
        --steps 2 --repeats 1                                        memory

Whole runs of `pretrain` with two spans of each document, from one encoder of random weights, each
in a process of its own, in turns; figures are medians. Tokens a second are those of the second half
of a run's steps; memory is the process's peak, libraries included. The losses of the first half
must agree but for dropout.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import (
    make_parser,
    measure_sides,
    medians,
    peak_memory,
    print_conditions,
    print_table,
)
from benchmarks.pretraining_text import prepare
from modeling_condenser.files.run_folder import read_log
from modeling_condenser.pretraining.pretrain import pretrain

_SIZES = {
    **{"layers": 4, "hidden": 256, "vocabulary": 8000, "max_length": 128},
    **{"batch": 32, "chunk": 16, "steps": 8, "repeats": 3},
}
SIDES = ("packed", "padded", "packed,cached", "padded,cached")


def main() -> None:
    """Run all sides in turns and print the table."""
    parser = make_parser(__doc__, **_SIZES)
    parser.add_argument("--text", type=Path, help="(default: the standard library's docstrings)")
    arguments = parser.parse_args()
    arguments.warm_up = 0
    runs = measure_sides(SIDES, arguments, prepare, train)
    for plain, cached in (SIDES[:2], SIDES[2:]):
        losses = [runs[side][0]["loss"] for side in (plain, cached)]
        assert abs(losses[0] - losses[1]) < 0.05 * losses[1], losses
    print_conditions(arguments, _SIZES)
    figures = [[side, *medians(results).values()] for side, results in runs.items()]
    print_table(["", "loss", "tokens/s", "peak memory, GiB"], figures)


def train(side: str, arguments: Any) -> dict[str, float]:
    """Train a coCondenser on the text."""
    out = tempfile.mkdtemp(dir=arguments.folder)
    pretrain(
        {
            "encoder": str(arguments.folder / "encoder"),
            "corpus": str(arguments.text or arguments.folder / "text" / "corpus.jsonl"),
            "objective": "cocondenser",
            "new_head": True,
            "similarity": "cosine",
            "packed": side.startswith("packed"),
            "cache_chunk_size": arguments.chunk if side.endswith("cached") else None,
            "max_length": arguments.max_length,
            "per_device_train_batch_size": arguments.batch,
            "max_steps": arguments.steps,
            "logging_steps": arguments.steps // 2,
            "output_dir": out,
            "save_strategy": "no",
            "disable_tqdm": True,
        }
    )
    log, device = read_log(Path(out)), torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return {
        "loss": log[0]["loss"],
        "tokens/s": log[-1]["tokens_per_second"],
        "peak memory, GiB": peak_memory(device),
    }


if __name__ == "__main__":
    main()
