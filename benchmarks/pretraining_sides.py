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
from modeling_condenser.pretraining.collator import pack

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
class Parts:
    """What differs between the sides that train in a loop.

    Attributes:
        model: to train.
        collate: makes a batch of a step's examples; only timed.
        batches: what steps train on, the same blocks and masks for all sides.
        losses_of: the whole loss and the late loss of model and batch.
    """

    model: Any
    collate: Callable[[list[dict[str, Any]]], Any]
    batches: list[Batch]
    losses_of: Callable[[Any, Batch], tuple[torch.Tensor, torch.Tensor]]


class Side:
    """A side of IN_A_LOOP; all start from the same weights."""

    def __init__(self, name: str, arguments: argparse.Namespace, batches: Batches):
        kind, _, precision = name.partition("-")
        switches = chosen_switches(arguments)
        is_ours = kind in ("ours", "bow")
        is_bf16 = precision == "bf16" or (is_ours and not precision and "bf16" in switches)
        open_parts = {"paper": _open_paper, "plain": _open_plain}.get(kind, _open_ours)
        self.parts = open_parts(arguments, batches)
        self.precision = "bfloat16" if is_bf16 else "float32"
        self.device = device_of(arguments)
        self.model = self.parts.model.to(self.device).train()
        is_fused = "fused" in switches if is_ours else kind == "plain"
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=is_fused)

    def compute(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        moved = {
            name: value.to(self.device) if isinstance(value, torch.Tensor) else value
            for name, value in batch.items()
        }
        is_bf16 = self.precision == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16) if is_bf16 else nullcontext():
            return self.parts.losses_of(self.model, moved)

    @torch.no_grad()
    def losses(self) -> dict[str, float]:
        """The losses of the first batch without dropout and without the bag of words."""
        self.model.eval()
        batch = dict(self.parts.batches[0])
        if "bow_targets" in batch:
            batch["bow_weight"] = 0.0
        loss, late_loss = self.compute(batch)
        self.model.train()
        return {"loss": loss.item(), "late_loss": late_loss.item()}

    def time(self, batches: Batches, n_warm_up: int) -> tuple[float, float]:
        """Seconds of collating and of training, each summed over the steps after the warm-up."""
        collating = training = 0.0
        pairs = zip(batches.examples, self.parts.batches, strict=True)
        for number, (examples, batch) in enumerate(pairs):
            started = time.perf_counter()
            self.parts.collate(examples)
            collated = time.perf_counter()
            self.compute(batch)[0].backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            if number >= n_warm_up:
                collating += collated - started
                training += time.perf_counter() - collated
        return collating, training


def chosen_switches(arguments: argparse.Namespace) -> set[str]:
    """The switches of `ours` that are on."""
    return (set(USUAL) | set(arguments.switched_on)) - set(arguments.without)


def device_of(arguments: argparse.Namespace) -> torch.device:
    use_cuda = torch.cuda.is_available() and not arguments.cpu
    return torch.device("cuda" if use_cuda else "cpu")


def _open_ours(arguments: argparse.Namespace, batches: Batches) -> Parts:
    switches = chosen_switches(arguments)
    set_seed(0)
    model: Any = condenser_from_encoder(str(arguments.folder / "encoder"))
    is_packed = "packed" in switches
    if is_packed:
        packing.use_packing(model, narrow="narrow" in switches)
    if "dropout" in switches:
        use_cheap_dropout(model)
    if "attention" not in switches:
        packing.attention_with_dropout = lambda query, key, value, mask, *, rate, scale: (
            F.scaled_dot_product_attention(query, key, value, mask, dropout_p=rate, scale=scale)
        )
    if "cross_entropy" not in switches:
        losses.cross_entropy = lambda logits, targets: F.cross_entropy(
            logits.float(), targets, reduction="none"
        )
    if "checkpointing" in switches:
        model.gradient_checkpointing_enable()
    if "compile" in switches:
        model.compile()

    def losses_of(model: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        output = model(**batch)
        return output.loss, output.late_loss

    collator = CondenserDataCollator(
        batches.tokenizer,
        max_length=arguments.max_length,
        bag_of_words="bow_targets" in batches.masked[0],
        packed=is_packed,
    )
    pad = batches.tokenizer.pad_token_id
    masked = [pack(b, pad_token_id=pad) if is_packed else b for b in batches.masked]
    return Parts(model, collator, masked, losses_of)


def _open_paper(arguments: argparse.Namespace, batches: Batches) -> Parts:
    set_seed(0)
    model: Any = condenser_from_encoder(str(arguments.folder / "encoder"))
    model.set_attn_implementation("eager")

    def losses_of(model: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        head_loss, late_loss = dense_losses(model, batch)
        return head_loss + late_loss, late_loss

    length = arguments.max_length
    return Parts(model, LoopCollator(batches.tokenizer, length), batches.widened(length), losses_of)


def _open_plain(arguments: argparse.Namespace, batches: Batches) -> Parts:
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

    return Parts(_plain_bert(arguments), collate, batches.widened(None), losses_of)


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
    length = arguments.max_length
    return CondenserTrainer(
        condenser_from_encoder(str(arguments.folder / "encoder")),
        CondenserTrainingArguments(max_length=length, short_block_probability=0.0, **settings),
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
    length = arguments.max_length
    return pretense.PretenseTrainer(
        model=pretense.create_pretraining_model(method, _plain_bert(arguments)),
        args=pretense.PretenseTrainingArguments(**settings),
        train_dataset=batches.texts(),
        data_collator=pretense.MLMCollator(tokenizer=batches.tokenizer, max_seq_length=length),
        processing_class=batches.tokenizer,
    )
