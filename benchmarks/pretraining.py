"""Speed and memory of pre-training, beside plain MLM in transformers and pretense.

    python -m benchmarks.pretraining                              a small model, minutes on a CPU
    python -m benchmarks.pretraining --bert_base --max_length 512 --batch 16 --steps 3 --repeats 3
    python -m benchmarks.pretraining --text FILE.jsonl            other text: .txt lines, or `text`
    python -m benchmarks.pretraining --sides trainer,pretense-bf16

The sides, each with its own Trainer, and in bfloat16 with "-bf16" behind the name:

- `trainer`: this package's CondenserTrainer, as the README shows it;
- `run_mlm`: masked language modelling with transformers' Trainer, BertForMaskedLM and collator;
- `pretense`: the Condenser of capemox/pretense with its PretenseTrainer, as its README shows it
  (`pip install --no-deps pretense`).

All start from the same weights and train on the same texts, each in a process of its own, in turns;
figures are medians over the turns. Tokens a second are those of the texts, with CLS and SEP and
without padding, over the time of collating and training. Memory is the peak of the process (or of
the device).
"""

import argparse
import json
import time
from itertools import islice
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoTokenizer,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from benchmarks.harness import (
    make_encoder,
    make_parser,
    measure_sides,
    medians,
    peak_memory,
    print_conditions,
    print_table,
)
from modeling_condenser import (
    CondenserForPreTraining,
    CondenserTrainer,
    CondenserTrainingArguments,
)
from modeling_condenser.pretraining.corpus import load_documents
from modeling_condenser.pretraining.data import BlockBuilder, build_blocks

_TEXTS_FOR_VOCABULARY = 50_000
_BERT_BASE = {"layers": 12, "hidden": 768, "vocabulary": 30522}
_SIZES = {
    **{"layers": 4, "hidden": 128, "vocabulary": 8000, "max_length": 128},
    **{"batch": 32, "steps": 8, "warm_up": 2, "repeats": 3},
}


def main() -> None:
    """Measure the sides in turns and print the table."""
    parser = make_parser(__doc__, **_SIZES)
    parser.add_argument("--bert_base", action="store_true", help=f"sizes {_BERT_BASE}")
    parser.add_argument("--text", default="health", help="(default: the collection health)")
    parser.add_argument("--sides", default="trainer,run_mlm")
    parser.add_argument("--cpu", action="store_true", help="even if there is an accelerator")
    arguments = parser.parse_args()
    if arguments.bert_base:
        vars(arguments).update(_BERT_BASE)
    runs = measure_sides(arguments.sides.split(","), arguments, prepare, measure)
    print_conditions(arguments, _SIZES, device=str(device_of(arguments)))
    figures = {side: medians(results) for side, results in runs.items()}
    first, *others = figures
    rows = [[name, *(side[name] for side in figures.values())] for name in figures[first]]
    for other in others:
        for name in ("tokens/s", "peak memory, GiB"):
            ratios = [side[name] / figures[other][name] for side in figures.values()]
            rows.append([f"{name}, times that of {other}", *ratios])
    print_table(["", *figures], rows)


def device_of(arguments: argparse.Namespace) -> torch.device:
    use_cuda = torch.cuda.is_available() and not arguments.cpu
    return torch.device("cuda" if use_cuda else "cpu")


def prepare(arguments: argparse.Namespace) -> None:
    """Write an encoder with random weights, and real text in blocks; print what they are."""
    folder, length = arguments.folder, arguments.max_length
    documents = load_documents(arguments.text)
    texts = (row["text"] for row in islice(documents, _TEXTS_FOR_VOCABULARY))
    make_encoder(texts, folder / "encoder", arguments, positions=max(length, 128))
    tokenizer: Any = AutoTokenizer.from_pretrained(folder / "encoder")
    blocks = build_blocks(documents, BlockBuilder(tokenizer, max_length=length))
    n_needed = (arguments.warm_up + arguments.steps) * arguments.batch
    if len(blocks) < n_needed:
        raise SystemExit(
            f"The text has {len(blocks)} blocks, but {n_needed} are needed: lower --steps or "
            "--batch, or give more text."
        )
    order = torch.randperm(len(blocks), generator=torch.Generator().manual_seed(0))
    ids = blocks.select(order[:n_needed].tolist())["input_ids"]
    n_tokens = sum(min(len(block) + 2, length) for block in ids)
    # They are tokenized again to the same or nearly the same tokens.
    content = {"texts": tokenizer.batch_decode(list(ids)), "n_tokens": n_tokens}
    (folder / "blocks.json").write_text(json.dumps(content))
    mean = n_tokens / n_needed
    print(f"{arguments.text}: {len(blocks)} blocks of {mean:.0f} tokens on average; random weights")


def measure(side: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Train one side in this process."""
    blocks = json.loads((arguments.folder / "blocks.json").read_text())
    device, clock = device_of(arguments), _Clock(arguments.warm_up)
    memory_before = peak_memory(device)
    trainer = make_trainer(side, arguments, blocks["texts"])
    trainer.add_callback(clock)
    trainer.train()
    n_steps = arguments.warm_up + arguments.steps
    memory = peak_memory(device)
    return {
        "tokens/s": blocks["n_tokens"] * arguments.steps / n_steps / clock.seconds,
        "peak memory, GiB": memory,
        "of it for training, GiB": memory - memory_before,
    }


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


def make_trainer(side: str, arguments: argparse.Namespace, texts: list[str]) -> Trainer:
    """The Trainer of a side, perhaps with "-bf16" behind its name."""
    kind, _, precision = side.partition("-")
    encoder, length = str(arguments.folder / "encoder"), arguments.max_length
    tokenizer: Any = AutoTokenizer.from_pretrained(encoder)
    settings: dict[str, Any] = {
        "output_dir": str(arguments.folder / side),
        "per_device_train_batch_size": arguments.batch,
        "max_steps": arguments.warm_up + arguments.steps,
        "bf16": precision == "bf16",
        "use_cpu": device_of(arguments).type == "cpu",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
    set_seed(0)
    rows: Any = [{"text": text} for text in texts]
    if kind == "trainer":
        return CondenserTrainer(
            CondenserForPreTraining.from_encoder(encoder),
            CondenserTrainingArguments(max_length=length, short_block_probability=0.0, **settings),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
        )
    model = BertForMaskedLM.from_pretrained(encoder)
    if kind == "run_mlm":
        ids = tokenizer(texts, truncation=True, max_length=length)["input_ids"]
        return Trainer(
            model,
            TrainingArguments(**settings),
            train_dataset=Dataset.from_dict({"input_ids": ids}),
            data_collator=DataCollatorForLanguageModeling(tokenizer),
        )
    if kind != "pretense":
        raise SystemExit(f"There is no side {kind!r}, only trainer, run_mlm and pretense.")
    import pretense  # type: ignore[import-not-found]

    method = pretense.MethodConfig(name="condenser")
    return pretense.PretenseTrainer(
        model=pretense.create_pretraining_model(method, model),
        args=pretense.PretenseTrainingArguments(**settings),
        train_dataset=rows,
        data_collator=pretense.MLMCollator(tokenizer=tokenizer, max_seq_length=length),
        processing_class=tokenizer,
    )


if __name__ == "__main__":
    main()
