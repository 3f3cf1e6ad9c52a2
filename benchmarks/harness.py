"""Shared by the benchmarks: options, measurements in turns, tables, texts and encoders."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, set_seed

from modeling_condenser.encoding.embeddings import Embeddings
from modeling_condenser.files.models import STARTER_FOLDER
from modeling_condenser.files.run_folder import describe_machine


def make_parser(description: str | None, **sizes: int) -> argparse.ArgumentParser:
    """A parser with an integer option for each size."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"(default: {default})")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser


def measure_sides(
    sides: Iterable[str],
    arguments: argparse.Namespace,
    prepare: Callable[[argparse.Namespace], object],
    measure: Callable[[str, argparse.Namespace], Mapping[str, Any]],
) -> dict[str, list[dict]]:
    """Prepare a folder, and measure the sides in turns: results by side.

    Each measurement runs this benchmark in a new process with the options `--side` and `--folder`,
    which ends here.
    """
    if arguments.side:
        print("RESULT " + json.dumps(measure(arguments.side, arguments)), flush=True)
        raise SystemExit
    with tempfile.TemporaryDirectory() as scratch:
        arguments.folder = Path(scratch)
        prepare(arguments)
        return _run_sides(sides, arguments)


def _run_sides(sides: Iterable[str], arguments: argparse.Namespace) -> dict[str, list[dict]]:
    module = sys.modules["__main__"].__spec__.name  # type: ignore[union-attr]
    command = [sys.executable, "-m", module, *sys.argv[1:], f"--folder={arguments.folder}"]
    results: dict[str, list[dict]] = {side: [] for side in sides}
    for turn in range(arguments.repeats):
        for side, found in results.items():
            process = subprocess.run([*command, f"--side={side}"], capture_output=True, text=True)
            if process.returncode:
                raise SystemExit(f"{side}: {process.returncode}\n{process.stderr[-3000:]}")
            found.append(json.loads(process.stdout.rpartition("RESULT ")[2].splitlines()[0]))
            print(f"turn {turn + 1}: {side} {found[-1]}", file=sys.stderr, flush=True)
    return results


def medians(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The median of each figure over several turns, and the first value of each text."""
    return {
        name: first if isinstance(first, str) else statistics.median(r[name] for r in results)
        for name, first in results[0].items()
    }


def time_in_turns(
    sides: Mapping[Any, Callable[[], object]],
    *,
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Any, list[float]]:
    """Seconds of each side's calls in this process, after a warm-up turn.

    The order alternates, so that a machine that slows down affects all sides alike.
    """
    seconds: dict[Any, list[float]] = {side: [] for side in sides}
    for turn in range(repeats + 1):
        for side in list(sides) if turn % 2 else reversed(list(sides)):
            started = clock()
            sides[side]()
            seconds[side] += [clock() - started] if turn else []
    return seconds


def peak_memory(device: torch.device | None = None) -> float:
    """Peak memory of this process (on Linux), or of the accelerator, in GiB."""
    if device is not None and device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    status = Path("/proc/self/status").read_text()  # getrusage begins with the parent's peak
    return int(status.partition("VmHWM:")[2].split()[0]) / 2**20


def print_conditions(arguments: argparse.Namespace, names: Iterable[str], **facts: Any) -> None:
    """Print sizes, machine and further facts."""
    print(", ".join(f"{name} {getattr(arguments, name)}" for name in names))
    facts |= {"threads": torch.get_num_threads(), "load": os.getloadavg()}
    print(json.dumps({**describe_machine(), **facts}))


def print_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a Markdown table, with numbers to four digits."""
    print(f"| {' | '.join(header)} |\n|{' --- |' * len(header)}")
    for row in rows:
        cells = (f"{cell:,.4g}" if isinstance(cell, float) else str(cell) for cell in row)
        print(f"| {' | '.join(cells)} |", flush=True)


def make_encoder(
    texts: Iterable[str], folder: Path, arguments: argparse.Namespace, *, positions: int
) -> Path:
    """A BERT of the wanted size with random weights, and a tokenizer trained on the texts."""
    starter = AutoTokenizer.from_pretrained(STARTER_FOLDER)
    tokenizer = starter.train_new_from_iterator(texts, arguments.vocabulary)
    tokenizer.model_max_length = positions
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=arguments.hidden,
        num_hidden_layers=arguments.layers,
        num_attention_heads=max(arguments.hidden // 64, 1),
        intermediate_size=4 * arguments.hidden,
        max_position_embeddings=positions,
    )
    set_seed(0)
    BertForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_embeddings(
    folder: str | Path,
    vectors: np.ndarray,
    passage_ids: Sequence[str],
    *,
    shard_size: int = 8192,
    retriever_fingerprint: str = "",
) -> Embeddings:
    """Write vectors, (N, D) float32, of N passages with unique ids into a new or empty folder."""
    sizes = {"n_passages": len(vectors), "dimension": vectors.shape[1], "shard_size": shard_size}
    embeddings = Embeddings(folder=Path(folder), retriever=retriever_fingerprint, **sizes)
    embeddings.create(pa.array(passage_ids, type=pa.large_string()))
    for shard, rows in enumerate(embeddings.shards):
        embeddings.write_shard(shard, vectors[rows])
    return embeddings
