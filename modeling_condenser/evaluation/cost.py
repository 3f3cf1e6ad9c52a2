"""What it costs to encode: time and memory of one step, for any retriever.

In: a retriever. Out: an `EncodingCost`, as the thesis shows it for each model on a CPU and a GPU
(section 4.4.1, Figure 4.2): one step is a forward pass over 8 texts of 64 tokens. The texts are
random tokens, all of the full length, so that every model has as much to do.

Each measurement runs in a fresh process. What the caller holds would count otherwise, and a freed
allocation that a library keeps for itself would hide what the step needs.
"""

import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from modeling_condenser.repository.contract import Pooling
from modeling_condenser.runs.child_process import call_apart

if TYPE_CHECKING:
    from modeling_condenser.encoding.retriever import Retriever

Device = Literal["cpu", "cuda"]

N_STEPS = 30
_WARM_UP_STEPS = 3  # the first steps choose kernels and fill caches
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class EncodingCost:
    """Time and memory of one step.

    Attributes:
        device: "cpu" or "cuda".
        hardware: the name of the CPU or GPU.
        seconds_per_step: the median over the steps.
        quartiles: of the seconds, the lower and the upper.
        peak_memory_bytes: the most that weights and step took at once. On a GPU, what torch had
            allocated (`torch.cuda.max_memory_allocated`), without the CUDA context. On a CPU, the
            peak resident memory of the process during the steps, all weights read, less what it
            held after its imports and before it loaded the model. None where the system does not
            tell (no /proc).
        process_memory_bytes: on a CPU, the same peak with the interpreter and the libraries, as
            transformers' benchmark gives it, by which the thesis measured; None on a GPU.
        n_parameters: of the encoder.
        dtype: of its weights.
        batch_size: texts in a step.
        length: tokens in a text, special ones included.
        n_steps: steps that were timed.
        n_threads: of torch, on a CPU.
    """

    device: Device
    hardware: str
    seconds_per_step: float
    quartiles: tuple[float, float]
    peak_memory_bytes: int | None
    process_memory_bytes: int | None
    n_parameters: int
    dtype: str
    batch_size: int
    length: int
    n_steps: int
    n_threads: int

    @property
    def texts_per_second(self) -> float:
        """Texts of `length` tokens that the median step encodes in a second."""
        return self.batch_size / self.seconds_per_step


def measure_cost(
    retriever: "Retriever | str | Path",
    *,
    settings: Mapping[str, Any] | None = None,
    batch_size: int = 8,
    length: int = 64,
    n_steps: int = N_STEPS,
    device: Device | None = None,
) -> EncodingCost:
    """Measure time and memory of encoding, in a fresh process that takes some seconds to start.

    Args:
        retriever: a `Retriever`, which the process opens again from its folder and with its
            contract, or the folder or Hub name of one.
        settings: keyword arguments of `Retriever` beside the name, such as the pooling.
        batch_size: texts in a step.
        length: tokens in a text; as long as the encoder allows, at most.
        n_steps: steps to time, after a few that are not.
        device: where to encode; by default a GPU if there is one.

    Returns:
        The cost. Timings belong to this machine, its load and these versions.

    Raises:
        ValueError: a size below 1, a text longer than the encoder takes, or a missing device.
        FileNotFoundError: there is no such model.
        RuntimeError: the process failed otherwise; the message ends with its error.
    """
    for name, value in (("batch_size", batch_size), ("length", length), ("n_steps", n_steps)):
        if value < 1:
            raise ValueError(f"{name} is {value}, expected at least 1")
    chosen = _choose_device(device)
    model, stated = _spell_out(retriever)
    request = {
        "model": model,
        "settings": {**stated, **(settings or {})},
        "batch_size": batch_size,
        "length": length,
        "n_steps": n_steps,
        "device": chosen,
    }
    answer = call_apart(_measure_here, request, failed=f"the cost of {model} could not be measured")
    return EncodingCost(**{**answer, "quartiles": tuple(answer["quartiles"])})


