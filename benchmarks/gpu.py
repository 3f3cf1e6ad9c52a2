"""Rates of pre-training on one GPU, in under 10 minutes, and the tests that need a GPU.

    python -m benchmarks.gpu OUT.json           from a checkout, with torch and transformers alone
    python -m benchmarks.gpu OUT.json --tiny    all cells with tiny models, on a CPU too

Models have random weights and blocks random tokens: half of the blocks are full, and the others
have an eighth of the longest length to all of it. Steps are in bfloat16, with dropout as published
and a fused AdamW; batches are made beforehand. The sides:

- `condenser`: this package, with a Condenser head of 2 layers, batches of one shape;
- `mlm`: this package, without the head;
- `run_mlm`: transformers' masked LM and collator, padded to the longest block of a batch;
- `pretense`: the Condenser of capemox/pretense, where it is installed.

Tokens a second are those of the blocks, without padding. The share of the peak counts six
operations for each weight of the layers and each token, and those of attention. Each model and
length runs in a process of its own with a time limit, and OUT.json is written after each, so that a
failure loses no other figure. The most important cells run first.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, processors
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerFast,
    set_seed,
)

from modeling_condenser import CondenserConfig, CondenserForMaskedLM, CondenserForPreTraining
from modeling_condenser.packing import use_packing
from modeling_condenser.pretraining.batches import TokenBudgetBatches
from modeling_condenser.pretraining.collator import CondenserDataCollator

_SECONDS = 570  # of the whole script
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_BERT = {"model_type": "bert", "vocab_size": 30522}
_MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}
MODELS: dict[str, dict[str, Any]] = {
    "BERT base": _BERT,
    "ModernBERT base": {"model_type": "modernbert", "vocab_size": 50368, "pad_token_id": 0},
    "MiniLM size": {**_BERT, **_MINILM, "num_attention_heads": 12},
}
_TINY = {"vocab_size": 200, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 24}
_TINY["num_attention_heads"] = 2
# Model, longest block, and the seconds that it may take.
_GROUPS = (
    ("BERT base", 512, 150),
    ("ModernBERT base", 8192, 150),
    ("BERT base", 128, 120),
    ("ModernBERT base", 512, 120),
    ("MiniLM size", 512, 90),
    ("MiniLM size", 128, 90),
    ("ModernBERT base", 128, 90),
)
_CELLS = (
    ("condenser", "eager"),
    ("run_mlm", "eager"),
    ("condenser", "compiled"),
    ("mlm", "eager"),
    ("pretense", "eager"),
    ("run_mlm", "compiled"),
    ("mlm", "compiled"),
)
_PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L40S": 362e12, "B200": 2250e12}
_COLUMNS = ("side", "mode", "tokens/s", "share of peak", "GiB", "first step, s", "error")

Batches = list[tuple[dict[str, Any], int]]
"""Batches on the device, each with its number of tokens."""


def main() -> None:
    """Measure all cells in turn, print them and run the tests."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--group", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.group is not None:
        measure_group(arguments.group, tiny=arguments.tiny)
        return
    started = time.perf_counter()
    report: dict[str, Any] = {"machine": _machine(), "cells": [], "tests": ""}
    for number, (model, length, limit) in enumerate(_GROUPS):
        left = _SECONDS - (time.perf_counter() - started)
        cells = _run_group(number, min(limit, left), tiny=arguments.tiny) if left > 20 else []
        done = {(cell["side"], cell["mode"]) for cell in cells}
        for side, mode in _CELLS:
            if (side, mode) not in done:
                cells.append({"side": side, "mode": mode, "error": "no time or a crash"})
        report["cells"] += [{"model": model, "length": length, **cell} for cell in cells]
        _write(arguments.out, report)
        _print_table(f"{model}, {length} tokens", cells)
        if number == 0:  # early, because what follows rests on them
            report["tests"] = _run_tests()
            print(report["tests"])
    _write(arguments.out, report)


def _machine() -> dict[str, Any]:
    has_cuda = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if has_cuda else "CPU",
        "torch": torch.__version__,
    }


