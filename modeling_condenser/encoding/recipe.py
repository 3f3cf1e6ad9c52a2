"""The fields of `condenser encode`; importing them does not import torch."""

from dataclasses import dataclass

from modeling_condenser.files.settings import check_least

from .embeddings import Dtype


@dataclass(frozen=True)
class EncodingRecipe:
    """What `encode` encodes, and how.

    Attributes:
        model: folder or Hub name of a retriever, with settings of `Retriever` after commas; a plain
            encoder is NAME,pooling=cls, mean or max.
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
