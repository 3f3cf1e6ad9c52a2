"""The numbers that an encoder computes in, and which shapes a CPU should meet with them.

bfloat16 halves the memory of weights and, where the hardware has it, takes about 0.6 of the time.
Its vectors differ from those of float32 from the third digit on, so they are told apart wherever
vectors are stored.
"""

from typing import Any, Literal, get_args

import torch
from torch import nn

Dtype = Literal["float32", "bfloat16"]
FLOAT32: Dtype = "float32"

LENGTH_MULTIPLE = 8  # what lengths are rounded up to where every new shape costs a kernel


def check_dtype(dtype: Any) -> None:
    """Refuse what is no `Dtype`.

    Raises:
        ValueError: with those there are.
    """
    if dtype not in get_args(Dtype):
        raise ValueError(f"dtype is {dtype!r}, expected one of {', '.join(get_args(Dtype))}.")


def hold_weights(model: nn.Module, dtype: Dtype) -> None:
    """Turn a model's weights into numbers of one kind, in place.

    Buffers stay as they are: angles of rotary positions would lose the places of long texts.
    """
    wanted = getattr(torch, dtype)
    for weight in model.parameters():
        if weight.is_floating_point():
            weight.data = weight.data.to(wanted)


def wants_few_shapes(model: Any, dtype: Dtype) -> bool:
    """Whether every new shape of a batch costs time and memory, as with bfloat16 on a CPU."""
    return dtype == "bfloat16" and model.device.type == "cpu"


def rounded_rows(n_rows: int, *, most: int) -> int:
    """A number of rows up to the next power of two, but not above `most` where it was below."""
    return max(n_rows, min(1 << (n_rows - 1).bit_length(), most))
