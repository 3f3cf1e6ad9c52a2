"""Passages encoded a second, beside sentence-transformers' own `encode`, on the same model.

    python -m benchmarks.encoding [--layers 4 --hidden 128 --passages 600 --words 55 --pooling cls]

Passages: words of the standard library's docstrings, of lengths as in a real collection, where a
few are ten times as long as the most (log-normal, with a median of `--words`). Both sides run in
turns in one process, with the model in float32 and in bfloat16, and figures are medians; memory is
what encoding takes at most, each side in a process of its own. Their vectors must agree.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from datasets import Dataset

from modeling_condenser.collection.builtin import build_builtin_collection, find_package_roots
from modeling_condenser.encoding.fingerprints import Dtype
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.encoding.token_batches import plan_batches, tokenize_texts
from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.repository.contract import EncodingContract, Pooling
from modeling_condenser.runs.run_folder import describe_machine
from modeling_condenser.study.starting_encoder import make_starting_encoder

OURS, THEIRS = "ours", "sentence-transformers"
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
MOST_DIFFERENCE = 1e-5  # of float32
LEAST_COSINE = 0.99  # of bfloat16 to float32

Side = tuple[str, Dtype]  # whose way to encode, and what the model computes in


def main() -> None:
    """Run both sides in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (
        ("layers", 4),
        ("hidden", 128),
        ("vocabulary", 8000),
        ("max_length", 512),
        ("passages", 600),
        ("words", 55),
        ("repeats", 5),
        ("batch", 32),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"(default: {default})")
    parser.add_argument("--budget", type=int, help="tokens in a batch of ours (default: its own)")
    parser.add_argument("--device", help="(default: an accelerator, where there is one)")
    parser.add_argument(
        "--pooling", choices=get_args(Pooling), default="cls", help="(default: cls)"
    )
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        who, dtype = arguments.side.split(",")
        print(json.dumps(_peak_memory(_sides(arguments, [dtype])[who, dtype])))
        return
    with tempfile.TemporaryDirectory() as scratch:
        arguments.folder = Path(scratch)
        prepare(arguments)
        speeds, agreement = measure(arguments)
        memory = {side: _memory_apart(side, arguments) for side in speeds}
        report(speeds, memory, agreement, arguments)


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
    contract = EncodingContract(length, length, pooling=arguments.pooling, similarity="cosine")
    export_encoder(checkpoint, arguments.folder / "encoder", contract=contract)
    passages = make_passages(" ".join(texts).split(), arguments.passages, median=arguments.words)
    (arguments.folder / "passages.json").write_text(json.dumps(passages))


def make_passages(words: list[str], n_passages: int, *, median: int) -> list[str]:
    """Passages of skewed lengths in words, the same each time."""
    random = np.random.default_rng(0)
    lengths = np.exp(random.normal(np.log(median), 0.8, size=n_passages)).astype(int) + 1
    starts = random.integers(0, len(words) - lengths.max(), size=n_passages)
    pairs = zip(starts, lengths, strict=True)
    return [" ".join(words[start : start + length]) for start, length in pairs]


def _sides(
    arguments: argparse.Namespace, dtypes: Sequence[Dtype] = DTYPES
) -> dict[Side, Callable[[], np.ndarray]]:
    """Both ways to encode the passages, with one and the same model, in each precision."""
    texts = json.loads((arguments.folder / "passages.json").read_text())
    passages = Dataset.from_dict({"title": [""] * len(texts), "text": texts})
    sides: dict[Side, Callable[[], np.ndarray]] = {}
    for dtype in dtypes:
        retriever = Retriever(
            arguments.folder / "encoder",
            device=arguments.device,
            token_budget=arguments.budget,
            dtype=dtype,
        )
        arguments.budget = retriever.token_budget
        sides[OURS, dtype] = partial(retriever.encode_passages, passages)
        sides[THEIRS, dtype] = partial(
            retriever.model.encode, texts, batch_size=arguments.batch, show_progress_bar=False
        )
    return sides


