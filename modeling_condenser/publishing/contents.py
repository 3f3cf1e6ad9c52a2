"""Find what must not be published: pickles, secrets and local paths, each with file and line."""

import gzip
import json
import re
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from huggingface_hub import constants, get_token

_PICKLES = frozenset(".bin .ckpt .dill .h5 .joblib .msgpack .pickle .pkl .pt .pth".split())
_PICKLE_START = re.compile(rb"\x80[\x02-\x05]")
# A vocabulary holds any string, so only the machine's own paths and token are looked for in it.
_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "added_tokens.json")
_LONGEST_LINE = 100_000  # characters of a line that are searched
_SECRETS = {
    "a Hugging Face token": r"\b(?:hf|api_org)_[A-Za-z0-9]{20,}",
    "an AWS key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "a GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{40,})",
    "a Google key": r"\bAIza[0-9A-Za-z_-]{35}",
    "an API key": r"\bsk-(?:[a-z]+-)*[A-Za-z0-9_-]{32,}",
    "a Slack token": r"\bxox[abprs]-[A-Za-z0-9-]{10,}",
    "a Weights & Biases key": r"(?i)wandb[_-]?api[_-]?key\W{1,4}[0-9a-f]{40}",
    "a private key": r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----",
    "a login in an address": r"\b[a-z][a-z0-9+.-]*://[^\s/:@\"']+:[^\s/@\"']{3,}@",
    "a password or key": (
        r"(?i)\b(?:api[_-]?key|secret(?:[_-]?key)?|passw(?:or)?d|(?:access|auth|hub|hf)[_-]token)"
        r"[\"']?\s*[:=]\s*[\"']?[A-Za-z0-9+/_.=-]{12,}"
    ),
}
_PATHS = {
    "a local path": (
        r"(?<![\w./:-])/(?:home|Users|root|mnt|tmp|var|scratch|workspace|data|srv|media|opt|private)"
        r"/[\w.-]+(?:/[\w.-]+)*|(?<![\w./:-])/root\b|\b[A-Za-z]:\\{1,2}Users\\{1,2}[\w.-]+|\bfile:///\S+"
    )
}


@dataclass(frozen=True)
class Refusal:
    """Why a file must not be published.

    Attributes:
        path: of the file, in the repository.
        line: counted from 1; None for a file without lines.
        reason: what it holds, with secrets cut to their first characters.
    """

    path: str
    line: int | None
    reason: str

    def __str__(self) -> str:
        place = self.path if self.line is None else f"{self.path}, line {self.line}"
        return f"{place}: {self.reason}"


def find_refusals(files: Mapping[str, Path]) -> list[Refusal]:
    """Every pickle, secret and local path in files; empty if they may be published.

    Args:
        files: path in the repository -> local file.
    """
    return [refusal for path, file in sorted(files.items()) for refusal in _check(path, file)]


def _check(path: str, file: Path) -> Iterator[Refusal]:
    if pickle := _find_pickle(file):
        yield Refusal(path, None, f"{pickle}, which can execute code: save it as safetensors")
    elif file.suffix == ".safetensors":
        try:
            for refusal in _search(path, [_read_metadata(file)], {**_SECRETS, **_PATHS}):
                yield replace(refusal, line=None)
        except ValueError:
            yield Refusal(path, None, "not a complete safetensors file: save the model again")
    elif path.endswith(".gz"):
        with gzip.open(file, "rt", encoding="utf-8", errors="replace") as lines:
            yield from _search(path, lines, _SECRETS)
    elif _is_text(file):
        patterns = {} if Path(path).name in _VOCABULARIES else {**_SECRETS, **_PATHS}
        with file.open(encoding="utf-8", errors="replace") as lines:
            yield from _search(path, lines, patterns)


def _find_pickle(file: Path) -> str | None:
    """The kind of pickle, by name and first bytes; None if the file is not one."""
    if file.suffix in _PICKLES:
        return f"a {file.suffix} file"
    with file.open("rb") as stream:
        start = stream.read(256)
    if _PICKLE_START.match(start):
        return "a pickle"
    if start.startswith(b"PK") and zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            if any(name.endswith((".pkl", ".pickle")) for name in archive.namelist()):
                return "an archive with a pickle"
    if start.startswith(b"\x93NUMPY") and b"'descr': '|O'" in start:
        return "an array of pickled objects"
    return None


def _read_metadata(file: Path) -> str:
    """The metadata of a safetensors file, as JSON."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = stream.read(min(length, 100_000_000))
    return json.dumps(json.loads(header).get("__metadata__", {}))


def _is_text(file: Path) -> bool:
    with file.open("rb") as stream:
        return b"\0" not in stream.read(4096)


def _search(path: str, lines: Iterable[str], patterns: Mapping[str, str]) -> Iterator[Refusal]:
    compiled = [(what, re.compile(pattern)) for what, pattern in patterns.items()]
    own = _own_strings()
    for number, line in enumerate(lines, start=1):
        cut = line[:_LONGEST_LINE]
        found = [(what, match[0]) for what, p in compiled if (match := p.search(cut))]
        found += [
            (what, text)
            for what, text in own
            if text in line and not any(text in other or other in text for _, other in found)
        ]
        for what, text in found:
            yield Refusal(path, number, f"{what} ({text if 'path' in what else f'{text[:4]}…'})")


def _own_strings() -> list[tuple[str, str]]:
    """Paths of this machine, and the token of its user."""
    folders = {Path.home(), Path.cwd(), Path(tempfile.gettempdir()), Path(constants.HF_HOME)}
    # A short path such as /data may be on any machine.
    paths = sorted(str(folder) for folder in folders if len(folder.parts) > 2)
    token = get_token()
    own = [("a path of this machine", path) for path in paths]
    return [*own, ("the token that is logged in", token)] if token else own
