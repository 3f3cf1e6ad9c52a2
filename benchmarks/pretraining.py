"""Speed and memory of pre-training, beside the published way, plain MLM and pretense.

    python -m benchmarks.pretraining                              a small model, minutes on a CPU
    python -m benchmarks.pretraining --bert_base --max_length 512 --batch 16 --steps 3 --repeats 3
    python -m benchmarks.pretraining --text FILE.jsonl            other text: .txt lines, or `text`
    python -m benchmarks.pretraining --sides trainer,pretense     each with its own Trainer

All sides (`pretraining_sides`) train on the same blocks of real text from the same weights, each in
a process of its own, in turns; figures are medians over the turns. Tokens a second count the real
tokens of the blocks, with CLS and SEP and without padding, the same for all sides, over the time of
collating and training. Memory is the peak of the process (or of the device).

Before the sides in a loop train, each with its own masks, their losses of one batch with the same
masks and without dropout must agree: the Condenser's, and the late loss with that of
BertForMaskedLM; to 1e-4 in float32 and to 2e-2 in bfloat16.
"""

import argparse
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
from benchmarks.pretraining_sides import (
    IN_A_LOOP,
    SIDES,
    WITH_A_TRAINER,
    Side,
    device_of,
    time_trainer,
)
from benchmarks.pretraining_text import prepare, read_steps

_TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}
_REFERENCES = ("paper", "ours-float32")  # losses of the other sides are compared with theirs
_BERT_BASE = {"layers": 12, "hidden": 768, "vocabulary": 30522}
_SIZES = {
    **{"layers": 4, "hidden": 128, "vocabulary": 8000, "max_length": 128},
    **{"batch": 32, "steps": 8, "warm_up": 2, "repeats": 3},
}


def main() -> None:
    """Measure the sides in turns and print the table."""
    arguments = _parse()
    runs = measure_sides(arguments.sides, arguments, prepare, measure)
    check_losses(runs)
    device = device_of(arguments)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print_conditions(arguments, _SIZES, device=where)
    figures = {side: medians(results) for side, results in runs.items()}
    names = dict.fromkeys(name for side in figures.values() for name in side)
    rows = [[name, *(side.get(name, "-") for side in figures.values())] for name in names]
    for name in ("tokens/s", "peak memory, GiB"):
        for against in ("paper", "plain", "paper-bf16", "pretense", "pretense-bf16"):
            if against in figures:
                ratios = (side[name] / figures[against][name] for side in figures.values())
                rows.append([f"{name}, times that of {against}", *ratios])
    print_table(["", *figures], rows)


def _parse() -> argparse.Namespace:
    def names(words: str) -> list[str]:
        return [name for name in words.split(",") if name]

    parser = make_parser(__doc__, **_SIZES)
    parser.add_argument("--bert_base", action="store_true", help=f"sizes {_BERT_BASE}")
    parser.add_argument("--text", type=Path, help="(default: the standard library's docstrings)")
    parser.add_argument("--sides", type=names, default=list(IN_A_LOOP), help=",".join(SIDES))
    parser.add_argument("--cpu", action="store_true", help="even if there is an accelerator")
    arguments = parser.parse_args()
    if unknown := {*arguments.sides} - {*SIDES}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    compared = [side for side in arguments.sides if side.partition("-")[0] in IN_A_LOOP]
    if len(compared) > 1 and not set(_REFERENCES) & set(compared):
        parser.error(f"losses are compared with those of {' or '.join(_REFERENCES)}: add one")
    if arguments.bert_base:
        vars(arguments).update(_BERT_BASE)
    return arguments


def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure one side in this process."""
    device, steps = device_of(arguments), read_steps(arguments)
    lengths = [[len(block["input_ids"]) + 2 for block in step] for step in steps]
    n_tokens = [sum(min(n, arguments.max_length) for n in step) for step in lengths]
    n_timed = sum(n_tokens[arguments.warm_up :])
    memory_before = peak_memory(device)
    if name.partition("-")[0] in WITH_A_TRAINER:
        n_timed = sum(n_tokens) * arguments.steps // len(n_tokens)  # the Trainer shuffles
        seconds = time_trainer(name, arguments, steps)
        result: dict[str, Any] = {}
    else:
        side = Side(name, arguments)
        precision = "bfloat16" if side.is_bf16 else "float32"
        result = {"precision": precision, **side.first_losses(steps[0])}
        collating, training = side.train(steps, arguments.warm_up)
        seconds = collating + training
        result["tokens/s, training alone"] = n_timed / training
        if device.type == "cpu":
            result["share of matrix products"] = side.matrix_share(steps[0])
    memory = peak_memory(device)
    return {
        **result,
        "tokens/s": n_timed / seconds,
        "peak memory, GiB": memory,
        "of it for training, GiB": memory - memory_before,
    }


def check_losses(runs: dict[str, list[dict[str, Any]]]) -> None:
    """Check that all sides in a loop compute the same losses, each to its precision."""
    reference = next((runs[side][0] for side in _REFERENCES if side in runs), {})
    for side, (result, *_) in runs.items():
        for name in ("late_loss",) if side.startswith("plain") else ("loss", "late_loss"):
            if name in result and name in reference:
                difference = abs(result[name] - reference[name])
                assert difference < _TOLERANCE[result["precision"]], (side, name, difference)


if __name__ == "__main__":
    main()
