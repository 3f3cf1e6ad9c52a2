"""Check whether a model card is complete enough to be published."""

import gzip
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from .card import CARD_FILE, PLACEHOLDER, read_card
from .results import read_results

_LINK = re.compile(r"!?\[(?:[^\]\\]|\\.)*\]\(([^)\s]+)\)")
_FENCED = re.compile(r"^(```+|~~~+).*?^\1", re.MULTILINE | re.DOTALL)


def card_problems(folder: Path) -> list[str]:
    """What is missing or wrong on a repository's card, each with what to do; empty if complete."""
    if not (folder / CARD_FILE).is_file():
        return [f"There is no {CARD_FILE}: write one (`write_card`)."]
    try:
        return list(_problems(folder))
    except ValueError as error:
        return [str(error)]


def _problems(folder: Path) -> Iterator[str]:
    metadata, text = read_card(folder / CARD_FILE)
    if not metadata.get("license"):
        yield f"{CARD_FILE} names no license: push with --license, such as --license apache-2.0."
    if PLACEHOLDER in text:
        yield f"{CARD_FILE} says {PLACEHOLDER}: write it again with the repository's name."
    links = [match[1] for match in _LINK.finditer(_FENCED.sub("", text))]
    for target in dict.fromkeys(links):
        path = unquote(target.partition("#")[0].partition("?")[0])
        is_local = path and not re.match(r"[A-Za-z][\w+.-]*:|//|/", path)
        if is_local and not (folder / path).exists():
            yield f"{CARD_FILE} links {target}, which does not exist: add it or remove the link."
    for result in read_results(folder):
        file = folder / result.run["file"] if result.run else None
        if result.run and file and file.is_file():
            digest = hashlib.sha256(gzip.decompress(file.read_bytes())).hexdigest()
            if digest != result.run["sha256"]:
                what = f"{result.collection} ({result.split})"
                yield f"{result.run['file']} is not the measured run: evaluate on {what} again."
