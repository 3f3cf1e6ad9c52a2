"""What must not be published: files in, reasons to refuse them out, each with file and line.

Pickles execute code where they are opened; tokens and keys are stolen within minutes; paths tell
who works where, and mean nothing elsewhere.
"""

import gzip
import json
import re
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants, get_token

_PICKLES = (
    ".bin",
    ".ckpt",
    ".dill",
    ".h5",
    ".joblib",
    ".msgpack",
    ".pickle",
    ".pkl",
    ".pt",
    ".pth",
)
_TEXTS = (".json", ".jsonl", ".md", ".py", ".tsv", ".txt", ".yaml", ".yml", ".trec", ".jinja")
# Vocabularies hold any string at all, so only what is certain is looked for in them.
_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "added_tokens.json")
_PICKLE_START = re.compile(rb"\x80[\x02-\x05]")
_LONGEST_LINE = 100_000  # of a line, what is searched for patterns

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
    "a path of a local machine": (
        r"(?<![\w./:-])/(?:home|Users|root|mnt|tmp|var|scratch|workspace|data|srv|media|opt|private)"
        r"/[\w.-]+(?:/[\w.-]+)*|(?<![\w./:-])/root\b|\b[A-Za-z]:\\{1,2}Users\\{1,2}[\w.-]+|\bfile:///\S+"
    )
}


@dataclass(frozen=True)
class Refusal:
    """Why a file must not be published.

    Attributes:
        path: of the file, in the repository.
        line: counted from 1; None where a file has no lines.
        reason: what it holds, with secrets cut to their first characters.
    """

    path: str
    line: int | None
    reason: str

    def __str__(self) -> str:
        place = self.path if self.line is None else f"{self.path}, line {self.line}"
        return f"{place}: {self.reason}"


def find_refusals(files: Mapping[str, Path]) -> list[Refusal]:
    """Look through files for what must not be published.

    Args:
        files: path in the repository -> local file.

    Returns:
        Every pickle, secret and local path that was found; empty if there is none.
    """
    return [refusal for path, file in sorted(files.items()) for refusal in _look(path, file)]


def _look(path: str, file: Path) -> Iterator[Refusal]:
    pickle = _pickle_in(file)
    if pickle:
        yield Refusal(
            path, None, f"{pickle}, which executes code where it is opened: save as safetensors"
        )
    elif file.suffix == ".safetensors":
        try:
            header = _safetensors_header(file)
        except ValueError:
            yield Refusal(path, None, "no whole safetensors file: save the model again")
            return
        yield from _look_at_lines(path, [header], numbered=False)
    elif path.endswith(".gz"):
        with gzip.open(file, "rt", encoding="utf-8", errors="replace") as lines:
            yield from _look_at_lines(path, lines, patterns=_SECRETS)
    elif file.suffix in _TEXTS or _is_text(file):
        is_vocabulary = Path(path).name in _VOCABULARIES
        with file.open(encoding="utf-8", errors="replace") as lines:
            patterns = {} if is_vocabulary else {**_SECRETS, **_PATHS}
            yield from _look_at_lines(path, lines, patterns=patterns)


def _pickle_in(file: Path) -> str | None:
    """What kind of pickle a file is, by its name and by its first bytes; None if it is none."""
    if file.suffix in _PICKLES:
        return f"a {file.suffix} file"
    with file.open("rb") as stream:
        start = stream.read(8)
    if _PICKLE_START.match(start):
        return "a pickle"
    if start.startswith(b"PK") and zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            if any(name.endswith((".pkl", ".pickle")) for name in archive.namelist()):
                return "an archive with a pickle"
    if start.startswith(b"\x93NUMPY"):
        with file.open("rb") as stream:
            if b"'descr': '|O'" in stream.read(256):
                return "an array of pickled objects"
    return None


def _safetensors_header(file: Path) -> str:
    """The JSON that a weight file begins with, which holds its metadata."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = stream.read(min(length, 100_000_000))
    return json.dumps(json.loads(header).get("__metadata__", {}))


def _is_text(file: Path) -> bool:
    with file.open("rb") as stream:
        return b"\0" not in stream.read(4096)


def _look_at_lines(
    path: str,
    lines: Iterator[str] | Sequence[str],
    *,
    patterns: Mapping[str, str] = {**_SECRETS, **_PATHS},
    numbered: bool = True,
) -> Iterator[Refusal]:
    own = _own_strings()
    compiled = [(what, re.compile(pattern)) for what, pattern in patterns.items()]
    for number, line in enumerate(lines, start=1):
        searched = line[:_LONGEST_LINE]
        found = [(what, m.group()) for what, p in compiled if (m := p.search(searched))]
        for what, text in own:
            if text in line and not any(text in other or other in text for _, other in found):
                found.append((what, text))
        for what, text in found:
            shown = text if "path" in what else f"{text[:4]}…"
            yield Refusal(path, number if numbered else None, f"{what} ({shown})")


def _own_strings() -> list[tuple[str, str]]:
    """What gives this very machine and its user away, wherever it stands."""
    folders = {Path.home(), Path.cwd(), Path(tempfile.gettempdir()), Path(constants.HF_HOME)}
    # A folder such as /data alone may be anybody's.
    paths = sorted(str(folder) for folder in folders if len(folder.parts) > 2)
    token = get_token()
    own = [("a path of this machine", path) for path in paths]
    return [*own, ("the token that is logged in", token)] if token else own
