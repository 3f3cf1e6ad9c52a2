"""The ways to pre-train that `benchmarks.pretraining` compares.

- `paper`: the Condenser as published: blocks padded to the maximum, words masked in a Python loop,
  every position projected to the vocabulary twice, attention written out.
- `plain`: masked language modelling with transformers' BertForMaskedLM and its collator, padded to
  the longest block of the batch, every position projected once, as run_mlm does it.
- `ours`: this package's Condenser; each of its SWITCHES can be turned off or on.
- `bow`: `ours` with bag-of-words prediction.
- `trainer`: this package's CondenserTrainer on texts, as the README shows it.
- `pretense`: the Condenser of capemox/pretense with its PretenseTrainer on the same texts, as its
  README shows it.

The first four train in a bare loop on the same batches, without a learning-rate schedule, gradient
clipping and logging. Their optimiser is torch's AdamW, for `plain` fused, the Trainer's default.
"""

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from torch.nn import functional as F
from transformers import (
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    TrainerCallback,
    set_seed,
)

from benchmarks.naive_baseline import LoopCollator, dense_losses
from benchmarks.pretraining_text import Batches
from modeling_condenser import (
    CondenserDataCollator,
    CondenserTrainer,
    CondenserTrainingArguments,
    condenser_from_encoder,
    losses,
    masked_lm_from_encoder,
    packing,
)
from modeling_condenser.cpu_kernels import use_cheap_dropout
from modeling_condenser.pretraining.packed_batches import pack

IN_A_LOOP = ("paper", "plain", "ours", "bow")
WITH_A_TRAINER = ("trainer", "pretense")
SIDES = (
    *IN_A_LOOP,
    *("paper-bf16", "plain-bf16", "ours-float32", "bow-float32"),
    *WITH_A_TRAINER,
    *("trainer-bf16", "pretense-bf16"),
)
SWITCHES = {
    "packed": "blocks end to end instead of padded to the longest",
    "narrow": "the last layers only for CLS and masked tokens; needs packed",
    "bf16": "bfloat16 autocast",
    "fused": "AdamW in one kernel",
    "dropout": "the package's dropout of hidden units (CPU)",
    "attention": "the package's dropout of attention weights (CPU); needs packed",
    "cross_entropy": "the package's cross-entropy",
    "compile": "torch.compile",
    "checkpointing": "activations computed again instead of kept",
}
USUAL = ("packed", "narrow", "bf16", "fused", "dropout", "attention", "cross_entropy")

Batch = dict[str, Any]


@dataclass(frozen=True)
class Side:
    """A way to pre-train in a bare loop.

    Attributes:
        model: in training mode, on the device.
        collate: makes a batch of a step's examples; only timed.
        batches: what steps train on, the same blocks and masks for all sides.
        losses_of: the whole loss and the late loss of model and batch.
        dtype: of the matrix products.
        optimizer: of the model's parameters.
    """

    model: Any
    collate: Callable[[list[dict[str, Any]]], Any]
    batches: list[Batch]
    losses_of: Callable[[Any, Batch], tuple[torch.Tensor, torch.Tensor]]
    dtype: torch.dtype
    optimizer: torch.optim.Optimizer

    def compute(self, batch: Batch, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        moved = {
            name: value.to(device) if isinstance(value, torch.Tensor) else value
            for name, value in batch.items()
        }
        is_float = self.dtype == torch.float32
        with nullcontext() if is_float else torch.autocast(device.type, self.dtype):
            return self.losses_of(self.model, moved)

    def step(self, batch: Batch, device: torch.device) -> None:
        self.compute(batch, device)[0].backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.no_grad()
    def losses(self, device: torch.device) -> dict[str, float]:
        """The losses of the first batch without dropout and without the bag of words."""
        self.model.eval()
        batch = self.batches[0]
        loss, late_loss = self.compute(
            {**batch, "bow_weight": 0.0} if "bow_targets" in batch else batch, device
        )
        self.model.train()
        return {"loss": loss.item(), "late_loss": late_loss.item()}


def open_side(name: str, arguments: argparse.Namespace, batches: Batches) -> Side:
    """Build a side of IN_A_LOOP by its name; all start from the same weights."""
    kind, _, precision = name.partition("-")
    switches = chosen_switches(arguments)
    is_ours = kind in ("ours", "bow")
    is_bf16 = precision == "bf16" or (is_ours and not precision and "bf16" in switches)
    if is_ours:
        parts = _open_ours(arguments, batches, switches)
    else:
        parts = (_open_paper if kind == "paper" else _open_plain)(arguments, batches)
    model = parts["model"].to(device_of(arguments)).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    is_fused = "fused" in switches if is_ours else kind == "plain"
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=is_fused)
    dtype = torch.bfloat16 if is_bf16 else torch.float32
    return Side(**{**parts, "model": model}, dtype=dtype, optimizer=optimizer)


def chosen_switches(arguments: argparse.Namespace) -> set[str]:
    """The switches of `ours` that are on."""
    return (set(USUAL) | set(arguments.switched_on)) - set(arguments.without)


def device_of(arguments: argparse.Namespace) -> torch.device:
    use_cuda = torch.cuda.is_available() and not arguments.cpu
    return torch.device("cuda" if use_cuda else "cpu")


