"""Peak memory of a coCondenser step with and without the gradient cache, in processes of their own.

    python -m benchmarks.gradient_cache [--spans 2048 --length 48 --layers 4 --hidden 128]

One training step on random tokens, without dropout, in float32 on the CPU: both sides have the same
weights and batch, and their losses and gradients must agree. Resident memory is the process's own
peak, libraries and weights included.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, set_seed

from modeling_condenser import (
    CondenserConfig,
    CondenserForPreTraining,
    CondenserTrainingArguments,
    ContrastiveTrainer,
)
from modeling_condenser.runs.run_folder import describe_machine

CACHED, UNCACHED = "cached", "uncached"
MASKED_SHARE = 0.15


def main() -> None:
    """Run both sides and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (
        ("spans", 2048),
        ("length", 48),
        ("layers", 4),
        ("hidden", 128),
        ("vocabulary", 8000),
        ("chunk", 32),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"(default: {default})")
    parser.add_argument("--side", choices=(CACHED, UNCACHED), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(measure(arguments)))
        return
    report({side: _measure_apart(side, arguments) for side in (CACHED, UNCACHED)}, arguments)


def _measure_apart(side: str, arguments: argparse.Namespace) -> dict[str, float]:
    words = [f"--{name}={value}" for name, value in vars(arguments).items() if value is not None]
    command = [sys.executable, "-m", "benchmarks.gradient_cache", *words, f"--side={side}"]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode != 0:
        raise RuntimeError(f"The {side} side failed: {process.stderr[-2000:]}")
    return json.loads(process.stdout.strip().splitlines()[-1])


class _NoData(Dataset):
    """As many pairs as a batch has; the batch itself is made by hand."""

    def __init__(self, n_pairs: int):
        self.n_pairs = n_pairs

    def __len__(self) -> int:
        return self.n_pairs


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    """One step of one side."""
    set_seed(0)
    model = CondenserForPreTraining(
        CondenserConfig(
            encoder_config=BertConfig(
                vocab_size=arguments.vocabulary,
                hidden_size=arguments.hidden,
                num_hidden_layers=arguments.layers,
                num_attention_heads=max(arguments.hidden // 64, 1),
                intermediate_size=4 * arguments.hidden,
                max_position_embeddings=max(arguments.length, 128),
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            ),
            n_head_layers=2,
        )
    )
    batch = _random_batch(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        trainer = ContrastiveTrainer(
            model=model,
            args=CondenserTrainingArguments(
                output_dir=str(Path(scratch) / "run"),
                objective="cocondenser",
                cache_chunk_size=arguments.chunk if arguments.side == CACHED else None,
                per_device_train_batch_size=arguments.spans // 2,
                use_cpu=True,
            ),
            train_dataset=_NoData(arguments.spans // 2),
        )
        before = _peak_gigabytes()
        started = time.perf_counter()
        loss = trainer.training_step(model, batch, (batch["labels"] != -100).sum())
        seconds = time.perf_counter() - started
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return {
        "loss": loss.item(),
        "gradient_norm": torch.cat(gradients).norm().item(),
        "GB before the step": before,
        "GB at the peak": _peak_gigabytes(),
        "seconds": seconds,
    }


def _random_batch(arguments: argparse.Namespace) -> dict[str, torch.Tensor]:
    shape = (arguments.spans, arguments.length)
    ids = torch.randint(5, arguments.vocabulary, shape)
    masked = torch.rand(shape) < MASKED_SHARE
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": ids.where(masked, torch.tensor(-100)),
    }


def _peak_gigabytes() -> float:
    """Peak resident memory of this process; the system counts in KiB, but macOS in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def report(sides: dict[str, dict[str, float]], arguments: argparse.Namespace) -> None:
    """Print both sides beside each other."""
    cached, uncached = sides[CACHED], sides[UNCACHED]
    for name in ("loss", "gradient_norm"):
        difference = abs(cached[name] / uncached[name] - 1)
        assert difference < 1e-4, f"{name} differs by a share of {difference}"
    print(
        f"{arguments.spans} spans of {arguments.length} tokens, {arguments.layers} layers of "
        f"{arguments.hidden} and a head of 2, vocabulary {arguments.vocabulary}, chunks of "
        f"{arguments.chunk}, float32; losses and gradients agree"
    )
    print(json.dumps(describe_machine()))
    print("| | cached | uncached |\n| --- | --- | --- |")
    for name in cached:
        print(f"| {name} | {cached[name]:.4g} | {uncached[name]:.4g} |")


if __name__ == "__main__":
    main()
