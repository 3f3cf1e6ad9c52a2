"""Make the collection that comes with the package, medical questions and answers, from MedQuAD.

    python -m benchmarks.make_health MEDQUAD modeling_condenser/health

MEDQUAD is a BEIR folder of MedQuAD (github.com/abachaa/MedQuAD, commit 577bd37b): answers are
passages with the disease as title, and `qrels/train.tsv` judges its questions. Diseases are chosen,
and divided among train, dev and test, by a hash of their names. The README is not written.
"""

import argparse
import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from modeling_condenser.collection.load import (
    CORPUS_FILE,
    QRELS_FOLDER,
    QRELS_HEADER,
    QUERIES_FILE,
    load_collection,
)

ONE_OF = 2  # diseases are kept


def main() -> None:
    """Make the folder and print what it has."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("medquad", type=Path, metavar="MEDQUAD")
    parser.add_argument("out", type=Path, metavar="OUT")
    options = parser.parse_args()
    print(make_health(options.medquad, options.out))


def make_health(medquad: Path, out: Path) -> dict[str, int]:
    """Write the files; return the number of passages, and of the queries of each split."""
    source = load_collection(medquad, split="train")
    passages = {row["_id"]: row for row in source.passages}
    kept, titles = {}, {}
    for query, judged in source.qrels.items():
        [title, *others] = {passages[passage]["title"].casefold() for passage in judged}
        if title and not others and _hash(title) % ONE_OF == 0:
            kept[query], titles[query] = judged, title
    found = sorted({passage for judged in kept.values() for passage in judged})
    (out / QRELS_FOLDER).mkdir(parents=True, exist_ok=True)
    _write_rows(out / CORPUS_FILE, (passages[passage] for passage in found))
    queries = sorted(kept)
    _write_rows(out / QUERIES_FILE, ({"_id": q, "text": source.queries[q]} for q in queries))
    splits = {query: _split(titles[query]) for query in queries}
    for split in ("train", "dev", "test"):
        lines = ["\t".join(QRELS_HEADER)]
        lines += [f"{q}\t{p}\t1" for q in queries if splits[q] == split for p in sorted(kept[q])]
        (out / QRELS_FOLDER / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return {"passages": len(found), **Counter(splits.values())}


def _split(title: str) -> str:
    part = _hash(title) // ONE_OF % 10
    return "test" if part < 3 else "dev" if part < 4 else "train"


def _hash(title: str) -> int:
    return int(hashlib.sha256(title.encode()).hexdigest()[:12], 16)


def _write_rows(file: Path, rows: Iterable[Mapping[str, str]]) -> None:
    """Write `file`.gz, with the same bytes for the same rows."""
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))


if __name__ == "__main__":
    main()
