"""Tokens a second of coCondenser in packed batches, beside padded ones.

    python -m benchmarks.contrastive_packing --text FILE.jsonl [--layers 4 --hidden 256]

Whole runs of `pretrain` with the gradient cache and without, in turns, from one encoder of random
weights; figures are of the second half of a run's steps, medians over the turns. The losses of the
first half must agree but for dropout.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from benchmarks.harness import make_parser, print_table
from benchmarks.pretraining_text import prepare
from modeling_condenser.pretraining.pretrain import pretrain
from modeling_condenser.runs.run_folder import describe_machine

_SIZES = {
    **{"layers": 4, "hidden": 256, "vocabulary": 8000, "max_length": 128},
    **{"batch": 32, "chunk": 16, "steps": 8, "repeats": 3},
}


def main() -> None:
    """Run both ways in turns and print the table."""
    parser = make_parser(__doc__ or "", **_SIZES)
    parser.add_argument("--text", type=Path, required=True, help="documents to train on")
    arguments = parser.parse_args()
    ways = {"at once": None, f"cache of {arguments.chunk}": arguments.chunk}
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        arguments.folder, arguments.warm_up = Path(scratch), 0
        prepare(arguments)
        for name, chunk in ways.items():
            packed, padded = _compare(arguments, chunk)
            rows.append([name, packed, padded, packed / padded])
    print(json.dumps(describe_machine()))
    print_table(["tokens a second", "packed", "padded", "ratio"], rows)


def _compare(arguments: argparse.Namespace, chunk: int | None) -> tuple[float, float]:
    rates: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(arguments.repeats):
        losses = []
        for packed in rates:
            loss, rate = _run(arguments, chunk, packed, arguments.folder / f"{chunk}-{turn}")
            losses.append(loss)
            rates[packed].append(rate)
        assert abs(losses[0] - losses[1]) < 0.01 * losses[1], losses
    return statistics.median(rates[True]), statistics.median(rates[False])


def _run(
    arguments: argparse.Namespace, chunk: int | None, packed: bool, folder: Path
) -> tuple[float, float]:
    """The loss of the first half of a run's steps, and the tokens a second of the second."""
    out = folder / str(packed)
    pretrain(
        {
            "encoder": str(arguments.folder / "encoder"),
            "corpus": str(arguments.text),
            "objective": "cocondenser",
            "new_head": True,
            "similarity": "cosine",
            "max_length": arguments.max_length,
            "per_device_train_batch_size": arguments.batch,
            "cache_chunk_size": chunk,
            "max_steps": arguments.steps,
            "logging_steps": arguments.steps // 2,
            "packed": packed,
            "output_dir": str(out),
            "save_strategy": "no",
            "disable_tqdm": True,
        }
    )
    log = [entry for entry in json.loads((out / "log.json").read_text()) if "loss" in entry]
    return log[0]["loss"], log[1]["tokens_per_second"]


if __name__ == "__main__":
    main()
