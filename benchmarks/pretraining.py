"""Speed and memory of pre-training, beside the published way and plain MLM, in one run.

    python -m benchmarks.pretraining                              a small model, minutes on a CPU
    python -m benchmarks.pretraining --bert_base --max_length 512 --batch 16 --steps 3 --repeats 3
    python -m benchmarks.pretraining --text FILE.jsonl            other text: .txt lines, or `text`
    python -m benchmarks.pretraining --without packed --profile   where the time goes without it

All sides (`pretraining_sides`) train on the same blocks of real text, with the same masks, from the
same weights; each in a process of its own, in turns; figures are medians over the turns. Printed:

- tokens a second: real ones, without padding, with CLS and SEP, the same count for all sides, over
  the time of collating and training; and the training alone;
- peak memory of the process (of the device, on one), and the part beyond what lay there before the
  model was opened;
- blocks a second of the collator in between steps, with caches cold; `pretraining_collator` times
  collators alone;
- FLOP utilisation: operations that the side's loss needs (`pretraining_flops` has the formula), by
  the time of training, against a large matrix product of the same precision in the same process.

Before any training the losses of one batch without dropout must agree: the Condenser's of `paper`
and `ours`, and their late loss with BertForMaskedLM's own loss, which is the same thing; to 1e-4 in
float32 and to 2e-2 in bfloat16, whose numbers have three digits. One side alone is not compared.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.pretraining_flops import matmul_peak, needed_flops
from benchmarks.pretraining_profile import profile_steps
from benchmarks.pretraining_sides import (
    SIDES,
    SWITCHES,
    USUAL,
    chosen_switches,
    device_of,
    open_side,
    time_side,
)
from benchmarks.pretraining_text import Batches, prepare, read_result, write_result
from modeling_condenser.runs.run_folder import describe_machine

_TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}
_REFERENCES = ("paper", "ours-float32")  # whose losses the other sides' are compared with
_BERT_BASE = {"layers": 12, "hidden": 768, "vocabulary": 30522}
_SIZES = {
    "layers": (4, "of the encoder"),
    "hidden": (128, "hidden size; heads are 64 wide, feed-forward layers 4 times as wide"),
    "vocabulary": (8000, "embeddings"),
    "max_length": (128, "tokens of the longest block"),
    "batch": (32, "blocks a step"),
    "steps": (8, "that are timed, a turn"),
    "warm_up": (2, "steps before"),
    "repeats": (3, "turns"),
}


def main() -> None:
    """Run the sides in turns and print the table."""
    arguments = _parse()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.side:
        write_result(measure(arguments.side, arguments))
        return
    with tempfile.TemporaryDirectory() as scratch:
        arguments.folder = Path(scratch)
        what = prepare(arguments)
        if arguments.profile:
            print(_profile(arguments))
            return
        runs: dict[str, list[dict[str, Any]]] = {side: [] for side in arguments.sides}
        for turn in range(arguments.repeats):
            for side in runs:
                runs[side].append(_measure_apart(side, arguments.folder))
                print(f"turn {turn + 1}: {side} {runs[side][-1]}", file=sys.stderr, flush=True)
    check_losses(runs)
    print(describe(arguments, what))
    print(table(runs))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, (default, meaning) in _SIZES.items():
        parser.add_argument(
            f"--{name}", type=int, default=default, help=f"{meaning} (default: {default})"
        )
    parser.add_argument("--bert_base", action="store_true", help=f"sizes {_BERT_BASE}")
    parser.add_argument("--text", type=Path, help="(default: the standard library's docstrings)")
    parser.add_argument("--sides", type=_listed(SIDES), default=list(SIDES), help=",".join(SIDES))
    switches = "; ".join(f"{name}: {meaning}" for name, meaning in SWITCHES.items())
    listed = _listed(tuple(SWITCHES))
    parser.add_argument("--without", type=listed, default=[], help=f"of ours: {switches}")
    parser.add_argument(
        "--with",
        dest="switched_on",
        type=listed,
        default=[],
        help=f"the same, to turn on; usually on are {', '.join(USUAL)}",
    )
    parser.add_argument("--threads", type=int, help="of torch (default: its own choice)")
    parser.add_argument("--cpu", action="store_true", help="even where there is an accelerator")
    parser.add_argument("--profile", action="store_true", help="where the time of ours goes")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if len(arguments.sides) > 1 and not set(_REFERENCES) & set(arguments.sides):
        parser.error(f"losses are compared with those of {' or '.join(_REFERENCES)}: add one")
    if arguments.bert_base:
        vars(arguments).update(_BERT_BASE)
    return arguments


def _listed(known: tuple[str, ...]) -> Any:
    def parse(words: str) -> list[str]:
        names = [name for name in words.split(",") if name]
        if unknown := set(names) - set(known):
            raise argparse.ArgumentTypeError(
                f"{', '.join(sorted(unknown))}: known are {', '.join(known)}"
            )
        return names

    return parse


def _measure_apart(side: str, folder: Path) -> dict[str, Any]:
    """Measure a side in a process of its own, by the command line of this one."""
    command = [sys.executable, "-m", "benchmarks.pretraining", *sys.argv[1:]]
    process = subprocess.run(
        [*command, f"--side={side}", f"--folder={folder}"], capture_output=True, text=True
    )
    if process.returncode:
        raise SystemExit(f"{side} ended with {process.returncode}:\n{process.stderr[-3000:]}")
    return read_result(process.stdout)


def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure one side in this process: what the module says, by name."""
    device = device_of(arguments)
    batches = Batches.read(arguments, bag_of_words=name.startswith("bow"))
    memory_before = _peak_memory(device)
    side = open_side(name, arguments, batches)
    losses = side.losses(side.batches[0], device)
    warm_up = arguments.warm_up
    collating, training = time_side(side, batches, device=device, n_warm_up=warm_up)
    memory = _peak_memory(device)
    timed = batches.masked[warm_up:]
    needed = needed_flops(
        timed,
        n_layers=arguments.layers,
        n_head_layers=0 if name.startswith("plain") else side.model.config.n_head_layers,
        hidden=arguments.hidden,
        vocabulary=arguments.vocabulary,
    )
    dtype = side.dtype
    del side
    peak = matmul_peak(device, dtype)
    n_tokens = sum(int(batch["attention_mask"].sum()) for batch in timed)
    return {
        "precision": str(dtype).removeprefix("torch."),
        **losses,
        "tokens/s": n_tokens / (collating + training),
        "tokens/s, training alone": n_tokens / training,
        "collator amid training, blocks/s": len(timed) * arguments.batch / collating,
        "peak memory, GiB": memory,
        "of it for training, GiB": memory - memory_before,
        "needed GFLOP a token": needed / n_tokens / 1e9,
        "matmul peak, GFLOP/s": peak / 1e9,
        "FLOP utilisation": needed / training / peak,
    }


