"""Tokens a second of coCondenser in packed batches, beside padded ones.

    python -m benchmarks.contrastive_packing --text FILE.jsonl [--layers 4 --hidden 256]

Whole runs of `pretrain` with the gradient cache and without, in turns, from one encoder of random
weights; figures are of the second half of a run's steps, medians over the turns. The losses of the
first half must agree but for dropout.
"""

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

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
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        arguments.folder, arguments.warm_up = Path(scratch), 0
        prepare(arguments)
        for chunk in (None, arguments.chunk):
            runs: dict[bool, list[list[dict[str, float]]]] = {True: [], False: []}
            for turn in range(arguments.repeats):
                for packed, logs in runs.items():
                    name = f"{chunk}-{packed}-{turn}"
                    logs.append(train(arguments, name, cache_chunk_size=chunk, packed=packed))
            losses = [logs[0][0]["loss"] for logs in runs.values()]
            assert abs(losses[0] - losses[1]) < 0.05 * losses[1], losses
            packed, padded = (
                statistics.median(log[1]["tokens_per_second"] for log in logs)
                for logs in runs.values()
            )
            name = f"cache of {chunk}" if chunk else "at once"
            rows.append([name, packed, padded, packed / padded])
    print(json.dumps(describe_machine()))
    print_table(["tokens a second", "packed", "padded", "ratio"], rows)


def train(arguments: Any, name: str, **settings: Any) -> list[dict[str, float]]:
    """Train a coCondenser on the text; the two entries of its log."""
    out = arguments.folder / name
    text = arguments.text or arguments.folder / "text" / "corpus.jsonl"
    pretrain(
        {
            "encoder": str(arguments.folder / "encoder"),
            "corpus": str(text),
            "objective": "cocondenser",
            "new_head": True,
            "similarity": "cosine",
            "max_length": arguments.max_length,
            "per_device_train_batch_size": arguments.batch,
            "max_steps": arguments.steps,
            "logging_steps": arguments.steps // 2,
            "output_dir": str(out),
            "save_strategy": "no",
            "disable_tqdm": True,
            **settings,
        }
    )
    log = json.loads((out / "log.json").read_text())
    return [entry for entry in log if "loss" in entry]


if __name__ == "__main__":
    main()
