"""Make a collection of translated manual pages of Debian, for BM25 in other languages.

    apt-get download manpages-fr manpages-fr-dev
    for package in manpages-fr*.deb; do dpkg -x $package manuals; done
    python -m benchmarks.make_manuals manuals OUT

OUT becomes a folder in BEIR's layout. A query is what a manual says of its command in one line (the
section NAME); its passage is the beginning of the manual without this section. So nobody judged
anything: a manual is relevant to its own line. Manuals with the same line are all relevant.
"""

import argparse
import gzip
import json
import re
from collections import defaultdict
from pathlib import Path

from modeling_condenser.collection.load import CORPUS_FILE, QRELS_FOLDER, QRELS_HEADER, QUERIES_FILE
from modeling_condenser.files.run_folder import atomic_folder

_KEPT_MACROS = re.compile(r"\.(?:[BI][BIR]?|R[BI]|SS|SM|SB) ")
_ESCAPES = re.compile(r"\\f(?:\[[A-Z]*\]|[A-Z])|\\\([a-z]{2}|\\[,/&|^:%c]|\\s[-+]?\d")
_FEWEST_WORDS, _MOST_WORDS = 30, 200  # of a passage


def read_manual(file: Path) -> tuple[str, str]:
    """The line about the command and the beginning of the rest; both empty if there are none."""
    opener = gzip.open if file.suffix == ".gz" else open
    with opener(file, "rt", encoding="utf-8", errors="replace") as stream:
        sections = re.split(r"^\.SH.*$", stream.read(), flags=re.MULTILINE)
    if len(sections) < 3:
        return "", ""
    _, _, line = _read_roff(sections[1]).partition(" - ")
    words = _read_roff(" \n".join(sections[2:])).split()
    return line.strip(), " ".join(words[:_MOST_WORDS]) if len(words) >= _FEWEST_WORDS else ""


def _read_roff(source: str) -> str:
    """The text of a part of a manual, on one line."""
    words = []
    for line in source.splitlines():
        if macro := _KEPT_MACROS.match(line):
            line = line[macro.end() :].replace('"', "")
        elif line.startswith((".", "'")):
            continue
        line = _ESCAPES.sub("", line).replace("\\-", "-").replace("\\e", "\\").replace("\\ ", " ")
        words += line.split()
    return " ".join(words)


def make_collection(manuals: Path, out: Path) -> int:
    """Write the collection; the number of queries."""
    passages: dict[str, str] = {}
    relevant = defaultdict(list)  # line -> ids of passages
    for file in sorted(manuals.rglob("man[1-9]/*")):
        line, text = read_manual(file)
        passage_id = f"{file.parent.name}/{file.name.removesuffix('.gz')}"
        if text and passage_id not in passages and text not in passages.values():
            passages[passage_id] = text
            if line:
                relevant[line].append(passage_id)
    with atomic_folder(out) as new:
        (new / QRELS_FOLDER).mkdir()
        rows = [{"_id": name, "title": "", "text": text} for name, text in passages.items()]
        asked = [{"_id": f"q{i}", "text": line} for i, line in enumerate(relevant)]
        for name, part in ((CORPUS_FILE, rows), (QUERIES_FILE, asked)):
            lines = [json.dumps(row, ensure_ascii=False) for row in part]
            (new / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        lines = ["\t".join(QRELS_HEADER)]
        for query, names in zip(asked, relevant.values(), strict=True):
            lines += [f"{query['_id']}\t{name}\t1" for name in names]
        (new / QRELS_FOLDER / "test.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(relevant)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("manuals", type=Path, help="folder with man1/ and so on, at any depth")
    parser.add_argument("out", type=Path, help="folder to write")
    arguments = parser.parse_args()
    print(f"{make_collection(arguments.manuals, arguments.out)} queries in {arguments.out}")