def _choose_device(device: Device | None) -> Device:
    import torch

    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device is {device!r}, expected 'cpu' or 'cuda'")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but torch finds no GPU: measure on 'cpu'")
    return device


def _spell_out(retriever: "Retriever | str | Path") -> tuple[str, dict[str, Any]]:
    """What to open in the fresh process, and with which settings."""
    if isinstance(retriever, str | Path):
        return str(retriever), {}
    contract = retriever.contract
    stated: dict[str, Any] = {"similarity": contract.similarity}
    if contract.pooling in get_args(Pooling):  # else it is the folder's own kind, and found there
        stated["pooling"] = contract.pooling
    return str(retriever.folder), stated


def _measure_here(
    *,
    model: str,
    settings: dict[str, Any],
    batch_size: int,
    length: int,
    n_steps: int,
    device: Device,
) -> dict[str, Any]:
    """The fields of an `EncodingCost`."""
    import torch

    from modeling_condenser.encoding.opening import check_length
    from modeling_condenser.encoding.retriever import Retriever

    before = _resident_bytes("VmRSS")  # the libraries are imported, no model is loaded
    retriever = Retriever(model, device=device, **settings)
    encoder = retriever.model
    check_length(retriever.folder, encoder, length=length)
    batch = _random_batch(encoder, batch_size=batch_size, length=length)
    parameters = list(encoder.parameters())
    with torch.inference_mode():
        for parameter in parameters:
            parameter.sum()  # weights are mapped from their file, and resident once they are read
        for _ in range(_WARM_UP_STEPS):
            _timed_step(encoder, batch, device)
        _forget_peak(device)
        seconds = [_timed_step(encoder, batch, device) for _ in range(n_steps)]
    process_memory = _resident_bytes("VmHWM") if device == "cpu" else None
    memory: int | None
    if device == "cuda":
        memory = torch.cuda.max_memory_allocated()
    else:
        memory = None if process_memory is None or before is None else process_memory - before
    low, median, high = np.quantile(seconds, (0.25, 0.5, 0.75))
    cost = EncodingCost(
        device=device,
        hardware=_hardware(device),
        seconds_per_step=float(median),
        quartiles=(float(low), float(high)),
        peak_memory_bytes=memory,
        process_memory_bytes=process_memory,
        n_parameters=sum(parameter.numel() for parameter in parameters),
        dtype=str(parameters[0].dtype).removeprefix("torch."),
        batch_size=batch_size,
        length=length,
        n_steps=n_steps,
        n_threads=torch.get_num_threads(),
    )
    return asdict(cost)


def _random_batch(encoder: Any, *, batch_size: int, length: int) -> dict[str, Any]:
    """Token ids without padding: (batch_size, length), and a mask of ones."""
    import torch

    tokenizer = encoder.tokenizer
    special = set(tokenizer.all_special_ids)  # RoBERTa would count no position for a padding token
    ordinary = [i for i in range(len(tokenizer)) if i not in special]
    drawn = np.random.default_rng(0).choice(ordinary, size=(batch_size, length))
    ids = torch.from_numpy(drawn).to(encoder.device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _timed_step(encoder: Any, batch: dict[str, Any], device: Device) -> float:
    import torch

    start = time.perf_counter()
    encoder(dict(batch))  # the modules add their outputs to the dict that they are given
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _forget_peak(device: Device) -> None:
    """Begin the peak anew, so that it does not include the loading of the weights."""
    if device == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats()
    elif _RESET.exists():
        _RESET.write_text("5")


def _resident_bytes(field: str) -> int | None:
    """A field of /proc/self/status in bytes.

    `resource.getrusage` would not do: on Linux a new process inherits the peak of its parent.
    """
    if not _STATUS.is_file() or not _RESET.exists():
        return None
    match = re.search(rf"^{field}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _hardware(device: Device) -> str:
    import torch

    from modeling_condenser.runs.run_folder import describe_machine

    if device == "cuda":
        return torch.cuda.get_device_name()
    return str(describe_machine()["hardware"]["cpu"])
