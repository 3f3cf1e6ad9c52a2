"""The ways to pre-train that `benchmarks.pretraining` compares.

- `paper`: the Condenser as published: blocks padded to the maximum, words masked in a Python loop,
  every position projected to the vocabulary twice, attention written out.
- `plain`: masked language modelling with transformers' BertForMaskedLM and its collator, padded to
  the longest block of the batch, every position projected once, as run_mlm does it.
- `ours`: this package's Condenser: packed, with the last layers only for CLS and masked tokens.
- `trainer`: this package's CondenserTrainer on texts, as the README shows it.
- `pretense`: the Condenser of capemox/pretense with its PretenseTrainer on the same texts, as its
  README shows it.

The first three train in a bare loop on the same blocks, without a learning-rate schedule, gradient
clipping and logging. Their optimiser is torch's AdamW, fused as in the Trainer but for `paper`.
"""

import argparse
import time
from typing import Any

import torch
from datasets import Dataset
from torch.profiler import ProfilerActivity, profile
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
    CondenserForMaskedLM,
    CondenserForPreTraining,
    CondenserTrainer,
    CondenserTrainingArguments,
    packing,
)
from modeling_condenser.files.settings import is_bfloat16_fast

IN_A_LOOP = ("paper", "plain", "ours")
WITH_A_TRAINER = ("trainer", "pretense")
_MATRIX_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
SIDES = [
    f"{side}{precision}"
    for side in (*IN_A_LOOP, *WITH_A_TRAINER)
    for precision in ("", "-bf16", "-float32")
]


class Side:
    """A side of IN_A_LOOP, perhaps with "-bf16" or "-float32" behind its name.

    All start from the same weights. `collate` makes a batch of blocks, and `collate_alike` one with
    the same masks for all sides.
    """

    def __init__(self, name: str, arguments: argparse.Namespace):
        self.kind, _, precision = name.partition("-")
        tokenizer, length = _open_tokenizer(arguments), arguments.max_length
        self.is_bf16 = precision == "bf16"
        if not precision:
            self.is_bf16 = self.kind == "ours" and is_bfloat16_fast()
        is_packed = self.kind == "ours"
        collator: Any = CondenserDataCollator(tokenizer, max_length=length, packed=is_packed)
        self.collate_alike: Any = collator
        self.collate, self.model = collator, _open_condenser(arguments)
        if self.kind == "paper":
            self.collate = LoopCollator(tokenizer, length)
            self.model.set_attn_implementation("eager")
        elif self.kind == "plain":
            self.collate, self.model = _PlainCollator(tokenizer, length), _open_bert(arguments)
        else:
            packing.use_packing(self.model)
        self.model.to(device_of(arguments)).train()

    def compute(self, batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """The whole loss and the late loss."""
        device = self.model.device
        batch = {n: v.to(device) if isinstance(v, torch.Tensor) else v for n, v in batch.items()}
        with torch.autocast(device.type, torch.bfloat16, enabled=self.is_bf16):
            if self.kind == "paper":
                head_loss, late_loss = dense_losses(self.model, batch)
                return head_loss + late_loss, late_loss
            output = self.model(**batch)
        return output.loss, output.loss if self.kind == "plain" else output.late_loss

    @torch.no_grad()
    def first_losses(self, blocks: list[dict[str, Any]]) -> dict[str, float]:
        """The losses of a batch without dropout."""
        self.model.eval()
        loss, late_loss = self.compute(dict(self.collate_alike(blocks)))
        self.model.train()
        return {"loss": loss.item(), "late_loss": late_loss.item()}

    def matrix_share(self, blocks: list[dict[str, Any]]) -> float:
        """The share of matrix products in the CPU time of a step without the optimiser."""
        batch = self.collate(blocks)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            self.compute(batch)[0].backward()
        seconds = {event.key: event.self_cpu_time_total for event in profiler.key_averages()}
        products = sum(seconds.get(name, 0.0) for name in _MATRIX_PRODUCTS)
        return float(products / sum(seconds.values()))

    def train(self, steps: Steps, n_warm_up: int) -> tuple[float, float]:
        """Seconds of collating and of training, each summed over the steps after the warm-up."""
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=self.kind != "paper")
        collating = training = 0.0
        for number, blocks in enumerate(steps):
            started = time.perf_counter()
            batch = self.collate(blocks)
            collated = time.perf_counter()
            self.compute(batch)[0].backward()
            optimizer.step()
            optimizer.zero_grad()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if number >= n_warm_up:
                collating += collated - started
                training += time.perf_counter() - collated
        return collating, training


def device_of(arguments: argparse.Namespace) -> torch.device:
    use_cuda = torch.cuda.is_available() and not arguments.cpu
    return torch.device("cuda" if use_cuda else "cpu")


def _open_tokenizer(arguments: argparse.Namespace) -> Any:
    return AutoTokenizer.from_pretrained(arguments.folder / "encoder")


def _open_condenser(arguments: argparse.Namespace) -> Any:
    set_seed(0)
    return CondenserForPreTraining.from_encoder(str(arguments.folder / "encoder"))


def _open_bert(arguments: argparse.Namespace) -> BertForMaskedLM:
    return as_bert(CondenserForMaskedLM.from_encoder(str(arguments.folder / "encoder")))


class _PlainCollator(DataCollatorForLanguageModeling):
    """The library's collator; run_mlm stores blocks with their special tokens, as lists."""

    def __init__(self, tokenizer: Any, max_length: int):
        super().__init__(tokenizer)
        self.most = max_length - 2

    def __call__(self, examples: list[dict[str, Any]], *args: Any) -> Any:
        ends = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        rows = [example["input_ids"].tolist()[: self.most] for example in examples]
        return super().__call__([{"input_ids": [ends[0], *row, ends[1]]} for row in rows], *args)


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
    tokenizer, length = _open_tokenizer(arguments), arguments.max_length
    blocks = [block["input_ids"] for step in steps for block in step]
    # They tokenize to the same or nearly the same tokens.
    texts = [{"text": text} for text in tokenizer.batch_decode(blocks)]
    settings: dict[str, Any] = {
        "output_dir": str(arguments.folder / name),
        "per_device_train_batch_size": arguments.batch,
        "max_steps": arguments.warm_up + arguments.steps,
        "bf16": precision == "bf16",
        "use_cpu": device_of(arguments).type == "cpu",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
    clock = _Clock(arguments.warm_up)
    shared: dict[str, Any] = {"processing_class": tokenizer, "callbacks": [clock]}
    if kind == "trainer":
        CondenserTrainer(
            _open_condenser(arguments),
            CondenserTrainingArguments(max_length=length, short_block_probability=0.0, **settings),
            train_dataset=Dataset.from_list(texts),
            **shared,
        ).train()
        return clock.seconds
    try:
        import pretense
    except ImportError as error:
        raise SystemExit("The side pretense needs: pip install --no-deps pretense") from error
    set_seed(0)
    method = pretense.MethodConfig(name="condenser")
    pretense.PretenseTrainer(
        model=pretense.create_pretraining_model(method, _open_bert(arguments)),
        args=pretense.PretenseTrainingArguments(**settings),
        train_dataset=texts,
        data_collator=pretense.MLMCollator(tokenizer=tokenizer, max_seq_length=length),
        **shared,
    ).train()
    return clock.seconds
