"""Read recipes: YAML files and command-line words become checked dataclasses.

A recipe is one flat mapping with the fields of several dataclasses, such as ours and the library's
training arguments.
"""

import dataclasses
import re
import types
import typing
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

_BOOL = "tag:yaml.org,2002:bool"


class _Loader(yaml.SafeLoader):
    """YAML 1.1, but 1e-4 is a number, and yes, no, on and off are words (`save_strategy: no`)."""

    yaml_implicit_resolvers = {
        first: [(tag, form) for tag, form in resolvers if first in "tTfF" or tag != _BOOL]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)$"),
    list("-+.0123456789"),
)


def find_recipe(name_or_path: str | Path) -> Path:
    """Find a YAML file, or a recipe of the package such as `pretrain/condenser-bert-base`.

    Raises:
        FileNotFoundError: there is no such file or recipe.
    """
    path = Path(name_or_path)
    if path.is_file():
        return path
    package = Path(__file__).parents[1]
    installed = package / "recipes"  # the folder configuration/ of the repository
    shipped = installed if installed.is_dir() else package.parent / "configuration"
    recipes = {
        file.relative_to(shipped).with_suffix("").as_posix(): file
        for file in sorted(shipped.rglob("*.yaml"))
    }
    name = str(name_or_path).removesuffix(".yaml")
    if name not in recipes:
        raise FileNotFoundError(
            f"There is no recipe {str(name_or_path)!r}: give a YAML file, or one of "
            f"{', '.join(recipes)}."
        )
    return recipes[name]


def read_recipe(name_or_path: str | Path) -> dict[str, Any]:
    """Read the settings of a recipe; see `find_recipe`.

    Raises:
        ValueError: the file is not valid YAML, or not a mapping.
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
    return settings


def parse_changes(words: Sequence[str]) -> dict[str, Any]:
    """Read settings from `--field=value` words; values are YAML, `-` in a field stands for `_`.

    Example:
        >>> parse_changes(["--learning_rate=1e-4", "--bf16=true"])
        {'learning_rate': 0.0001, 'bf16': True}
    """
    pairs = (word.removeprefix("--").partition("=") for word in words)
    return {field.replace("-", "_"): yaml.load(value, Loader=_Loader) for field, _, value in pairs}


def fill(settings: Mapping[str, Any], *classes: type) -> tuple[Any, ...]:
    """Create an instance of each dataclass; a field of several classes goes to all of these.

    With `bf16` on a machine without an accelerator, `use_cpu` is set, because transformers refuses
    bfloat16 on a CPU that was not asked for.

    Raises:
        ValueError: a field is unknown (the message offers the nearest) or missing, or a value has
            the wrong type.
    """
    known = {f.name for cls in classes for f in dataclasses.fields(cls) if f.init}
    for name in settings:
        if name not in known:
            nearest = get_close_matches(name, known, n=1)
            hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
            raise ValueError(f"A recipe has no field {name!r}.{hint}")
    if settings.get("bf16") and _has_cpu_only():
        settings = {"use_cpu": True, **settings}
    return tuple(_fill(cls, settings) for cls in classes)


def _has_cpu_only() -> bool:
    import torch  # takes seconds, which commands without a model should not wait for

    return not torch.accelerator.is_available()


def _fill(cls: type, settings: Mapping[str, Any]) -> Any:
    hints = typing.get_type_hints(cls)
    values = {}
    for field in dataclasses.fields(cls):
        if field.init and field.name in settings:
            values[field.name] = _checked(field.name, settings[field.name], hints[field.name])
        elif field.default is field.default_factory is dataclasses.MISSING:
            raise ValueError(f"The recipe lacks the field {field.name!r}, which has no default.")
    return cls(**values)


def _checked(name: str, value: Any, hint: Any) -> Any:
    """Check a value of a simple or `Literal` type; the class itself checks all others."""
    is_union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    options = typing.get_args(hint) if is_union else (hint,)
    literals = [
        arg for o in options if typing.get_origin(o) is typing.Literal for arg in o.__args__
    ]
    if literals and value not in literals and not (value is None and type(None) in options):
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(map(repr, literals))}.")
    takes_list = any(typing.get_origin(option) is list for option in options)
    if isinstance(value, str) and takes_list and str not in options:
        return [value]  # one value in place of a list
    if not set(options) <= {bool, int, float, str, type(None)}:
        return value
    if float in options and type(value) is int:
        return float(value)
    if type(value) not in options:
        wanted = " or ".join("nothing" if o is type(None) else o.__name__ for o in options)
        raise ValueError(f"{name} is {value!r}, of type {type(value).__name__}; expected {wanted}.")
    return value
