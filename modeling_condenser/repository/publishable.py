"""Remove secrets and local paths from settings before they are published."""

import glob
import re
from collections.abc import Mapping
from pathlib import Path, PureWindowsPath
from typing import Any

from modeling_condenser.hub.model_folder import describe_starter, is_starter

_SECRET_NAME = re.compile(r"(^|_)(token|password|passwd|secret|api_?key|credentials?)$", re.I)
_SECRET_VALUE = re.compile(r"hf_[A-Za-z0-9]{16,}")
_OUTPUT_FOLDERS = frozenset({"output_dir", "logging_dir"})
_TEXTS = frozenset({"query_prompt", "passage_prompt", "title_separator"})  # never paths
# Settings that name models or data, so a bare word in them may be a folder.
_SOURCES = frozenset(
    "encoder tokenizer corpus path collection data negatives name_or_path resume_from_checkpoint "
    "cross_encoder systems baseline model".split()
)
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)(?:[^\s/@]*@)?([^\s?#]*)\S*")
_LOCAL_PATH = re.compile(r"(?i)file://|[a-z]:[\\/]|\\\\|[/.~]|runs/")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_DATA_ENDINGS = tuple(
    ".json .jsonl .tsv .csv .parquet .arrow .txt .gz .xz .zst .trec .yaml .pt .bin".split()
)


def publishable(settings: Mapping[str, Any], *, near: Path | None = None) -> dict[str, Any]:
    """Settings as plain JSON values without secrets and local paths.

    Args:
        settings: a recipe, a run's record or the Trainer's arguments, of any depth.
        near: relative paths are also looked up in the parents of this folder.

    Returns:
        Settings without tokens, passwords and output folders. A local path becomes
        `local: LAST PART`, an address loses its login and its query, and the bundled encoder is
        named with the package's version.
    """
    return {
        str(name): _publishable(value, near, str(name))
        for name, value in settings.items()
        if not (_SECRET_NAME.search(str(name)) or name in _OUTPUT_FOLDERS)
    }


def hub_name(text: object) -> str | None:
    """The `owner/name` in a published setting, without `@revision`; None if there is none."""
    name = text.partition("@")[0] if isinstance(text, str) else ""
    if not _HUB_NAME.fullmatch(name) or name.lower().endswith(_DATA_ENDINGS):
        return None
    return None if ".." in name or "--" in name else name


def _publishable(value: Any, near: Path | None, name: str) -> Any:
    if isinstance(value, Mapping):
        return publishable(value, near=near)
    if isinstance(value, list | tuple | set | frozenset):
        return [_publishable(item, near, name) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    text = _SECRET_VALUE.sub("…", str(value)) if type(value) is str else str(value)
    if name in _TEXTS:
        return text
    if name in ("encoder", "tokenizer") and is_starter(text):
        return describe_starter()
    if _URL.search(text) and not text.lower().startswith("file://"):
        return _URL.sub(r"\1\2", text)
    is_local = _looks_local(text) or (("/" in text or name in _SOURCES) and _exists(text, near))
    path = PureWindowsPath(text) if "\\" in text else Path(text)
    return f"local: {path.name}" if is_local else text


def _looks_local(text: str) -> bool:
    if _LOCAL_PATH.match(text) or text.partition("@")[0].count("/") > 1:
        return True
    return "/" in text and glob.has_magic(text)


def _exists(text: str, near: Path | None) -> bool:
    if not text or len(text) >= 256 or "\0" in text:
        return False
    places = [Path(), *(near.resolve().parents if near else ())]
    return any((place / text).exists() for place in places)
