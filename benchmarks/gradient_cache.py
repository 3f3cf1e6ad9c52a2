"""Peak memory of coCondenser with and without the gradient cache, each in its own process.

    python -m benchmarks.gradient_cache [--batch 1024 --max_length 48 --layers 4 --hidden 128]

Whole runs of `pretrain` on docstrings, padded and in float32, with two spans of each document; that
the gradients are equal is a test's matter. Memory is the process's peak, libraries included.
"""

import json
import tempfile
from pathlib import Path

from benchmarks.contrastive_packing import train
from benchmarks.harness import (
    make_parser,
    measure_apart,
    peak_memory,
    print_result,
    print_table,
)
from benchmarks.pretraining_text import prepare
from modeling_condenser.runs.run_folder import describe_machine

_SIZES = {
    **{"layers": 4, "hidden": 128, "vocabulary": 8000, "max_length": 48},
    **{"batch": 1024, "chunk": 32, "steps": 2},
}


def main() -> None:
    """Run both sides and print the table."""
    arguments = make_parser(__doc__ or "", **_SIZES).parse_args()
    arguments.text, arguments.warm_up = None, 0
    if arguments.side:
        chunk = arguments.chunk if arguments.side == "cached" else None
        log = train(arguments, arguments.side, cache_chunk_size=chunk, packed=False, use_cpu=True)
        print_result({"loss": log[0]["loss"], "peak memory, GiB": peak_memory()})
        return
    with tempfile.TemporaryDirectory() as scratch:
        arguments.folder = Path(scratch)
        prepare(arguments)
        sides = {side: measure_apart(side, arguments.folder) for side in ("cached", "uncached")}
    print(", ".join(f"{name} {getattr(arguments, name)}" for name in _SIZES))
    print(json.dumps(describe_machine()))
    cached, uncached = sides.values()
    print_table(["", *sides], ([name, cached[name], uncached[name]] for name in cached))


if __name__ == "__main__":
    main()
