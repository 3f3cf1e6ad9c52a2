"""Reduce a large collection for a study: all judged passages, and a fixed random sample.

    python -m benchmarks.reduce_collection BOOLQ OUT [--sample 20000]

BOOLQ and OUT are BEIR folders. Queries and judgements of all splits stay as they are. The sample is
the passages whose ids have the smallest SHA-256, so it is the same on every machine. A search among
fewer passages is easier: figures of a reduced collection must not be compared with those of the
whole one.
"""

import argparse
import hashlib
import heapq
import json
import shutil
from pathlib import Path

from modeling_condenser.collection.beir import CORPUS_FILE, QRELS_FOLDER, QUERIES_FILE


def main() -> None:
    """Write the folder and print how many passages it has."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path, metavar="BOOLQ")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--sample", type=int, default=20_000, help="(default: 20,000)")
    options = parser.parse_args()
    print(f"{reduce_collection(options.source, options.out, options.sample):,} passages")


def reduce_collection(source: Path, out: Path, sample: int) -> int:
    """Write the reduced folder, which must not exist; return the number of passages."""
    out.mkdir(parents=True)
    shutil.copytree(source / QRELS_FOLDER, out / QRELS_FOLDER)
    shutil.copyfile(source / QUERIES_FILE, out / QUERIES_FILE)
    judged = {
        line.split("\t")[1]
        for file in (out / QRELS_FOLDER).glob("*.tsv")
        for line in file.read_text("utf-8").splitlines()[1:]
    }
    with (source / CORPUS_FILE).open(encoding="utf-8") as lines:
        ids = [json.loads(line)["_id"] for line in lines]
    others = (passage for passage in ids if passage not in judged)
    kept = judged | set(heapq.nsmallest(sample, others, key=_hash))
    with (source / CORPUS_FILE).open(encoding="utf-8") as lines:
        chosen = [line for passage, line in zip(ids, lines, strict=True) if passage in kept]
    (out / CORPUS_FILE).write_text("".join(chosen), "utf-8")
    return len(chosen)


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


if __name__ == "__main__":
    main()
