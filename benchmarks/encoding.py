"""Passages encoded a second, beside sentence-transformers' own `encode`, on the same model.

    python -m benchmarks.encoding [--layers 4 --hidden 128 --passages 1000 --batch 32]

Passages: words of the standard library's docstrings, of lengths as in a real collection, where a
few are ten times as long as the most (log-normal with a median of 55 words). Both sides run in
turns in one process, and figures are medians; memory is what encoding takes at most, each side in a
process of its own. Their vectors must agree.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset

from modeling_condenser.collection.builtin import build_builtin_collection, find_package_roots
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.encoding.token_batches import plan_batches, tokenize_texts
from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.repository.contract import EncodingContract
from modeling_condenser.runs.run_folder import describe_machine
from modeling_condenser.study.starting_encoder import make_starting_encoder

OURS, THEIRS = "ours", "sentence-transformers"
MOST_DIFFERENCE = 1e-5


def main() -> None:
    """Run both sides in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (
        ("layers", 4),
        ("hidden", 128),
        ("vocabulary", 8000),
        ("max_length", 512),
        ("passages", 1000),
        ("repeats", 5),
        ("batch", 32),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"(default: {default})")
    parser.add_argument("--budget", type=int, help="tokens in a batch of ours (default: its own)")
    parser.add_argument("--device", help="(default: an accelerator, where there is one)")
    parser.add_argument("--side", choices=(OURS, THEIRS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(_peak_memory(_sides(arguments)[arguments.side])))
        return
    with tempfile.TemporaryDirectory() as scratch:
        arguments.folder = Path(scratch)
        prepare(arguments)
        speeds, difference = measure(arguments)
        memory = {side: _memory_apart(side, arguments) for side in (OURS, THEIRS)}
        report(speeds, memory, difference, arguments)


def prepare(arguments: argparse.Namespace) -> None:
    """Write an encoder of the wanted size, and the passages."""
    root = find_package_roots()["python"]
    collection = build_builtin_collection(arguments.folder / "text", roots={"python": root})
    with (collection / "corpus.jsonl").open() as lines:
        texts = [json.loads(line)["text"] for line in lines]
    checkpoint = make_starting_encoder(
        texts,
        arguments.folder / "checkpoint",
        encoder_config={
            "vocab_size": arguments.vocabulary,
            "hidden_size": arguments.hidden,
            "num_hidden_layers": arguments.layers,
            "num_attention_heads": max(arguments.hidden // 64, 1),
            "intermediate_size": 4 * arguments.hidden,
            "max_position_embeddings": arguments.max_length,
        },
    )
    length = arguments.max_length
    contract = EncodingContract(length, length, pooling="mean", similarity="cosine")
    export_encoder(checkpoint, arguments.folder / "encoder", contract=contract)
    passages = make_passages(" ".join(texts).split(), arguments.passages)
    (arguments.folder / "passages.json").write_text(json.dumps(passages))


def make_passages(words: list[str], n_passages: int) -> list[str]:
    """Passages of skewed lengths, the same each time."""
    random = np.random.default_rng(0)
    lengths = np.exp(random.normal(np.log(55), 0.8, size=n_passages)).astype(int) + 1
    starts = random.integers(0, len(words) - lengths.max(), size=n_passages)
    pairs = zip(starts, lengths, strict=True)
    return [" ".join(words[start : start + length]) for start, length in pairs]


def _sides(arguments: argparse.Namespace) -> dict[str, Callable[[], np.ndarray]]:
    """Both ways to encode the passages, with one and the same model."""
    texts = json.loads((arguments.folder / "passages.json").read_text())
    passages = Dataset.from_dict({"title": [""] * len(texts), "text": texts})
    retriever = Retriever(
        arguments.folder / "encoder", device=arguments.device, token_budget=arguments.budget
    )
    arguments.budget = retriever.token_budget
    return {
        OURS: lambda: retriever.encode_passages(passages),
        THEIRS: lambda: retriever.model.encode(
            texts, batch_size=arguments.batch, show_progress_bar=False
        ),
    }


def measure(arguments: argparse.Namespace) -> tuple[dict[str, list[float]], float]:
    """Passages a second of each side in each turn, and how far their vectors differ."""
    sides = _sides(arguments)
    vectors = {side: encode() for side, encode in sides.items()}  # a turn that does not count
    difference = float(np.abs(vectors[OURS] - vectors[THEIRS]).max())
    assert difference < MOST_DIFFERENCE, f"the vectors differ by {difference}"
    speeds: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(arguments.repeats):
        # Who goes first changes, so that a machine that slows down or warms up is fair to both.
        for side in sorted(sides, reverse=turn % 2 == 1):
            started = time.perf_counter()
            sides[side]()
            speeds[side].append(arguments.passages / (time.perf_counter() - started))
    return speeds, difference


def _memory_apart(side: str, arguments: argparse.Namespace) -> float:
    words = [f"--{name}={value}" for name, value in vars(arguments).items() if value is not None]
    command = [sys.executable, "-m", "benchmarks.encoding", *words, f"--side={side}"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(process.stdout.strip().splitlines()[-1])


def _peak_memory(encode: Callable[[], np.ndarray]) -> float:
    """What encoding takes at most beside what is held before it, in MiB."""
    if torch.cuda.is_available():
        torch.cuda.init()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        encode()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak (Linux, proc(5))
    held = _status("VmRSS")
    encode()
    return (_status("VmHWM") - held) / 2**10


def _status(name: str) -> int:
    """A line of this process's status, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def _padding(arguments: argparse.Namespace) -> float:
    """Which part of our batches is padding."""
    texts = json.loads((arguments.folder / "passages.json").read_text())
    tokenizer = Retriever(arguments.folder / "encoder", device="cpu").model.tokenizer
    lengths = tokenize_texts(tokenizer, texts, max_length=arguments.max_length).lengths
    batches = plan_batches(lengths, token_budget=arguments.budget)
    return 1 - lengths.sum() / sum(len(rows) * lengths[rows].max() for rows in batches)


def report(
    speeds: dict[str, list[float]],
    memory: dict[str, float],
    difference: float,
    arguments: argparse.Namespace,
) -> None:
    """Print the medians of both sides and their ratios."""
    print(
        f"{arguments.layers} layers of {arguments.hidden}, max_length {arguments.max_length}, "
        f"{arguments.passages} passages; ours in batches of {arguments.budget} tokens, of which "
        f"{_padding(arguments):.1%} padding, theirs of {arguments.batch} texts; medians of "
        f"{arguments.repeats}; vectors agree to {difference:.0e}"
    )
    print(json.dumps(describe_machine()))
    print(f"| | {OURS} | {THEIRS} | ratio |\n| --- | --- | --- | --- |")
    rows = {
        "passages/s": {side: statistics.median(runs) for side, runs in speeds.items()},
        "peak memory (MiB)": memory,
    }
    for name, row in rows.items():
        ours, theirs = row[OURS], row[THEIRS]
        print(f"| {name} | {ours:.4g} | {theirs:.4g} | {ours / theirs:.2f} |")
    paired = [ours / theirs for ours, theirs in zip(speeds[OURS], speeds[THEIRS], strict=True)]
    print(f"ratios of the turns: {', '.join(f'{ratio:.2f}' for ratio in sorted(paired))}")


if __name__ == "__main__":
    main()
