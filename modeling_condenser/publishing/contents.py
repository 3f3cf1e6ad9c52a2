"""Find what must not be published: pickles, secrets and local paths."""

import gzip
import json
import re
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from huggingface_hub import constants, get_token

_PICKLES = frozenset(".bin .ckpt .dill .h5 .joblib .msgpack .pickle .pkl .pt .pth".split())
_PICKLE_START = re.compile(rb"\x80[\x02-\x05]")
# A vocabulary holds any string, so only the token and the paths of this machine are looked for.
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


def find_refusals(files: Mapping[str, Path]) -> list[str]:
    """Every pickle, secret and local path in files; empty if they may be published.

    Args:
        files: path in the repository -> local file.

    Returns:
        Path, line and reason, with secrets cut to their first characters.
    """
    return [f"{path}{reason}" for path, file in sorted(files.items()) for reason in _check(file)]


def _check(file: Path) -> Iterator[str]:
    if _is_pickle(file):
        yield ": a pickle, which can execute code: save it as safetensors"
    elif file.suffix == ".safetensors":
        try:
            yield from _search([_read_metadata(file)], {**_SECRETS, **_PATHS})
        except ValueError:
            yield ": not a complete safetensors file: save the model again"
    elif file.suffix == ".gz":
        with gzip.open(file, "rt", encoding="utf-8", errors="replace") as lines:
            yield from _search(lines, _SECRETS)
    elif b"\0" not in _start(file, 4096):
        patterns = {} if file.name in _VOCABULARIES else {**_SECRETS, **_PATHS}
        with file.open(encoding="utf-8", errors="replace") as lines:
            yield from _search(lines, patterns)


def _start(file: Path, n_bytes: int) -> bytes:
    with file.open("rb") as stream:
        return stream.read(n_bytes)


def _is_pickle(file: Path) -> bool:
    """By name, first bytes, or content of an archive."""
    start = _start(file, 256)
    if file.suffix in _PICKLES or _PICKLE_START.match(start):
        return True
    if start.startswith(b"PK") and zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            return any(name.endswith((".pkl", ".pickle")) for name in archive.namelist())
    return start.startswith(b"\x93NUMPY") and b"'descr': '|O'" in start


def _read_metadata(file: Path) -> str:
    """The metadata of a safetensors file, as JSON."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = stream.read(min(length, 100_000_000))
    return json.dumps(json.loads(header).get("__metadata__", {}))


def _search(lines: Iterable[str], patterns: Mapping[str, str]) -> Iterator[str]:
    folders = {Path.home(), Path.cwd(), Path(tempfile.gettempdir()), Path(constants.HF_HOME)}
    # A short path such as /data may be on any machine.
    own = [re.escape(str(folder)) for folder in folders if len(folder.parts) > 2]
    searched = {**patterns, "a path of this machine": "|".join(own) or r"(?!)"}
    if token := get_token():
        searched["the token that is logged in"] = re.escape(token)
    compiled = {what: re.compile(pattern) for what, pattern in searched.items()}
    for number, line in enumerate(lines, start=1):
        for what, pattern in compiled.items():
            if match := pattern.search(line[:_LONGEST_LINE]):
                shown = match[0] if "path" in what else f"{match[0][:4]}…"
                yield f", line {number}: {what} ({shown})"
                break
