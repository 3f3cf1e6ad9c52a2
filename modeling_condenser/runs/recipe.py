"""Reads recipes: YAML settings, changed on the command line, become checked dataclasses.

A recipe is one flat mapping with the fields of several dataclasses, such as ours and the library's
training arguments. An unknown field is an error.
"""

import dataclasses
import re
import types
import typing
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """YAML 1.1, but 1e-4 is a number too."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)$"),
    list("-+.0123456789"),
)


def find_recipe(name_or_path: str | Path) -> Path:
    """Find the file of a recipe.

    Args:
        name_or_path: a YAML file, or the name of a recipe of the package, such as
            `pretrain/condenser-bert-base`.

    Raises:
        FileNotFoundError: there is no such file or recipe.
    """
    path = Path(name_or_path)
    if path.is_file():
        return path
    shipped_folder = Path(str(files("configuration")))
    shipped = shipped_folder / f"{str(name_or_path).removesuffix('.yaml')}.yaml"
    if shipped.is_file():
        return shipped
    names = sorted(
        str(file.relative_to(shipped_folder).with_suffix(""))
        for file in shipped_folder.rglob("*.yaml")
    )
    raise FileNotFoundError(
        f"There is no recipe {str(name_or_path)!r}: give a YAML file, or one of {', '.join(names)}."
    )


def read_recipe(name_or_path: str | Path, changes: Sequence[str] = ()) -> dict[str, Any]:
    """Read the settings of a recipe and apply changes to them.

    Args:
        name_or_path: see `find_recipe`.
        changes: command-line words, `--field value` or `--field=value`; values are read as YAML.

    Raises:
        ValueError: the file is not a mapping, or a change has no value.
    """
    path = find_recipe(name_or_path)
    try:
        settings = yaml.load(path.read_text(), Loader=_Loader) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(settings, dict):
        raise ValueError(
            f"{path} holds a {type(settings).__name__}, expected `field: value` lines."
        )
    return {**settings, **parse_changes(changes)}


def parse_changes(words: Sequence[str]) -> dict[str, Any]:
    """Read settings from `--field value` words.

    Example:
        >>> parse_changes(["--learning_rate", "1e-4", "--bf16=true"])
        {'learning_rate': 0.0001, 'bf16': True}
    """
    settings: dict[str, Any] = {}
    waiting: str | None = None
    for word in words:
        if waiting is not None:
            settings[waiting], waiting = yaml.load(word, Loader=_Loader), None
        elif not word.startswith("--"):
            raise ValueError(f"Expected --field value, but {word!r} came without a field.")
        elif "=" in word:
            field, _, value = word[2:].partition("=")
            settings[field.replace("-", "_")] = yaml.load(value, Loader=_Loader)
        else:
            waiting = word[2:].replace("-", "_")
    if waiting is not None:
        raise ValueError(f"--{waiting} came without a value.")
    return settings


def fill(settings: Mapping[str, Any], *classes: type) -> tuple[Any, ...]:
    """Create an instance of each dataclass from the settings.

    Args:
        settings: see `read_recipe`.
        *classes: dataclasses whose fields have distinct names; each setting must be one of them.

    Raises:
        ValueError: a field is unknown (the message offers the nearest) or missing, or a value has
            the wrong type.
    """
    fields = {cls: {f.name: f for f in dataclasses.fields(cls) if f.init} for cls in classes}
    known = [name for names in fields.values() for name in names]
    for name in settings:
        if name not in known:
            nearest = get_close_matches(name, known, n=1)
            hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
            raise ValueError(f"A recipe has no field {name!r}.{hint}")
    return tuple(_make(cls, fields[cls], settings) for cls in classes)


def _make(cls: type, fields: dict[str, dataclasses.Field], settings: Mapping[str, Any]) -> Any:
    values = {name: value for name, value in settings.items() if name in fields}
    hints = typing.get_type_hints(cls)
    for name, value in values.items():
        values[name] = _checked(name, value, hints[name])
    for name, field in fields.items():
        has_default = (field.default, field.default_factory) != (dataclasses.MISSING,) * 2
        if name not in values and not has_default:
            raise ValueError(f"The recipe lacks the field {name!r}, which has no default.")
    return cls(**values)


def _checked(name: str, value: Any, hint: Any) -> Any:
    """Check a value of a simple type; the class checks all others."""
    is_union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    options = typing.get_args(hint) if is_union else (hint,)
    literals = [
        arg for o in options if typing.get_origin(o) is typing.Literal for arg in o.__args__
    ]
    if literals and value not in literals and not (value is None and type(None) in options):
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(map(repr, literals))}.")
    simple = {bool, int, float, str, type(None)}
    if not set(options) <= simple:
        return value
    if float in options and type(value) is int:
        return float(value)
    if type(value) not in options:
        wanted = " or ".join("nothing" if o is type(None) else o.__name__ for o in options)
        raise ValueError(f"{name} is {value!r}, of type {type(value).__name__}; expected {wanted}.")
    return value