def _write(path: Path, report: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n", "utf-8")


def _run_group(number: int, seconds: float, *, tiny: bool) -> list[dict[str, Any]]:
    """Run a group in a new process, and read the cells that it printed before its time was up."""
    command = [sys.executable, "-m", "benchmarks.gpu", "-", f"--group={number}"]
    try:
        run = subprocess.run(
            command + ["--tiny"] * tiny, stdout=subprocess.PIPE, text=True, timeout=seconds
        )
        printed = run.stdout
    except subprocess.TimeoutExpired as error:
        output: Any = error.stdout or b""
        printed = output.decode() if isinstance(output, bytes) else output
    lines = printed.splitlines()
    return [json.loads(line.removeprefix("CELL ")) for line in lines if line.startswith("CELL ")]


def _print_table(title: str, cells: list[dict[str, Any]]) -> None:
    print(f"\n{title}\n" + " | ".join(_COLUMNS))
    for cell in cells:
        print(" | ".join(str(cell.get(name, "-")) for name in _COLUMNS), flush=True)


def _run_tests() -> str:
    """The last lines of the tests that need a GPU: all, or without `datasets` those of packing."""
    where = ["tests"] if find_spec("datasets") else ["--noconftest", "tests/test_packing.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", *where]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return "the tests took longer than 120 s"
    return (run.stdout + run.stderr)[-3000:]


def measure_group(number: int, *, tiny: bool) -> None:
    """Print the cells of a model and a length as lines of JSON."""
    name, length, _ = _GROUPS[number]
    settings = {**MODELS[name], **(_TINY if tiny else {})}
    length = length // 64 + 16 if tiny else length
    config = AutoConfig.for_model(**settings, max_position_embeddings=length)
    config.pad_token_id = 0
    budget = 4 * length if tiny else 65_536
    for side, mode in _CELLS:
        cell: dict[str, Any] = {"side": side, "mode": mode}
        try:
            cell |= measure(side, mode, config, length, budget, n_steps=2 if tiny else 20)
        except Exception as error:  # one cell must not lose the others
            cell["error"] = f"{type(error).__name__}: {str(error)[:300]}"
        print("CELL " + json.dumps(cell), flush=True)


def measure(
    side: str, mode: str, config: Any, length: int, budget: int, *, n_steps: int
) -> dict[str, Any]:
    """Rate, share of the peak and memory of one side."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    set_seed(0)
    random = np.random.default_rng(0)
    lengths = random.integers(max(length // 8, 8), length + 1, size=12 * budget // length)
    lengths[::2] = length
    batches = TokenBudgetBatches(lengths, budget, seed=0)
    make, collate = open_side(side, config, length, batches)
    on_device: Batches = []
    for chosen in islice(batches, 4):
        blocks = [make_block(random, n, config.vocab_size) for n in lengths[chosen].tolist()]
        batch = {
            name: value.to(device) if isinstance(value, torch.Tensor) else value
            for name, value in collate(blocks).items()
        }
        on_device.append((batch, int(lengths[chosen].sum())))
    model = make().to(device).train()
    # Of layers: all but embeddings and the LM head, which projects few rows.
    layers = [m for m in model.modules() if type(m).__name__.endswith("Layer")]
    weights = sum(p.numel() for layer in layers for p in layer.parameters() if p.dim() == 2)
    if mode == "compiled":
        model.compile(backend="inductor" if device.type == "cuda" else "eager")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()

    def step(batch: dict[str, Any]) -> None:
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    first, seconds, n_tokens = _time(step, on_device, n_steps, device)
    rate = n_tokens / seconds
    # Attention multiplies queries, keys and values: 12 operations with a backward pass.
    n_layers, width = config.num_hidden_layers, config.hidden_size
    window = getattr(config, "local_attention", length)
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * n_layers
    spans = sum(length if kind == "full_attention" else min(length, window) for kind in kinds)
    peak = next((p for n, p in _PEAKS.items() if n in _machine()["device"]), None)
    result = {"tokens/s": round(rate), "first step, s": round(first, 1)}
    if peak:
        n_operations = 6 * weights + 12 * width * spans
        result["share of peak"] = round(rate * n_operations / peak, 3)
    if device.type == "cuda":
        result["GiB"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
    return result


def _time(
    step: Callable[[dict[str, Any]], None], batches: Batches, n_steps: int, device: torch.device
) -> tuple[float, float, int]:
    """Seconds of the first step, and seconds and tokens of at most `n_steps` after a warm-up."""

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    turns = cycle(batches)
    started = now()
    step(next(turns)[0])
    first = now() - started
    for _ in range(len(batches)):  # each shape once, so that none is built while it is timed
        step(next(turns)[0])
    started, n_tokens = now(), 0
    for _ in range(n_steps):
        batch, n = next(turns)
        step(batch)
        n_tokens += n
    return first, now() - started, n_tokens


def make_block(random: np.random.Generator, n_tokens: int, vocab_size: int) -> dict[str, Any]:
    ids = random.integers(len(_SPECIAL), vocab_size, size=n_tokens - 2)
    return {"input_ids": [2, *ids.tolist(), 3]}  # between CLS and SEP


def open_side(
    side: str, config: Any, length: int, batches: TokenBudgetBatches
) -> tuple[Callable[[], Any], Callable[[list], Any]]:
    """A function that makes the model, and one that makes a batch of blocks."""
    tokenizer = _make_tokenizer(config.vocab_size)
    if side in ("condenser", "mlm"):
        model_class = CondenserForPreTraining if side == "condenser" else CondenserForMaskedLM

        def make() -> Any:
            model: Any = model_class(CondenserConfig(encoder_config=config))
            use_packing(model)
            return model

        collator = CondenserDataCollator(tokenizer, max_length=length, packed=True)
        return make, partial(collator, shape=batches.shape(collator.masked_shares))
    plain = DataCollatorForLanguageModeling(tokenizer)
    make = partial(AutoModelForMaskedLM.from_config, config)
    if side == "run_mlm":
        return make, plain
    if config.model_type != "bert":
        raise ValueError("pretense is measured with BERT only")
    import pretense  # type: ignore[import-not-found]

    # Their collator tokenizes texts, and makes the same columns as transformers'.
    method = pretense.MethodConfig(name="condenser")
    return lambda: pretense.create_pretraining_model(method, make()), plain


def _make_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """A WordPiece tokenizer of made-up tokens, a quarter of which continue a word."""
    tokens = [f"##{i}" if i % 4 == 0 else f"w{i}" for i in range(len(_SPECIAL), vocab_size)]
    vocabulary = {token: i for i, token in enumerate([*_SPECIAL, *tokens])}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = ("pad", "unk", "cls", "sep", "mask")
    special = {f"{name}_token": token for name, token in zip(names, _SPECIAL, strict=True)}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


if __name__ == "__main__":
    main()
