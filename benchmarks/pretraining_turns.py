"""A step of pre-training on a CPU beside pretense and run_mlm, in turns in one process.

    OMP_NUM_THREADS=1 python -m benchmarks.pretraining_turns           MiniLM's size
    OMP_NUM_THREADS=1 python -m benchmarks.pretraining_turns --bert_base

The sides are those of `benchmarks.gpu`, in float32, with a fused AdamW, and without collating. They
train on the same random blocks: all of 128 tokens, or of 16 to 128. Figures are medians of the
processor time of this process, so that other work on the machine matters less, and the share that
matrix products have in it. pretense needs `pip install --no-deps pretense`.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoConfig, set_seed

from benchmarks.gpu import MODELS, make_block, open_side
from benchmarks.harness import make_parser, print_table, time_in_turns
from modeling_condenser.pretraining.batches import TokenBudgetBatches

_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")


def main() -> None:
    """Measure the sides and print the table."""
    parser = make_parser(__doc__, blocks=8, longest=128, repeats=5)
    parser.add_argument("--bert_base", action="store_true")
    arguments = parser.parse_args()
    settings = MODELS["BERT base" if arguments.bert_base else "MiniLM size"]
    config = AutoConfig.for_model(**settings)
    sides = ["condenser", "run_mlm", *(["pretense"] if find_spec("pretense") else [])]
    random = np.random.default_rng(0)
    full = np.full(arguments.blocks, arguments.longest)
    short = random.integers(16, arguments.longest + 1, size=arguments.blocks)
    rows = []
    for kind, lengths in (("full", full), ("short", short)):
        blocks = [make_block(random, n, config.vocab_size) for n in lengths.tolist()]
        batches = TokenBudgetBatches(lengths, int(lengths.sum()), seed=0)
        steps = {side: _make_step(side, config, blocks, batches) for side in sides}
        seconds = time_in_turns(steps, repeats=arguments.repeats, clock=time.process_time)
        medians = {side: statistics.median(each) for side, each in seconds.items()}
        for side in sides:
            ratio, rate = medians[side] / medians["condenser"], lengths.sum() / medians[side]
            rows.append([kind, side, f"{rate:.0f}", ratio, _share_of_products(steps[side])])
    names = ["blocks", "side", "tokens a second", "times condenser's time", "matrix products"]
    print_table(names, rows)


def _make_step(
    side: str, config: Any, blocks: list[dict[str, Any]], batches: TokenBudgetBatches
) -> Callable[[], None]:
    set_seed(0)
    make, collate = open_side(side, config, int(batches.lengths.max()), batches)
    model, batch = make().train(), collate(blocks)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return partial(_step, model, batch, torch.optim.AdamW(trained, lr=1e-5, fused=True))


def _step(model: Any, batch: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
    model(**batch).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def _share_of_products(step: Callable[[], None]) -> float:
    """The share of matrix products in the processor time of a step."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        step()
    events = profiled.key_averages()
    products = sum(event.self_cpu_time_total for event in events if event.key in _PRODUCTS)
    return products / sum(event.self_cpu_time_total for event in events)


if __name__ == "__main__":
    main()
