"""condenser encode MODEL COLLECTION OUT: encode all passages of a collection.

    condenser encode my-encoder my-collection runs/embeddings
    condenser encode owner/encoder,pooling=mean my-collection runs/embeddings --devices cuda:0
    torchrun --nproc_per_node 8 -m hub_scripts.main encode my-encoder my-collection OUT

If it is interrupted, run the same command again: it continues with the missing shards. On several
machines, OUT must be on a shared file system.
"""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modeling_condenser.encoding.embeddings import Embeddings


def run(words: list[str]) -> None:
    arguments = _parse(words)
    from modeling_condenser.collection.load import load_passages
    from modeling_condenser.encoding.embeddings import write_table
    from modeling_condenser.encoding.encode import encode_collection, local_device
    from modeling_condenser.retrieval.systems import parse_system

    pooling = [f"pooling={arguments.pooling}"] if arguments.pooling else []
    system = parse_system(",".join([arguments.model, *pooling])).in_dtype(arguments.dtype)
    devices = arguments.devices.split(",") if arguments.devices else None
    passages = load_passages(arguments.collection)
    embeddings = encode_collection(
        system.open(device=local_device(devices)),
        passages,
        arguments.out,
        shard_size=arguments.shard_size,
        devices=devices,
    )
    if int(os.environ.get("RANK", "0")) > 0:
        return
    _report(embeddings)
    if arguments.table:
        files = write_table(embeddings, arguments.table, passages=passages, progress=True)
        print(f"table: {arguments.table} ({len(files)} parquet files)")


def _parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="condenser encode",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help="folder or Hub name of a retriever or an encoder")
    parser.add_argument("collection", help="folder or name of a collection")
    parser.add_argument("out", type=Path, help="folder for the embeddings")
    parser.add_argument("--pooling", help="cls, mean or max; required for a plain encoder")
    parser.add_argument(
        "--devices", help="one worker each: cuda:0,cuda:1 (default: all GPUs, or the CPU)"
    )
    parser.add_argument(
        "--dtype", default="float32", help="of the weights: float32 (default) or bfloat16"
    )
    parser.add_argument("--shard_size", type=int, help="passages in a shard (default: 256 to 8192)")
    parser.add_argument("--table", type=Path, help="also write a parquet table with the texts here")
    return parser.parse_args(words)


def _report(embeddings: "Embeddings") -> None:
    record = embeddings.record
    print(f"embeddings: {embeddings.folder}")
    line = f"  {embeddings.n_passages:,} passages of {embeddings.dimension} numbers"
    if speed := record.get("passages_per_second"):
        line += f", {record['seconds']:.1f} s, {speed:,.0f} passages a second"
        line += f"\n  {record['peak_memory_bytes'] / 1e9:.2f} GB of memory"
    if gpu := record.get("peak_accelerator_bytes"):
        line += f", {gpu / 1e9:.2f} GB on the GPU"
    print(line)
