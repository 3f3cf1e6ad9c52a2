"""Where the time of a training step goes, by torch's profiler, in a few groups."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.pretraining_flops import synchronize
from benchmarks.pretraining_sides import Side

_OPTIMIZER = ("adamw", "optimizer.")
_ATTENTION = ("attention", "bmm", "softmax")
_MATRIX_PRODUCT = ("mm", "linear", "gemm", "matmul")
_MOVING = ("copy", "cat", "index", "gather", "scatter", "embedding", "pad", "fill", "zero", "add_")


def profile_steps(side: Side, device: torch.device, *, vocabulary: int, n_warm_up: int) -> str:
    """Train as the benchmark does, under the profiler.

    Args:
        side: that trains; its batches after the warm-up are profiled.
        device: where.
        vocabulary: size by which products with the vocabulary are told from others.
        n_warm_up: steps before.

    Returns:
        A table: each group's share of the time, with its longest operations.
    """
    for batch in side.batches[:n_warm_up]:
        side.step(batch, device)
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, record_shapes=True) as profiler:
        for batch in side.batches[n_warm_up:]:
            side.step(batch, device)
        synchronize(device)
    events = profiler.key_averages(group_by_input_shape=True)
    return _table(events, vocabulary=vocabulary, on_device=device.type == "cuda")


def _table(events: Sequence[Any], *, vocabulary: int, on_device: bool) -> str:
    groups: dict[str, float] = {}
    operations: dict[str, dict[str, float]] = {}
    for event in events:
        time = event.self_device_time_total if on_device else event.self_cpu_time_total
        if on_device and event.device_type.name == "CUDA":
            continue  # kernels, whose time the operation that started them has already
        group = _group(event.key, event.input_shapes, vocabulary=vocabulary)
        groups[group] = groups.get(group, 0.0) + time
        own = operations.setdefault(group, {})
        own[event.key] = own.get(event.key, 0.0) + time
    total = sum(groups.values()) or 1.0
    lines = ["| where the time goes | share | longest operations |", "| --- | --- | --- |"]
    for group in sorted(groups, key=groups.__getitem__, reverse=True):
        longest = sorted(operations[group].items(), key=lambda item: -item[1])[:3]
        names = ", ".join(f"{name} {time / total:.1%}" for name, time in longest)
        lines.append(f"| {group} | {groups[group] / total:.1%} | {names} |")
    return "\n".join(lines)


def _group(name: str, shapes: Sequence[Any], *, vocabulary: int) -> str:
    lowered = name.lower()

    def named(parts: Sequence[str]) -> bool:
        return any(part in lowered for part in parts)

    if named(_OPTIMIZER):
        return "optimizer"
    # Rows of predictions, or the embeddings that they are products with.
    if any(isinstance(shape, list) and vocabulary in shape for shape in shapes):
        return "vocabulary projection and its loss"
    if named(_ATTENTION):
        return "attention"
    if named(_MATRIX_PRODUCT):
        return "linear layers"
    if named(_MOVING):
        return "moving and casting"
    return "norms, activations, dropout, others"
