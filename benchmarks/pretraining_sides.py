"""The ways to pre-train that `benchmarks.pretraining` compares, each as model, collator and step.

- `paper`: the Condenser as published: blocks padded to the maximum, words masked in a Python loop,
  every position projected to the vocabulary twice, attention written out.
- `plain`: masked language modelling with transformers' BertForMaskedLM and its collator, padded to
  the longest block of the batch, every position projected once, as run_mlm does it.
- `ours`: this package's Condenser; each of its SWITCHES can be turned off or on.
- `bow`: `ours` with bag-of-words prediction.

The optimiser is torch's AdamW, for `paper` as it comes, for `plain` fused, as the Trainer has it by
default. A learning-rate schedule, gradient clipping and logging are left out of all.
"""

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from transformers import BertForMaskedLM, DataCollatorForLanguageModeling, set_seed

from benchmarks.naive_baseline import LoopCollator, dense_losses
from benchmarks.pretraining_flops import synchronize
from benchmarks.pretraining_text import Batches
from modeling_condenser import CondenserDataCollator, condenser_from_encoder, masked_lm_from_encoder
from modeling_condenser.dropout import use_cheap_dropout
from modeling_condenser.packing import use_packing
from modeling_condenser.pretraining.packed_batches import pack

SIDES = (
    *("paper", "plain", "ours", "bow"),
    *("paper-bf16", "plain-bf16", "ours-float32", "bow-float32"),
)
SWITCHES = {
    "packed": "blocks end to end instead of padded to the longest",
    "narrow": "the last layers for CLS and masked tokens alone; needs packed",
    "bf16": "bfloat16 where that is exact enough (autocast)",
    "fused": "AdamW in one kernel",
    "dropout": "hidden units dropped by 16 random bits each (on a CPU)",
    "compile": "torch.compile",
    "checkpointing": "activations computed again instead of kept",
}
USUAL = ("packed", "narrow", "bf16", "fused", "dropout")

Batch = dict[str, Any]
LossOf = Callable[[Any, Batch], torch.Tensor]


@dataclass(frozen=True)
class Side:
    """One way to pre-train.

    Attributes:
        model: in training mode, on the device.
        collate: makes a batch of a step's examples; only timed.
        batches: what steps train on: the same blocks and masks for all sides.
        loss_of: the loss of model and batch.
        late_loss: of model and batch, the part of the loss that plain MLM has too.
        dtype: of the matrix products.
        optimizer: of the model's parameters.
    """

    model: Any
    collate: Callable[[list[dict[str, Any]]], Any]
    batches: list[Batch]
    loss_of: LossOf
    late_loss: LossOf
    dtype: torch.dtype
    optimizer: torch.optim.Optimizer

    def autocast(self, device: torch.device) -> Any:
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(device.type, self.dtype)

    def step(self, batch: Batch, device: torch.device) -> None:
        """One optimiser step."""
        with self.autocast(device):
            loss = self.loss_of(self.model, _move(batch, device))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.no_grad()
    def losses(self, batch: Batch, device: torch.device) -> dict[str, float]:
        """The losses of a batch without dropout, before training; without the bag of words'."""
        self.model.eval()
        batch = _move(batch, device)
        if "bow_targets" in batch:
            batch["bow_weight"] = 0.0
        with self.autocast(device):
            measured = {
                "loss": self.loss_of(self.model, batch).item(),
                "late_loss": self.late_loss(self.model, batch).item(),
            }
        self.model.train()
        return measured


def open_side(name: str, arguments: argparse.Namespace, batches: Batches) -> Side:
    """Build a side by its name, one of SIDES; all start from the same weights."""
    kind, _, precision = name.partition("-")
    switches = chosen_switches(arguments)
    dtype = torch.float32
    is_ours = kind in ("ours", "bow")
    if precision == "bf16" or (is_ours and not precision and "bf16" in switches):
        dtype = torch.bfloat16
    is_fused = "fused" in switches if is_ours else kind == "plain"
    if is_ours:
        parts = _open_ours(arguments, batches, switches)
    else:
        parts = (_open_paper if kind == "paper" else _open_plain)(arguments, batches)
    model = parts["model"].to(device_of(arguments)).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=is_fused)
    return Side(**{**parts, "model": model}, dtype=dtype, optimizer=optimizer)


