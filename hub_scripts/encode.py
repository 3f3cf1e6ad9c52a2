"""condenser encode MODEL COLLECTION OUT: the vectors of all passages, whatever happens meanwhile.

    condenser encode my-encoder my-collection runs/embeddings
    condenser encode owner/encoder,pooling=mean my-collection runs/embeddings --devices cuda:0
    torchrun --nproc_per_node 8 -m hub_scripts.main encode my-encoder my-collection OUT

Killed anywhere, it goes on where it ended when it is started again; at most the shards in work are
encoded twice. On several machines, OUT lies on a file system that all of them share.
"""

import argparse
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modeling_condenser.encoding.embeddings import Embeddings


def run(words: list[str]) -> None:
    arguments = _parse(words)
    from modeling_condenser.collection.load import load_passages
    from modeling_condenser.encoding.encode import encode_collection, estimate_collection
    from modeling_condenser.encoding.table import write_table
    from modeling_condenser.retrieval.systems import parse_system

    pooling = [f"pooling={arguments.pooling}"] if arguments.pooling else []
    system = parse_system(",".join([arguments.model, *pooling])).in_dtype(arguments.dtype)
    passages = load_passages(arguments.collection)
    settings = {
        "shard_size": arguments.shard_size,
        "n_processes": arguments.n_processes,
        "devices": arguments.devices.split(",") if arguments.devices else None,
        "n_threads": arguments.n_threads,
    }
    if arguments.estimate:
        print(estimate_collection(system, passages, index=arguments.index, **settings).in_words())
        print(
            f"free:      {_free_bytes(arguments.out) / 1e9:,.1f} GB on the disk of {arguments.out}"
        )
        return
    embeddings = encode_collection(system, passages, arguments.out, **settings)
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
    parser.add_argument("--pooling", help="cls, mean or max; a plain encoder needs it")
    parser.add_argument(
        "--n_processes", type=int, help="default: one a GPU or core, once that pays"
    )
    parser.add_argument("--devices", help="such as cuda:0,cuda:1 or cpu")
    parser.add_argument(
        "--dtype", default="float32", help="of the weights: float32 (default) or bfloat16"
    )
    parser.add_argument("--n_threads", type=int, help="a process on a CPU uses (default: 1)")
    parser.add_argument("--shard_size", type=int, help="passages in a shard, 256 to 8192 by itself")
    parser.add_argument("--table", type=Path, help="folder for the same as parquet, with the texts")
    parser.add_argument(
        "--estimate", action="store_true", help="only say what time, memory and disk it would take"
    )
    parser.add_argument(
        "--index", default="Flat", help="faiss index to estimate for (default: Flat, none)"
    )
    return parser.parse_args(words)


def _free_bytes(folder: Path) -> int:
    nearest = next(place for place in (folder, *folder.absolute().parents) if place.is_dir())
    return shutil.disk_usage(nearest).free


def _report(embeddings: "Embeddings") -> None:
    record = embeddings.record
    print(f"embeddings: {embeddings.folder}")
    line = f"  {embeddings.n_passages:,} passages of {embeddings.dimension} numbers"
    if record["seconds"]:  # not of vectors that were written from an array
        line += f", {record['seconds']:.1f} s, "
        line += f"{record['passages_per_second']:,.0f} passages a second"
        line += f"\n  {record['peak_memory_bytes'] / 1e9:.2f} GB of memory a process"
    if record["peak_accelerator_bytes"]:
        line += f", {record['peak_accelerator_bytes'] / 1e9:.2f} GB on its GPU"
    print(line)
