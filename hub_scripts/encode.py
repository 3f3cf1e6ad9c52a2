"""Encode all passages of a collection; the same command continues an interrupted run.

    condenser encode my-encoder my-collection runs/embeddings
    condenser encode owner/encoder,pooling=mean my-collection runs/embeddings --devices cuda:0
    torchrun --nproc-per-node 8 --no-python condenser encode my-encoder my-collection OUT

On several machines, OUT must be on a shared file system.
"""

import os
from dataclasses import dataclass
from typing import Literal

from .command_line import CommandLine


@dataclass(frozen=True)
class EncodeFields:
    """The fields of `condenser encode`.

    Attributes:
        model: folder or Hub name of a retriever or an encoder.
        collection: folder or Hub name.
        out: folder for the embeddings.
        pooling: cls, mean or max; required for a plain encoder.
        devices: one worker each, such as cuda:0,cuda:1; all GPUs by default, or the CPU.
        dtype: of the weights, float32 or bfloat16.
        shard_size: passages in a shard; 256 to 8192 by default.
        table: folder to write a parquet table with vectors and texts too.
    """

    model: str
    collection: str
    out: str
    pooling: str | None = None
    devices: str | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    shard_size: int | None = None
    table: str | None = None


def run(line: CommandLine) -> None:
    fields = line.fill(EncodeFields, plain=("model", "collection", "out"))
    from modeling_condenser.collection.load import load_passages
    from modeling_condenser.encoding.embeddings import write_table
    from modeling_condenser.encoding.encode import encode_collection, local_device
    from modeling_condenser.retrieval.systems import parse_system

    pooling = f",pooling={fields.pooling}" if fields.pooling else ""
    system = parse_system(fields.model + pooling).in_dtype(fields.dtype)
    devices = fields.devices.split(",") if fields.devices else None
    passages = load_passages(fields.collection)
    embeddings = encode_collection(
        system.open(device=local_device(devices)),
        passages,
        fields.out,
        shard_size=fields.shard_size,
        devices=devices,
    )
    if int(os.environ.get("RANK", "0")) > 0:
        return
    record = embeddings.record
    print(f"embeddings: {embeddings.folder}")
    print(f"  {embeddings.n_passages:,} passages of {embeddings.dimension} numbers")
    if speed := record["passages_per_second"]:  # nothing was left to encode otherwise
        memory = record["peak_accelerator_bytes"] or record["peak_memory_bytes"]
        print(f"  {record['seconds']:.1f} s, {speed:,.0f} passages a second, {memory / 1e9:.2f} GB")
    if fields.table:
        files = write_table(embeddings, fields.table, passages=passages, progress=True)
        print(f"table: {fields.table} ({len(files)} parquet files)")
