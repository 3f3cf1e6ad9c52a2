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

The first four train in a bare loop on the same blocks, without a learning-rate schedule, gradient
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
    AutoTokenizer,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    TrainerCallback,
    set_seed,
)

from benchmarks.harness import as_bert
from benchmarks.naive_baseline import LoopCollator, dense_losses
from benchmarks.pretraining_text import Steps
from modeling_condenser import (
    CondenserDataCollator,
    CondenserTrainer,
    CondenserTrainingArguments,
    condenser_from_encoder,
    masked_lm_from_encoder,
    packing,
)

IN_A_LOOP = ("paper", "plain", "ours", "bow")
WITH_A_TRAINER = ("trainer", "pretense")
SIDES = [
    f"{side}{precision}"
    for side in (*IN_A_LOOP, *WITH_A_TRAINER)
    for precision in ("", "-bf16", "-float32")
]
SWITCHES = {
    "packed": "blocks end to end instead of padded to the longest",
    "narrow": "the last layers only for CLS and masked tokens; needs packed",
    "bf16": "bfloat16 autocast",
    "fused": "AdamW in one kernel",
    "attention": "the package's dropout of attention weights (CPU); needs packed",
    "compile": "torch.compile",
    "checkpointing": "activations computed again instead of kept",
}
USUAL = ("packed", "narrow", "bf16", "fused", "attention")

Batch = dict[str, Any]


