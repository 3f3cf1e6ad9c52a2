"""Speed and memory of pre-training, beside the dense way, in one run, as ratios.

    python -m benchmarks.pretraining [--layers 4 --hidden 128 --max_length 128 --batch 32]

Text: docstrings of the standard library, so that blocks have the lengths of real text. Each side
runs in a process of its own, in turns, so that peak memory is its own; figures are medians. Both
sides start from the same weights, and their losses on one batch must agree.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, set_seed

from benchmarks.naive_baseline import LoopCollator, dense_loss
from modeling_condenser import CondenserDataCollator, CondenserForPreTraining
from modeling_condenser.collection.builtin import build_builtin_collection, find_package_roots
from modeling_condenser.pretraining.blocks import BlockBuilder, KeyedBlocks, build_blocks
from modeling_condenser.pretraining.corpus import Source, load_documents
from modeling_condenser.runs.run_folder import describe_machine
from modeling_condenser.study.starting_encoder import make_starting_encoder

OURS, DENSE = "ours", "dense"


def main() -> None:
    """Run both sides in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (
        ("layers", 4),
        ("hidden", 128),
        ("vocabulary", 8000),
        ("max_length", 128),
        ("batch", 32),
        ("steps", 20),
        ("repeats", 3),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"(default: {default})")
    parser.add_argument("--side", choices=(OURS, DENSE), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(measure(arguments.side, arguments)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        arguments.folder = Path(scratch)
        prepare(arguments)
        runs: dict[str, list[dict[str, float]]] = {OURS: [], DENSE: []}
        for _ in range(arguments.repeats):
            for side in (OURS, DENSE):
                runs[side].append(_measure_apart(side, arguments))
    report(runs, arguments)


def prepare(arguments: argparse.Namespace) -> None:
    """Write the text, and an encoder of the wanted size."""
    root = find_package_roots()["python"]
    collection = build_builtin_collection(arguments.folder / "text", roots={"python": root})
    with (collection / "corpus.jsonl").open() as lines:
        make_starting_encoder(
            (json.loads(line)["text"] for line in lines),
            arguments.folder / "encoder",
            encoder_config={
                "vocab_size": arguments.vocabulary,
                "hidden_size": arguments.hidden,
                "num_hidden_layers": arguments.layers,
                "num_attention_heads": max(arguments.hidden // 64, 1),
                "intermediate_size": 4 * arguments.hidden,
                "max_position_embeddings": max(arguments.max_length, 128),
            },
        )


def _measure_apart(side: str, arguments: argparse.Namespace) -> dict[str, float]:
    words = [f"--{name}={value}" for name, value in vars(arguments).items() if value is not None]
    command = [sys.executable, "-m", "benchmarks.pretraining", *words, f"--side={side}"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(process.stdout.strip().splitlines()[-1])


def measure(side: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Measure one side in this process.

    Returns:
        Collator examples a second, training steps and tokens of text a second, peak memory in
        GiB, and the loss on a fixed batch without dropout.
    """
    tokenizer = AutoTokenizer.from_pretrained(arguments.folder / "encoder")
    builder = BlockBuilder(tokenizer, max_length=arguments.max_length)
    documents = load_documents([Source(str(arguments.folder / "text" / "corpus.jsonl"))])
    blocks = KeyedBlocks(build_blocks(documents, builder), seed=0)
    set_seed(0)
    model = CondenserForPreTraining.from_encoder(str(arguments.folder / "encoder"))
    ours = CondenserDataCollator(tokenizer, max_length=arguments.max_length)
    loop = LoopCollator(tokenizer, arguments.max_length)
    collator: Any = ours if side == OURS else loop

    fixed = ours(blocks.__getitems__(list(range(arguments.batch))))
    with torch.no_grad():
        model.eval()
        loss = model(**fixed).loss if side == OURS else dense_loss(model, fixed)
    order = torch.randperm(len(blocks), generator=torch.Generator().manual_seed(0)).tolist()
    batches = [
        blocks.__getitems__(order[i : i + arguments.batch])
        for i in range(0, arguments.steps * arguments.batch, arguments.batch)
    ]
    return {
        "collator examples/s": _time_collator(collator, batches),
        **_time_training(model.train(), side, [collator(batch) for batch in batches]),
        "peak memory (GiB)": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "loss": loss.item(),
    }


def _time_collator(collator: Any, batches: list[Any]) -> float:
    collator(batches[0])
    started = time.perf_counter()
    for batch in batches:
        collator(batch)
    return sum(map(len, batches)) / (time.perf_counter() - started)


def _time_training(
    model: CondenserForPreTraining, side: str, batches: list[dict[str, torch.Tensor]]
) -> dict[str, float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(batch: dict[str, torch.Tensor]) -> None:
        (model(**batch).loss if side == OURS else dense_loss(model, batch)).backward()
        optimizer.step()
        optimizer.zero_grad()

    for batch in batches[:2]:
        step(batch)
    started = time.perf_counter()
    for batch in batches[2:]:
        step(batch)
    seconds = time.perf_counter() - started
    tokens = sum(int(batch["attention_mask"].sum()) for batch in batches[2:])
    return {"steps/s": (len(batches) - 2) / seconds, "tokens/s": tokens / seconds}


def report(runs: dict[str, list[dict[str, float]]], arguments: argparse.Namespace) -> None:
    """Print the medians of both sides and their ratios."""
    difference = abs(runs[OURS][0]["loss"] - runs[DENSE][0]["loss"])
    assert difference < 1e-4, f"the losses differ by {difference}"
    print(
        f"{arguments.layers} layers of {arguments.hidden}, vocabulary {arguments.vocabulary}, "
        f"max_length {arguments.max_length}, batch {arguments.batch}, float32; medians of "
        f"{arguments.repeats}; losses agree to {difference:.0e}"
    )
    print(json.dumps(describe_machine()))
    print("| | ours | dense | ratio |\n| --- | --- | --- | --- |")
    for name in runs[OURS][0]:
        if name == "loss":
            continue
        ours, dense = (statistics.median(run[name] for run in runs[side]) for side in (OURS, DENSE))
        print(f"| {name} | {ours:.4g} | {dense:.4g} | {ours / dense:.2f} |")


if __name__ == "__main__":
    main()
