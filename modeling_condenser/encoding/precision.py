"""The dtype of an encoder's weights: float32, or bfloat16 for half the memory and more speed.

bfloat16 vectors differ from float32 vectors from the third digit on, so the dtype is part of a
retriever's fingerprint. This module does not import torch until weights are converted.
"""

from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from torch import nn

Dtype = Literal["float32", "bfloat16"]
FLOAT32: Dtype = "float32"


def check_dtype(dtype: Any) -> None:
    """Raise a ValueError for anything that is not a `Dtype`."""
    if dtype not in get_args(Dtype):
        raise ValueError(f"dtype is {dtype!r}, expected one of {', '.join(get_args(Dtype))}.")


def convert_weights(model: "nn.Module", dtype: Dtype) -> None:
    """Convert a model's floating-point parameters in place.

    Buffers keep their dtype: rotary angles in bfloat16 would confuse the positions of long texts.
    """
    import torch

    for weight in model.parameters():
        if weight.is_floating_point():
            weight.data = weight.data.to(getattr(torch, dtype))