@dataclass
class Side:
    """A side of IN_A_LOOP; all start from the same weights.

    Attributes:
        model: to train.
        collate: makes a batch of blocks.
        collate_alike: the same with masks that are those of all other sides, too.
        losses_of: the whole loss and the late loss of model and batch.
        precision: "float32" or "bfloat16".
        is_fused: whether the optimiser is.
    """

    model: Any
    collate: Callable[[list[dict[str, Any]]], Any]
    collate_alike: Callable[[list[dict[str, Any]]], Any]
    losses_of: Callable[[Any, Batch], tuple[torch.Tensor, torch.Tensor]]
    precision: str = "float32"
    is_fused: bool = False

    def compute(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        device = next(self.model.parameters()).device
        moved = {
            name: value.to(device) if isinstance(value, torch.Tensor) else value
            for name, value in batch.items()
        }
        is_bf16 = self.precision == "bfloat16"
        with torch.autocast(device.type, torch.bfloat16) if is_bf16 else nullcontext():
            return self.losses_of(self.model, moved)


def open_side(name: str, arguments: argparse.Namespace) -> Side:
    """Open a side of IN_A_LOOP, or such a side with "-bf16" or "-float32" behind its name."""
    kind, _, precision = name.partition("-")
    tokenizer = AutoTokenizer.from_pretrained(arguments.folder / "encoder")
    if kind == "paper":
        side = _open_paper(arguments, tokenizer)
    elif kind == "plain":
        side = _open_plain(arguments, tokenizer)
    else:
        side = _open_ours(arguments, tokenizer, bag_of_words=kind == "bow")
    if precision:
        side.precision = {"bf16": "bfloat16"}.get(precision, precision)
    side.model.to(device_of(arguments)).train()
    return side


@torch.no_grad()
def first_losses(side: Side, blocks: list[dict[str, Any]]) -> dict[str, float]:
    """The losses of a batch without dropout and without the bag of words."""
    side.model.eval()
    batch = dict(side.collate_alike(blocks))
    if "bow_targets" in batch:
        batch["bow_weight"] = 0.0
    loss, late_loss = side.compute(batch)
    side.model.train()
    return {"loss": loss.item(), "late_loss": late_loss.item()}


def time_loop(side: Side, steps: Steps, n_warm_up: int) -> tuple[float, float]:
    """Seconds of collating and of training, each summed over the steps after the warm-up."""
    trained = [parameter for parameter in side.model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=side.is_fused)
    collating = training = 0.0
    for number, blocks in enumerate(steps):
        started = time.perf_counter()
        batch = side.collate(blocks)
        collated = time.perf_counter()
        side.compute(batch)[0].backward()
        optimizer.step()
        optimizer.zero_grad()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
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


def _open_condenser(arguments: argparse.Namespace) -> Any:
    set_seed(0)
    return condenser_from_encoder(str(arguments.folder / "encoder"))


def _open_ours(arguments: argparse.Namespace, tokenizer: Any, *, bag_of_words: bool) -> Side:
    switches, model = chosen_switches(arguments), _open_condenser(arguments)
    is_packed = "packed" in switches
    if is_packed:
        packing.use_packing(model, narrow="narrow" in switches)
    if "attention" not in switches:
        packing.attention_with_dropout = lambda query, key, value, mask, *, rate, scale: (
            F.scaled_dot_product_attention(query, key, value, mask, dropout_p=rate, scale=scale)
        )
    if "checkpointing" in switches:
        model.gradient_checkpointing_enable()
    if "compile" in switches:
        model.compile()

    def losses_of(model: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        output = model(**batch)
        return output.loss, output.late_loss

    length = arguments.max_length
    collate = CondenserDataCollator(
        tokenizer, max_length=length, bag_of_words=bag_of_words, packed=is_packed
    )
    precision = "bfloat16" if "bf16" in switches else "float32"
    return Side(model, collate, collate, losses_of, precision, "fused" in switches)


def _open_paper(arguments: argparse.Namespace, tokenizer: Any) -> Side:
    model = _open_condenser(arguments)
    model.set_attn_implementation("eager")

    def losses_of(model: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        head_loss, late_loss = dense_losses(model, batch)
        return head_loss + late_loss, late_loss

    alike = CondenserDataCollator(tokenizer, max_length=arguments.max_length)
    return Side(model, LoopCollator(tokenizer, arguments.max_length), alike, losses_of)


def _open_plain(arguments: argparse.Namespace, tokenizer: Any) -> Side:
    library, length = DataCollatorForLanguageModeling(tokenizer), arguments.max_length
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id

    def collate(examples: list[dict[str, Any]]) -> Any:
        # run_mlm stores blocks with their special tokens, as lists.
        rows = [[cls, *example["input_ids"].tolist()[: length - 2], sep] for example in examples]
        return library([{"input_ids": row} for row in rows])

    def losses_of(model: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        loss = model(**batch).loss
        return loss, loss

    model, alike = _open_plain_bert(arguments), CondenserDataCollator(tokenizer, max_length=length)
    return Side(model, collate, alike, losses_of, is_fused=True)


def _open_plain_bert(arguments: argparse.Namespace) -> BertForMaskedLM:
    return as_bert(masked_lm_from_encoder(str(arguments.folder / "encoder")))


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


def time_trainer(name: str, arguments: argparse.Namespace, steps: Steps) -> float:
    """Seconds of a side of WITH_A_TRAINER after the warm-up."""
    kind, _, precision = name.partition("-")
    tokenizer = AutoTokenizer.from_pretrained(arguments.folder / "encoder")
    blocks = [block["input_ids"] for step in steps for block in step]
    # They tokenize to the same or nearly the same tokens.
    texts = [{"text": text} for text in tokenizer.batch_decode(blocks)]
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
    trainer, clock = make(arguments, tokenizer, texts, settings), _Clock(arguments.warm_up)
    trainer.add_callback(clock)
    trainer.train()
    return clock.seconds


def _make_trainer(
    arguments: argparse.Namespace, tokenizer: Any, texts: list[dict], settings: dict
) -> Any:
    length = arguments.max_length
    return CondenserTrainer(
        _open_condenser(arguments),
        CondenserTrainingArguments(max_length=length, short_block_probability=0.0, **settings),
        train_dataset=Dataset.from_list(texts),
        processing_class=tokenizer,
    )


def _make_pretense_trainer(
    arguments: argparse.Namespace, tokenizer: Any, texts: list[dict], settings: dict
) -> Any:
    try:
        import pretense
    except ImportError as error:
        raise SystemExit("The side pretense needs: pip install --no-deps pretense") from error
    set_seed(0)
    method, length = pretense.MethodConfig(name="condenser"), arguments.max_length
    return pretense.PretenseTrainer(
        model=pretense.create_pretraining_model(method, _open_plain_bert(arguments)),
        args=pretense.PretenseTrainingArguments(**settings),
        train_dataset=texts,
        data_collator=pretense.MLMCollator(tokenizer=tokenizer, max_seq_length=length),
        processing_class=tokenizer,
    )
