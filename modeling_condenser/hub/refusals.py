"""Find what must not be published: pickles, secrets and local paths."""

import re
from collections.abc import Mapping
from pathlib import Path

from huggingface_hub import get_token

_PICKLES = frozenset(".bin .ckpt .dill .h5 .joblib .msgpack .pickle .pkl .pt .pth".split())
# A pickle begins with its protocol; an archive of torch names its pickle among the first bytes.
_PICKLE_START = re.compile(rb"\x80[\x02-\x05]|PK(?s:.*)\.pkl")
_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "added_tokens.json")
SECRETS = {
    "a Hugging Face token": r"\b(?:hf|api_org)_[A-Za-z0-9]{20,}",
    "an AWS key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "a GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{40,})",
    "an API key": r"\bsk-(?:[a-z]+-)*[A-Za-z0-9_-]{32,}",
    "a private key": r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----",
    "a login in an address": r"(?<=://)[^\s/:@\"']+:[^\s/@\"']{3,}@",
    "a password or key": (
        r"(?i)(?:\b|_)(?:api[_-]?key|secret(?:[_-]?key)?|passw(?:or)?d|"
        r"(?:access|auth|hub|hf)[_-]token)[\"']?\s*[:=]\s*[\"']?[A-Za-z0-9+/_.=-]{12,}"
    ),
}
_LOCAL_PATH = (
    r"(?<![\w./:-])/(?:home|Users|root|mnt|tmp|var|scratch|workspace|data|srv|media|opt|private)"
    r"/[\w.-]+(?:/[\w.-]+)*|(?<![\w./:-])/root\b|\b[A-Za-z]:\\{1,2}Users\\{1,2}[\w.-]+|\bfile:///\S+"
)


def find_refusals(files: Mapping[str, Path]) -> list[str]:
    """Every pickle, and every secret and local path in text files; empty if there is none.

    Args:
        files: path in the repository -> local file.

    Returns:
        Path, line and reason, with secrets cut to their first characters.
    """
    # A short path such as /data may be on any machine.
    own = [re.escape(str(f)) for f in (Path.home(), Path.cwd()) if len(f.parts) > 2]
    patterns = {**SECRETS, "a local path": "|".join([_LOCAL_PATH, *own])}
    if token := get_token():
        patterns["the token that is logged in"] = re.escape(token)
    found = []
    for path, file in sorted(files.items()):
        with file.open("rb") as stream:
            start = stream.read(4096)
        if file.suffix in _PICKLES or _PICKLE_START.match(start):
            found.append(f"{path}: a pickle, which can execute code: save it as safetensors")
        elif b"\0" not in start and file.name not in _VOCABULARIES:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            for number, line in enumerate(lines, start=1):
                if reason := _find_first(line, patterns):
                    found.append(f"{path}, line {number}: {reason}")
    return found


def _find_first(line: str, patterns: Mapping[str, str]) -> str | None:
    for what, pattern in patterns.items():
        if match := re.search(pattern, line):
            return f"{what} ({match[0] if 'path' in what else match[0][:4] + '…'})"
    return None


def hide_secrets(text: str) -> str:
    """A text with an ellipsis in place of each secret."""
    for pattern in SECRETS.values():
        text = re.sub(pattern, "…", text)
    return text
