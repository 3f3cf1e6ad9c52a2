"""Peak memory of a coCondenser step with and without the gradient cache, each in its own process.

    python -m benchmarks.gradient_cache [--spans 2048 --length 48 --layers 4 --hidden 128]

One training step on random tokens, without dropout, in float32 on the CPU. Both sides have the same
weights and batch, and their losses and gradients must agree.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
from transformers import BertConfig, TrainingArguments, set_seed

from benchmarks.harness import (
    make_parser,
    measure_apart,
    peak_memory,
    print_result,
    print_table,
)
from modeling_condenser import CondenserConfig, CondenserForPreTraining
from modeling_condenser.pretraining.contrast import Contrast
from modeling_condenser.pretraining.contrastive_trainer import ContrastiveTrainer
from modeling_condenser.runs.run_folder import describe_machine

_SIDES = ("cached", "uncached")
_SIZES = {
    **{"spans": 2048, "length": 48, "layers": 4, "hidden": 128, "vocabulary": 8000, "chunk": 32}
}


def main() -> None:
    """Run both sides and print the table."""
    arguments = make_parser(__doc__ or "", **_SIZES).parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        arguments.folder = arguments.folder or Path(scratch)
        if arguments.side:
            print_result(measure(arguments))
            return
        cached, uncached = (measure_apart(side, arguments.folder) for side in _SIDES)
    for name in ("loss", "gradient norm"):
        difference = abs(cached[name] / uncached[name] - 1)
        assert difference < 1e-4, f"{name} differs by a share of {difference}"
    print(", ".join(f"{name} {getattr(arguments, name)}" for name in _SIZES))
    print(json.dumps(describe_machine()))
    print_table(["", *_SIDES], ([name, cached[name], uncached[name]] for name in cached))


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    """One step of one side."""
    set_seed(0)
    encoder_config = BertConfig(
        vocab_size=arguments.vocabulary,
        hidden_size=arguments.hidden,
        num_hidden_layers=arguments.layers,
        num_attention_heads=max(arguments.hidden // 64, 1),
        intermediate_size=4 * arguments.hidden,
        max_position_embeddings=max(arguments.length, 128),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = CondenserForPreTraining(CondenserConfig(encoder_config=encoder_config))
    batch = _random_batch(arguments)
    trainer = ContrastiveTrainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(arguments.folder / arguments.side),
            per_device_train_batch_size=arguments.spans // 2,
            dataloader_drop_last=True,
            remove_unused_columns=False,
            report_to="none",
            use_cpu=True,
        ),
        train_dataset=list(range(arguments.spans // 2)),  # the batch is passed to the step instead
        contrast=Contrast("dot"),
        cache_chunk_size=arguments.chunk if arguments.side == "cached" else None,
    )
    before, started = peak_memory(), time.perf_counter()
    loss = trainer.training_step(model, batch, (batch["labels"] != -100).sum())
    seconds = time.perf_counter() - started
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return {
        "loss": loss.item(),
        "gradient norm": torch.cat(gradients).norm().item(),
        "GiB before the step": before,
        "GiB at the peak": peak_memory(),
        "seconds": seconds,
    }


def _random_batch(arguments: argparse.Namespace) -> dict[str, torch.Tensor]:
    shape = (arguments.spans, arguments.length)
    ids = torch.randint(5, arguments.vocabulary, shape)
    labels = ids.where(torch.rand(shape) < 0.15, -100)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


if __name__ == "__main__":
    main()
