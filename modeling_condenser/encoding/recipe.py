"""The fields of `condenser encode`, and the settings of an encoder behind its name.

Importing this module does not import torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import yaml

from modeling_condenser.files.contract import Pooling, Similarity
from modeling_condenser.files.settings import check_least

from .embeddings import Dtype

# The type or the allowed values of each setting.
ENCODER_SETTINGS: Mapping[str, Any] = {
    "pooling": get_args(Pooling),
    "similarity": get_args(Similarity),
    "dtype": get_args(Dtype),
    **dict.fromkeys(("query_max_length", "passage_max_length", "token_budget"), int),
    "truncate_dim": int,
    **dict.fromkeys(("title_separator", "query_prompt", "passage_prompt"), str),
}


@dataclass(frozen=True)
class EncodingRecipe:
    """What `encode` encodes, and how.

    Attributes:
        model: folder or Hub name of a retriever, with settings of `Retriever` after commas; a plain
            encoder is NAME,pooling=cls, mean or max. Values with commas need a YAML mapping, such
            as {model: NAME, query_prompt: "find, "}.
        collection: folder or Hub name.
        out: folder for the embeddings.
        devices: one worker each, such as cuda:0,cuda:1; by default all GPUs, or the CPU.
        dtype: of the weights, float32, bfloat16, or int8 (after condenser export --onnx int8).
        shard_size: passages in a shard of a new folder; 256 to 8192 by default.
        table: new folder for a parquet table of vectors and texts.
    """

    model: str
    collection: str
    out: str
    devices: str | None = None
    dtype: Dtype = "float32"
    shard_size: int | None = None
    table: str | None = None

    def __post_init__(self) -> None:
        check_least(self, shard_size=1)


def split_name(system: str | Path | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Split `MODEL[,setting=value]...`, or a mapping of `model` and settings, also as YAML text.

    Raises:
        ValueError: there is no model, or the text is not valid YAML.
    """
    if isinstance(system, str) and system.startswith("{"):
        try:
            system = yaml.safe_load(system)
        except yaml.YAMLError as error:
            raise ValueError(f"{system} is not a valid mapping: {error}") from error
    if isinstance(system, Mapping):
        values = {name: value for name, value in system.items() if value is not None}
        model = str(values.pop("model", ""))
    else:
        model, *words = str(system).split(",")
        values = dict(word.partition("=")[::2] for word in words)
    if not model.strip():
        raise ValueError(f"{system!r} names no system: begin with an encoder or bm25.")
    return model, values


def convert_settings(
    model: str, values: Mapping[str, Any], known: Mapping[str, Any]
) -> dict[str, Any]:
    """Convert settings, often texts, to their types; a wrong one is a ValueError.

    `known` has the type, or the allowed values, of each setting of the model.
    """
    settings = {}
    for name, value in values.items():
        if name not in known:
            raise ValueError(
                f"{model} has no setting {name!r}; it has {', '.join(known)}. A path or a value"
                " with a comma needs a mapping: {model: PATH, SETTING: VALUE}."
            )
        settings[name] = _convert(name, value, known[name])
    return settings


def _convert(name: str, value: Any, kind: Any) -> Any:
    """Convert a value to a type, or check that it is one of a tuple."""
    try:
        return kind[kind.index(str(value))] if isinstance(kind, tuple) else kind(value)
    except ValueError:
        expected = f"one of {', '.join(kind)}" if isinstance(kind, tuple) else kind.__name__
        raise ValueError(f"{name} is {value!r}, expected {expected}.") from None
