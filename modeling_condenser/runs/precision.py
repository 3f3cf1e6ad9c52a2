"""Chooses between bfloat16 and float32 by the machine, where a recipe says `auto`."""

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any

logger = logging.getLogger(__name__)


def choose_precision(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with `bf16: auto` and `dtype: auto` decided, also in the mappings within."""
    chosen = dict(settings)
    for name, value in settings.items():
        if isinstance(value, Mapping):
            chosen[name] = choose_precision(value)
        elif (name, value) == ("bf16", "auto"):
            chosen[name] = is_bfloat16_fast()
        elif (name, value) == ("dtype", "auto"):
            chosen[name] = "bfloat16" if is_bfloat16_fast() else "float32"
    return chosen


@cache
def is_bfloat16_fast() -> bool:
    """Whether this machine has units for bfloat16, which is logged once.

    On a CPU without them, bfloat16 is 2.5 times slower than float32.
    """
    import torch  # takes seconds, which commands without a model should not wait for
    from transformers.utils import is_torch_bf16_gpu_available

    if torch.accelerator.is_available():
        where, has_units = "accelerator", is_torch_bf16_gpu_available()
    else:
        find = getattr(torch.cpu, "get_capabilities", dict)  # not in all versions of torch
        where, has_units = "CPU", any(has for unit, has in find().items() if "bf16" in unit)
    chosen, word = ("bfloat16", "has") if has_units else ("float32", "has no")
    logger.info("Precision: %s, because this %s %s units for bfloat16.", chosen, where, word)
    return has_units
