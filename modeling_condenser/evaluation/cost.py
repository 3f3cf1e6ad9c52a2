"""Measure the time and memory of one encoding step of any retriever.

A step is a forward pass over 8 texts of 64 random tokens. Each measurement runs in a new process,
so that the memory of the caller does not count.
"""

import json
import os
import subprocess
import sys
import time
import timeit
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil

BATCH_SIZE, LENGTH = 8, 64  # texts, and tokens of each
_WARM_UP_STEPS = 3  # the first steps choose kernels and fill caches
_STEPS, _MEMORY_STEPS = 30, 5


def measure_cost(model: str | Path, *, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Measure time and memory of encoding; `settings` are keyword arguments of `Retriever`.

    Returns:
        `seconds_per_step` (median), `quartiles`, `peak_memory_bytes` and what was measured. The
        peak includes the weights: on a GPU, it is what torch had allocated; on a CPU, the highest
        resident memory during a step minus that before the model was loaded.
    """
    # Not by multiprocessing, which would run the caller's script again.
    process = subprocess.run(
        [sys.executable, "-m", __name__, json.dumps({"model": str(model), **(settings or {})})],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(process.stdout.splitlines()[-1])


def _measure(model: str, **settings: Any) -> dict[str, Any]:
    import torch

    from modeling_condenser.encoding.retriever import Retriever
    from modeling_condenser.files.run_folder import describe_machine

    before = psutil.Process().memory_info().rss  # the libraries are imported, no model is loaded
    retriever = Retriever(model, **settings)
    encoder = retriever.model
    is_cuda = encoder.device.type == "cuda"
    special = encoder.tokenizer.all_special_ids  # RoBERTa gives padding tokens no position
    ordinary = np.setdiff1d(np.arange(len(encoder.tokenizer)), special)
    drawn = np.random.default_rng(0).choice(ordinary, size=(BATCH_SIZE, LENGTH))
    ids = torch.from_numpy(drawn).to(encoder.device)  # (BATCH_SIZE, LENGTH)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if "token_type_ids" in encoder.tokenizer.model_input_names:
        batch["token_type_ids"] = torch.zeros_like(ids)

    @torch.inference_mode()
    def step() -> None:
        encoder({**batch})
        if is_cuda:
            torch.cuda.synchronize()

    for parameter in encoder.parameters():
        parameter.sum()  # weights are mapped from their file, and resident after a read
    timeit.timeit(step, number=_WARM_UP_STEPS)
    seconds = timeit.repeat(step, number=1, repeat=_STEPS)
    if is_cuda:
        torch.cuda.reset_peak_memory_stats()
        step()
        memory = torch.cuda.max_memory_allocated()
    else:
        memory = _peak_resident_bytes(step) - before
    low, median, high = np.quantile(seconds, (0.25, 0.5, 0.75)).tolist()
    if retriever.dtype == "int8":  # torch does not hold these weights
        encoder = Retriever(model, **{**settings, "dtype": "float32"}).model
    cpu = describe_machine()["hardware"]["cpu"]
    return {
        "device": encoder.device.type,
        "hardware": torch.cuda.get_device_name() if is_cuda else cpu,
        "seconds_per_step": median,
        "quartiles": (low, high),
        "peak_memory_bytes": memory,
        "n_parameters": sum(parameter.numel() for parameter in encoder.parameters()),
        "dtype": retriever.dtype,
        "batch_size": BATCH_SIZE,
        "length": LENGTH,
        "n_steps": _STEPS,
        "n_threads": torch.get_num_threads(),
    }


def _peak_resident_bytes(step: Callable[[], None]) -> int:
    """The highest resident memory while a thread runs some steps."""
    process, peak = psutil.Process(), 0
    with ThreadPoolExecutor(1) as pool:
        steps = pool.submit(timeit.timeit, step, number=_MEMORY_STEPS)
        while not steps.done():
            peak = max(peak, process.memory_info().rss)
            time.sleep(0.001)
    steps.result()
    return peak


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_measure(**json.loads(sys.argv[1]))))
