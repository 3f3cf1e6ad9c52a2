"""What the benchmarks share: size options, measurements in processes of their own, tables."""

import argparse
import json
import resource
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from modeling_condenser.collection.builtin import build_builtin_collection, find_package_roots
from modeling_condenser.study.starting_encoder import make_starting_encoder


def make_parser(description: str, **sizes: int) -> argparse.ArgumentParser:
    """A parser with an integer option for each size."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"(default: {default})")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser


def measure_apart(side: str, folder: Path) -> dict[str, float]:
    """Run this benchmark for one side in a new process, which calls `print_result`."""
    module = sys.modules["__main__"].__spec__.name  # type: ignore[union-attr]
    command = [sys.executable, "-m", module, *sys.argv[1:], f"--side={side}", f"--folder={folder}"]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        raise SystemExit(f"{side} ended with {process.returncode}:\n{process.stderr[-3000:]}")
    [line] = [line for line in process.stdout.splitlines() if line.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT "))


def print_result(result: Mapping[str, float]) -> None:
    """Print what `measure_apart` returns."""
    print("RESULT " + json.dumps(result), flush=True)


def peak_memory(device: torch.device | None = None) -> float:
    """GiB that this process, or the accelerator for it, has held at most."""
    if device is not None and device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    status = Path("/proc/self/status")
    if not status.is_file():  # not on Linux, where this begins with the parent process's peak
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (2**30 if sys.platform == "darwin" else 2**20)
    [peak] = [int(s.split()[1]) for s in status.read_text().splitlines() if s.startswith("VmHWM")]
    return peak / 2**20


def medians(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The median of each figure over several turns, and the first of what is no number."""
    return {
        name: first if isinstance(first, str) else statistics.median(r[name] for r in results)
        for name, first in results[0].items()
    }


def print_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a Markdown table, with numbers to four digits."""
    print(f"| {' | '.join(header)} |\n|{' --- |' * len(header)}")
    for row in rows:
        cells = (f"{cell:,.4g}" if isinstance(cell, float) else str(cell) for cell in row)
        print(f"| {' | '.join(cells)} |", flush=True)


def docstrings(folder: Path) -> list[str]:
    """Texts of real lengths: the docstrings of the standard library."""
    root = find_package_roots()["python"]
    collection = build_builtin_collection(folder, roots={"python": root})
    return [json.loads(line)["text"] for line in (collection / "corpus.jsonl").open()]


def make_encoder(
    texts: Iterable[str], folder: Path, arguments: argparse.Namespace, *, positions: int
) -> Path:
    """A BERT of the wanted size with random weights, and a tokenizer trained on the texts."""
    return make_starting_encoder(
        texts,
        folder,
        encoder_config={
            "vocab_size": arguments.vocabulary,
            "hidden_size": arguments.hidden,
            "num_hidden_layers": arguments.layers,
            "num_attention_heads": max(arguments.hidden // 64, 1),
            "intermediate_size": 4 * arguments.hidden,
            "max_position_embeddings": positions,
        },
    )
