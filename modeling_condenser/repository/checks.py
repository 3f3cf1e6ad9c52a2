"""Check whether a model card is complete enough to be published."""

import gzip
import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from .card import CARD_FILE, PLACEHOLDER, read_card
from .results import DIGITS, RESULTS_FILE, EvaluationResult, read_results

_HEADINGS = {  # what the card must tell -> the heading that it is found under
    "what it is, as a title": r"^# \S",
    "how to use it": r"^##+ .*\buse\b",
    "how it was trained": r"^##+ .*\btrain",
    "what it reached, or that it was not evaluated": r"^##+ .*\b(results?|evaluation)\b",
    "which papers to cite": r"^##+ .*\b(citation|cite|citing)\b",
}
_LINK = re.compile(r"!?\[(?:[^\]\\]|\\.)*\]\(([^)\s]+)\)")
_FENCED = re.compile(r"^(```+|~~~+).*?^\1", re.MULTILINE | re.DOTALL)


def card_problems(folder: Path) -> list[str]:
    """What is missing or wrong on a repository's card, each with what to do; empty if complete."""
    if not (folder / CARD_FILE).is_file():
        return [f"There is no {CARD_FILE}: write one (`write_card`)."]
    try:
        metadata, text = read_card(folder / CARD_FILE)
        results = read_results(folder)
    except ValueError as error:
        return [str(error)]
    return [
        *_metadata_problems(metadata),
        *_text_problems(folder, text),
        *_figure_problems(results, metadata),
        *(problem for result in results if (problem := _run_problem(folder, result))),
    ]


def _metadata_problems(metadata: Mapping[str, Any]) -> Iterator[str]:
    if not metadata.get("license"):
        yield (
            f"{CARD_FILE} names no license: push with --license apache-2.0, or whichever it is, or "
            "add it to the metadata at the top of the card."
        )
    if not metadata.get("library_name"):
        yield (
            f"{CARD_FILE} names no library_name: add `library_name: sentence-transformers`, or "
            "transformers for a checkpoint."
        )


def _text_problems(folder: Path, text: str) -> Iterator[str]:
    if PLACEHOLDER in text:
        yield f"{CARD_FILE} says {PLACEHOLDER}: write it again with the repository's name."
    prose = _FENCED.sub("", text)
    for what, heading in _HEADINGS.items():
        if not re.search(heading, prose, re.MULTILINE | re.IGNORECASE):
            yield f"{CARD_FILE} does not say {what}: write it again (`write_card`)."
    for target in dict.fromkeys(match[1] for match in _LINK.finditer(prose)):
        path = unquote(target.partition("#")[0].partition("?")[0])
        is_local = path and not re.match(r"[A-Za-z][\w+.-]*:|//|/", path)
        if is_local and not (folder / path).exists():
            yield f"{CARD_FILE} links {target}, which does not exist: add it or remove the link."


def _figure_problems(results: list[EvaluationResult], metadata: Mapping[str, Any]) -> Iterator[str]:
    measured = {
        (result.source or result.collection, result.split, measure, str(settings)): value
        for result in results
        for settings in [{"depth": result.depth, **result.search}]
        for measure, value in ((m, round(v, DIGITS)) for m, v in result.values.items())
    }
    stated = {
        (r["dataset"]["type"], r["dataset"].get("split"), m["type"], str(m.get("args"))): m["value"]
        for model in metadata.get("model-index") or ()
        for r in model["results"]
        for m in r["metrics"]
    }
    for key in dict.fromkeys([*measured, *stated]):
        if measured.get(key) != stated.get(key):
            collection, split, measure, settings = key
            yield (
                f"{CARD_FILE} says {stated.get(key, 'nothing')} for {measure} on {collection} "
                f"({split}, {settings}), but {RESULTS_FILE} says {measured.get(key, 'nothing')}: "
                "write the card again (`write_card`)."
            )


def _run_problem(folder: Path, result: EvaluationResult) -> str | None:
    if not result.run:
        return None
    file, problem = folder / result.run["file"], "is missing"
    if file.is_file():
        try:
            digest = hashlib.sha256(gzip.decompress(file.read_bytes())).hexdigest()
            problem = "" if digest == result.run["sha256"] else "differs from its checksum"
        except (OSError, EOFError) as error:
            problem = f"cannot be read ({error})"
    what = f"{result.collection} ({result.split})"
    return (
        problem and f"The run {result.run['file']} {problem}: evaluate the model on {what} again."
    )