def _peak_memory(device: torch.device) -> float:
    """GiB that this process (or the device for it) has held at most."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    try:
        # Not `ru_maxrss`, which begins with the peak of the process that started this one.
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (2**30 if sys.platform == "darwin" else 2**20)
    [peak] = [int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
    return peak / 2**20


def _profile(arguments: argparse.Namespace) -> str:
    device = device_of(arguments)
    side = open_side("ours", arguments, Batches.read(arguments))
    return profile_steps(side, device, vocabulary=arguments.vocabulary, n_warm_up=arguments.warm_up)


def check_losses(runs: dict[str, list[dict[str, Any]]]) -> None:
    """Check that all sides compute the same losses, each to the precision that it has."""
    reference = next((runs[side][0] for side in _REFERENCES if side in runs), None)
    if reference is None:  # one side alone
        return
    for side, results in runs.items():
        result = results[0]
        tolerance = _TOLERANCE[result["precision"]]
        names = ["late_loss"] if side.startswith("plain") else ["loss", "late_loss"]
        for name in names:
            difference = abs(result[name] - reference[name])
            assert difference < tolerance, f"{side}: {name} differs by {difference}"
        result["differs by"] = max(abs(result[name] - reference[name]) for name in names)


def describe(arguments: argparse.Namespace, what: str) -> str:
    """What was measured, on what."""
    sizes = ", ".join(f"{name} {getattr(arguments, name)}" for name in _SIZES)
    device = device_of(arguments)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    machine = json.dumps({**describe_machine(), "device": where, "load": os.getloadavg()})
    on = ", ".join(name for name in SWITCHES if name in chosen_switches(arguments))
    return f"{what}\n{sizes}\nours: {on}\nthreads: {torch.get_num_threads()}\n{machine}"


def table(runs: dict[str, list[dict[str, Any]]]) -> str:
    """The medians of all sides, with ratios of tokens a second and of memory."""
    names = [name for name in next(iter(runs.values()))[0] if name != "precision"]
    medians = {
        side: {
            name: statistics.median(result[name] for result in results if name in result)
            for name in names
        }
        for side, results in runs.items()
    }
    lines = [f"| | {' | '.join(runs)} |", f"| --- |{' --- |' * len(runs)}"]
    precisions = [results[0]["precision"] for results in runs.values()]
    lines.append(f"| precision | {' | '.join(precisions)} |")
    for name in names:
        values = " | ".join(f"{medians[side][name]:,.4g}" for side in runs)
        lines.append(f"| {name} | {values} |")
    for of in ("tokens/s", "tokens/s, training alone", "peak memory, GiB"):
        for against in (side for side in ("paper", "plain", "paper-bf16") if side in runs):
            ratios = " | ".join(f"{medians[side][of] / medians[against][of]:.2f}" for side in runs)
            lines.append(f"| {of}, times that of {against} | {ratios} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