def measure(arguments: argparse.Namespace) -> tuple[dict[Side, list[float]], str]:
    """Passages a second of each side in each turn, and how well their vectors agree."""
    sides = _sides(arguments)
    vectors = {side: encode() for side, encode in sides.items()}  # a turn that does not count
    speeds: dict[Side, list[float]] = {side: [] for side in sides}
    for turn in range(arguments.repeats):
        # Who goes first changes, so that a machine that slows down or warms up is fair to both.
        for side in sorted(sides, reverse=turn % 2 == 1):
            started = time.perf_counter()
            sides[side]()
            speeds[side].append(arguments.passages / (time.perf_counter() - started))
    return speeds, _agreement(vectors)


def _agreement(vectors: dict[Side, np.ndarray]) -> str:
    """How well the unit vectors of all sides agree, checked."""
    ours, theirs = vectors[OURS, "float32"], vectors[THEIRS, "float32"]
    difference = float(np.abs(ours - theirs).max())
    assert difference < MOST_DIFFERENCE, f"the vectors differ by {difference}"
    halves = [vectors[who, "bfloat16"].astype(np.float64) for who in (OURS, THEIRS)]
    cosines = [
        float(((half / np.linalg.norm(half, axis=1, keepdims=True)) * ours).sum(axis=1).min())
        for half in halves
    ]
    assert min(cosines) > LEAST_COSINE, f"the cosines of bfloat16 to float32 are {cosines}"
    return (
        f"vectors agree to {difference:.0e} in float32; least cosines of bfloat16 to it: "
        f"{cosines[0]:.5f} ours, {cosines[1]:.5f} theirs"
    )


def _memory_apart(side: Side, arguments: argparse.Namespace) -> float:
    words = [f"--{name}={value}" for name, value in vars(arguments).items() if value is not None]
    command = [sys.executable, "-m", "benchmarks.encoding", *words, f"--side={','.join(side)}"]
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
    """Which part of our padded batches is padding."""
    texts = json.loads((arguments.folder / "passages.json").read_text())
    tokenizer = Retriever(arguments.folder / "encoder", device="cpu").model.tokenizer
    lengths = tokenize_texts(tokenizer, texts, max_length=arguments.max_length).lengths
    batches = plan_batches(lengths, token_budget=arguments.budget)
    return 1 - lengths.sum() / sum(len(rows) * lengths[rows].max() for rows in batches)


def report(
    speeds: dict[Side, list[float]],
    memory: dict[Side, float],
    agreement: str,
    arguments: argparse.Namespace,
) -> None:
    """Print the medians of both sides and their ratios, at equal precision and across."""
    print(
        f"{arguments.layers} layers of {arguments.hidden}, {arguments.pooling} pooling, max_length "
        f"{arguments.max_length}, {arguments.passages} passages of {arguments.words} words, "
        f"{torch.get_num_threads()} threads; ours in batches of {arguments.budget} tokens, "
        f"{_padding(arguments):.1%} padding in float32 and none in bfloat16, theirs of "
        f"{arguments.batch} texts; medians of {arguments.repeats}; {agreement}"
    )
    print(json.dumps(describe_machine()))
    print(f"| | {OURS} | {THEIRS} | ratio |\n| --- | --- | --- | --- |")
    pairs = [(f"{dtype}", (OURS, dtype), (THEIRS, dtype)) for dtype in DTYPES]
    pairs.append(("ours bfloat16, theirs float32", (OURS, "bfloat16"), (THEIRS, "float32")))
    for name, ours, theirs in pairs:
        _print_row(f"passages/s, {name}", speeds[ours], speeds[theirs])
    for name, ours, theirs in pairs:
        _print_row(f"peak memory (MiB), {name}", [memory[ours]], [memory[theirs]])


def _print_row(name: str, ours: list[float], theirs: list[float]) -> None:
    """Medians, and the median ratio of the turns with its range."""
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    spread = f" ({ratios[0]:.2f} to {ratios[-1]:.2f})" if len(ratios) > 1 else ""
    medians = f"{statistics.median(ours):.4g} | {statistics.median(theirs):.4g}"
    print(f"| {name} | {medians} | {statistics.median(ratios):.2f}{spread} |")


if __name__ == "__main__":
    main()