def _open_ours(arguments: argparse.Namespace, batches: Batches, switches: set[str]) -> dict:
    set_seed(0)
    model: Any = condenser_from_encoder(str(arguments.folder / "encoder"))
    is_packed = "packed" in switches
    if is_packed:
        packing.use_packing(model, narrow="narrow" in switches)
    if "dropout" in switches:
        use_cheap_dropout(model)
    if "attention" not in switches:
        packing.attention_with_dropout = _library_attention
    if "cross_entropy" not in switches:
        losses.cross_entropy = _library_cross_entropy
    if "checkpointing" in switches:
        model.gradient_checkpointing_enable()
    if "compile" in switches:
        model.compile()
    pad = batches.tokenizer.pad_token_id

    def losses_of(model: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        output = model(**batch)
        return output.loss, output.late_loss

    return {
        "model": model,
        "collate": CondenserDataCollator(
            batches.tokenizer,
            max_length=arguments.max_length,
            bag_of_words="bow_targets" in batches.masked[0],
            packed=is_packed,
        ),
        "batches": [pack(b, pad_token_id=pad) if is_packed else b for b in batches.masked],
        "losses_of": losses_of,
    }


def _library_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Any,
    *,
    rate: float,
    **kw: Any,
) -> torch.Tensor:
    return F.scaled_dot_product_attention(query, key, value, mask, dropout_p=rate, **kw)


def _library_cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.float(), targets, reduction="none")


def _open_paper(arguments: argparse.Namespace, batches: Batches) -> dict:
    set_seed(0)
    model: Any = condenser_from_encoder(str(arguments.folder / "encoder"))
    model.set_attn_implementation("eager")

    def losses_of(model: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        head_loss, late_loss = dense_losses(model, batch)
        return head_loss + late_loss, late_loss

    return {
        "model": model,
        "collate": LoopCollator(batches.tokenizer, arguments.max_length),
        "batches": batches.widened(arguments.max_length),
        "losses_of": losses_of,
    }


def _open_plain(arguments: argparse.Namespace, batches: Batches) -> dict:
    library = DataCollatorForLanguageModeling(batches.tokenizer)
    cls, sep = batches.tokenizer.cls_token_id, batches.tokenizer.sep_token_id
    room = arguments.max_length - 2

    def collate(examples: list[dict[str, Any]]) -> Any:
        # run_mlm stores blocks with their special tokens, as lists.
        rows = [[cls, *example["input_ids"].tolist()[:room], sep] for example in examples]
        return library([{"input_ids": row} for row in rows])

    def losses_of(model: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        loss = model(**batch).loss
        return loss, loss

    return {
        "model": _plain_bert(arguments),
        "collate": collate,
        "batches": batches.widened(None),
        "losses_of": losses_of,
    }


def _plain_bert(arguments: argparse.Namespace) -> BertForMaskedLM:
    """The encoder and its LM head as transformers' own class."""
    ours: Any = masked_lm_from_encoder(str(arguments.folder / "encoder"))
    model = BertForMaskedLM(ours.config.encoder_config)
    model.bert.load_state_dict(ours.condenser.encoder.state_dict(), strict=False)
    model.cls.load_state_dict(ours.lm_head.state_dict())
    model.tie_weights()
    return model


class _Clock(TrainerCallback):
    """Measures the time after the warm-up steps of a Trainer, collating included."""

    def __init__(self, n_warm_up: int):
        self.n_warm_up = n_warm_up
        self.started = self.seconds = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.started = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if state.global_step == self.n_warm_up:
            self.started = time.perf_counter()
        self.seconds = time.perf_counter() - self.started


def time_trainer(name: str, arguments: argparse.Namespace, batches: Batches) -> float:
    """Seconds of a side of WITH_A_TRAINER after the warm-up."""
    kind, _, precision = name.partition("-")
    settings: dict[str, Any] = {
        "output_dir": str(arguments.folder / name),
        "per_device_train_batch_size": arguments.batch,
        "max_steps": arguments.warm_up + arguments.steps,
        "bf16": precision == "bf16",
        "use_cpu": arguments.cpu,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
    make = _make_pretense_trainer if kind == "pretense" else _make_trainer
    trainer = make(arguments, batches, settings)
    clock = _Clock(arguments.warm_up)
    trainer.add_callback(clock)
    trainer.train()
    return clock.seconds


def _make_trainer(arguments: argparse.Namespace, batches: Batches, settings: dict) -> Any:
    set_seed(0)
    model = condenser_from_encoder(str(arguments.folder / "encoder"))
    return CondenserTrainer(
        model,
        CondenserTrainingArguments(
            max_length=arguments.max_length, short_block_probability=0.0, **settings
        ),
        train_dataset=Dataset.from_list(batches.texts()),
        processing_class=batches.tokenizer,
    )


def _make_pretense_trainer(arguments: argparse.Namespace, batches: Batches, settings: dict) -> Any:
    try:
        import pretense
    except ImportError as error:
        raise SystemExit(
            "The side pretense needs the package pretense: pip install --no-deps pretense"
        ) from error
    set_seed(0)
    method = pretense.MethodConfig(name="condenser")
    return pretense.PretenseTrainer(
        model=pretense.create_pretraining_model(method, _plain_bert(arguments)),
        args=pretense.PretenseTrainingArguments(**settings),
        train_dataset=batches.texts(),
        data_collator=pretense.MLMCollator(
            tokenizer=batches.tokenizer, max_seq_length=arguments.max_length
        ),
        processing_class=batches.tokenizer,
    )