def chosen_switches(arguments: argparse.Namespace) -> set[str]:
    """The switches of `ours` that are on."""
    return (set(USUAL) | set(arguments.switched_on)) - set(arguments.without)


def device_of(arguments: argparse.Namespace) -> torch.device:
    """The accelerator if there is one, unless the processor is asked for."""
    use_cuda = torch.cuda.is_available() and not arguments.cpu
    return torch.device("cuda" if use_cuda else "cpu")


def _open_ours(arguments: argparse.Namespace, batches: Batches, switches: set[str]) -> dict:
    set_seed(0)
    model: Any = condenser_from_encoder(str(arguments.folder / "encoder"))
    is_packed = "packed" in switches
    if is_packed:
        use_packing(model, narrow="narrow" in switches)
    if "dropout" in switches:
        use_cheap_dropout(model)
    if "checkpointing" in switches:
        model.gradient_checkpointing_enable()
    if "compile" in switches:
        model.compile()
    pad = batches.tokenizer.pad_token_id
    return {
        "model": model,
        "collate": CondenserDataCollator(
            batches.tokenizer,
            max_length=arguments.max_length,
            bag_of_words="bow_targets" in batches.masked[0],
            packed=is_packed,
        ),
        "batches": [pack(b, pad_token_id=pad) if is_packed else b for b in batches.masked],
        "loss_of": lambda model, batch: model(**batch).loss,
        "late_loss": lambda model, batch: model(**batch).late_loss,
    }


def _open_paper(arguments: argparse.Namespace, batches: Batches) -> dict:
    set_seed(0)
    model: Any = condenser_from_encoder(str(arguments.folder / "encoder"))
    model.set_attn_implementation("eager")
    return {
        "model": model,
        "collate": LoopCollator(batches.tokenizer, arguments.max_length),
        "batches": batches.widened(arguments.max_length),
        "loss_of": lambda model, batch: sum(dense_losses(model, batch)),
        "late_loss": lambda model, batch: dense_losses(model, batch)[1],
    }


def _open_plain(arguments: argparse.Namespace, batches: Batches) -> dict:
    ours: Any = masked_lm_from_encoder(str(arguments.folder / "encoder"))
    model = BertForMaskedLM(ours.config.encoder_config)
    model.bert.load_state_dict(ours.condenser.encoder.state_dict(), strict=False)
    model.cls.load_state_dict(ours.lm_head.state_dict())
    model.tie_weights()
    library = DataCollatorForLanguageModeling(batches.tokenizer)
    cls, sep = batches.tokenizer.cls_token_id, batches.tokenizer.sep_token_id
    room = arguments.max_length - 2

    def collate(examples: list[dict[str, Any]]) -> Any:
        # run_mlm stores blocks with their special tokens, as lists.
        return library(
            [{"input_ids": [cls, *e["input_ids"].tolist()[:room], sep]} for e in examples]
        )

    return {
        "model": model,
        "collate": collate,
        "batches": batches.widened(None),
        "loss_of": lambda model, batch: model(**batch).loss,
        "late_loss": lambda model, batch: model(**batch).loss,
    }


def _move(batch: Batch, device: torch.device) -> Batch:
    return {
        name: value.to(device) if isinstance(value, torch.Tensor) else value
        for name, value in batch.items()
    }


def time_side(
    side: Side, batches: Batches, *, device: torch.device, n_warm_up: int
) -> tuple[float, float]:
    """Seconds of collating and of training, each summed over the steps after the warm-up."""
    collating = training = 0.0
    for number, (examples, batch) in enumerate(zip(batches.examples, side.batches, strict=True)):
        started = time.perf_counter()
        side.collate(examples)
        collated = time.perf_counter()
        side.step(batch, device)
        synchronize(device)
        if number >= n_warm_up:
            collating += collated - started
            training += time.perf_counter() - collated
    return collating, training
