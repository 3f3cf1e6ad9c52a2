"""Is a card fit to be published? A repository's folder in; what to mend first out."""

import gzip
import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from .card import CARD_FILE, read_card
from .metadata import MODEL_INDEX, is_ours
from .results import DIGITS, RESULTS_FILE, EvaluationResult, read_results
from .snippets import PLACEHOLDER

_REQUIRED = {  # what a reader looks for, and the heading that it stands under
    "what it is, as a title": r"^# \S",
    "how to use it": r"^##+ .*\buse\b",
    "how it was trained": r"^##+ .*\btrain",
    "what it reached, or that it was not evaluated": r"^##+ .*\b(results?|evaluation)\b",
    "whom to cite": r"^##+ .*\b(citation|cite|citing)\b",
}
_LINK = re.compile(r"!?\[(?:[^\]\\]|\\.)*\]\(([^)\s]+)\)")
_FENCED = re.compile(r"^(```+|~~~+).*?^\1", re.MULTILINE | re.DOTALL)


def card_problems(folder: Path) -> list[str]:
    """What a repository's card lacks before it may be published.

    Args:
        folder: of the repository; nothing in it is changed.

    Returns:
        Sentences that say what is wrong and what to do; none if the card is whole.
    """
    file = folder / CARD_FILE
    if not file.is_file():
        return [f"There is no {CARD_FILE}: write one (`write_card`)."]
    try:
        metadata, text = read_card(file)
    except ValueError as error:
        return [f"{CARD_FILE} cannot be read: {error}"]
    return [
        *_metadata_problems(metadata),
        *_text_problems(text),
        *_link_problems(folder, text),
        *_result_problems(folder, metadata),
    ]


def _metadata_problems(metadata: Mapping[str, Any]) -> Iterator[str]:
    if not metadata:
        yield f"{CARD_FILE} begins with no metadata: write it anew (`write_card`)."
        return
    if not metadata.get("license"):
        yield (
            f"{CARD_FILE} names no license: add `license: apache-2.0`, or whichever it is, to the "
            "metadata at its top; `other` goes with license_name and license_link."
        )
    if not metadata.get("library_name"):
        yield (
            f"{CARD_FILE} names no library_name, so the Hub cannot say how to load the model: add "
            "`library_name: sentence-transformers`, or transformers for a checkpoint."
        )


def _text_problems(text: str) -> Iterator[str]:
    if PLACEHOLDER in text:
        yield (
            f"{CARD_FILE} still says {PLACEHOLDER}: write it anew with the repository's name "
            "(`write_card(folder, name=...)`), and put the name into text of your own."
        )
    prose = _FENCED.sub("", text)
    for what, heading in _REQUIRED.items():
        if not re.search(heading, prose, re.MULTILINE | re.IGNORECASE):
            yield (
                f"{CARD_FILE} does not say {what}: write it anew (`write_card` adds the sections "
                "that are missing), or add a section about it."
            )


def _link_problems(folder: Path, text: str) -> Iterator[str]:
    """Pictures, runs and other files that the card points to and that are not there."""
    targets = dict.fromkeys(match[1] for match in _LINK.finditer(_FENCED.sub("", text)))
    for target in targets:
        path = unquote(target.partition("#")[0].partition("?")[0])
        if not path or re.match(r"[A-Za-z][\w+.-]*:|//|/", path):
            continue
        if not (folder / path).exists():
            yield (
                f"{CARD_FILE} links {target}, which is not there: put the file into the folder, "
                "or write the card anew."
            )


def _result_problems(folder: Path, metadata: Mapping[str, Any]) -> Iterator[str]:
    try:
        results = read_results(folder)
    except ValueError as error:
        yield str(error)
        return
    measured = {_place(result, measure): value for result, measure, value in _figures(results)}
    stated = dict(_stated(metadata))
    for place in dict.fromkeys([*measured, *stated]):
        here, there = stated.get(place), measured.get(place)
        if here != there:
            collection, split, measure, depth = place
            yield (
                f"{CARD_FILE} says {_said(here)} for {measure} on {collection} ({split}, depth "
                f"{depth}), and {RESULTS_FILE} {_said(there)}: write the card anew (`write_card`)."
            )
    for result in results:
        yield from _run_problems(folder, result)


def _run_problems(folder: Path, result: EvaluationResult) -> Iterator[str]:
    if not result.run:
        return
    file = folder / result.run["file"]
    problem = "is not there"
    if file.is_file():
        try:
            content = gzip.decompress(file.read_bytes())
        except (OSError, EOFError) as error:
            problem = f"cannot be read ({error})"
        else:
            if hashlib.sha256(content).hexdigest() == result.run["sha256"]:
                return
            problem = "differs from its checksum"
    yield (
        f"{RESULTS_FILE} names the run {result.run['file']}, which {problem}: evaluate the model "
        f"on {result.collection} ({result.split}) anew."
    )


_Place = tuple[str, str, str, str]


def _figures(results: list[EvaluationResult]) -> Iterator[tuple[EvaluationResult, str, float]]:
    for result in results:
        for measure, value in result.values.items():
            yield result, measure, round(value, DIGITS)


def _place(result: EvaluationResult, measure: str) -> _Place:
    settings = {"depth": result.depth, **result.search}
    return (result.source or result.collection, result.split, measure, _settings(settings))


def _settings(settings: Mapping[str, Any]) -> str:
    """Depth, and how was searched."""
    others = [f"{name}={value}" for name, value in settings.items() if name != "depth"]
    return ", ".join([str(settings["depth"]), *others])


def _stated(metadata: Mapping[str, Any]) -> Iterator[tuple[_Place, float]]:
    """The figures of `model-index` that an evaluation of ours made."""
    for model in metadata.get(MODEL_INDEX) or ():
        for result in filter(is_ours, model.get("results") or ()):
            dataset = result["dataset"]
            for metric in result["metrics"]:
                place = (dataset["type"], dataset.get("split", ""), metric["type"])
                yield (*place, _settings(metric["args"])), metric["value"]


def _said(value: float | None) -> str:
    return (
        "nothing" if value is None else f"{value:.{DIGITS}f}" if _is_number(value) else str(value)
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
