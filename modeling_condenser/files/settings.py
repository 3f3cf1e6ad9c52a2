"""Read recipes (YAML files), and check settings against the dataclass of a stage.

A recipe is one flat mapping with the fields of several dataclasses, such as ours and transformers'
training arguments.
"""

import dataclasses
import logging
import os
import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from inspect import formatannotation
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub.dataclasses import type_validator

logger = logging.getLogger(__name__)


def find_recipe(name_or_path: str | Path) -> Path:
    """Find a YAML file, or a recipe of the package such as `pretrain/condenser-bert-base`.

    Raises:
        FileNotFoundError: there is no such file or recipe; the message offers the nearest ones.
    """
    path = Path(name_or_path)
    if path.is_file():
        return path
    package = Path(__file__).parents[1]
    installed = package / "recipes"  # the folder configuration/ of the repository
    shipped = installed if installed.is_dir() else package.parent / "configuration"
    files = shipped.rglob("*.yaml")
    recipes = {file.relative_to(shipped).with_suffix("").as_posix(): file for file in files}
    name = str(name_or_path).removesuffix(".yaml")
    if name not in recipes:
        nearest = ", ".join(get_close_matches(name, recipes, n=3, cutoff=0.0))
        raise FileNotFoundError(
            f"There is no recipe {str(name_or_path)!r}: give a YAML file, or a recipe such as "
            f"{nearest}; all are in {shipped}."
        )
    return recipes[name]


def is_path(text: str) -> bool:
    """Whether a file or folder has this name; a text that is too long for a name is none."""
    return os.path.exists(text)  # noqa: PTH110, because Path.exists raises an OSError for it


def refuse_ambiguous(name: str, what: str) -> None:
    """Raise a ValueError if something of the package is named like a file or folder here."""
    if is_path(name):
        raise ValueError(
            f"{name} is {what} that comes with this package, and also a file or folder here: "
            f"write ./{name} for the one here, or run the command in another folder."
        )


def read_recipe(name_or_path: str | Path) -> dict[str, Any]:
    """Read the settings of a recipe (`find_recipe`); `auto` is decided by `choose_precision`.

    Raises:
        ValueError: the file is not valid YAML, or not a mapping.
    """
    path = find_recipe(name_or_path)
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(settings, dict):
        raise ValueError(
            f"{path} holds a {type(settings).__name__}, expected `field: value` lines."
        )
    return choose_precision(settings)


def choose_precision(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with `bf16: auto` and `dtype: auto` decided, also in the mappings within."""
    chosen = dict(settings)
    for name, value in settings.items():
        if isinstance(value, Mapping):
            chosen[name] = choose_precision(value)
        elif value == "auto" and name in ("bf16", "dtype"):
            is_fast = is_bfloat16_fast()
            chosen[name] = is_fast if name == "bf16" else "bfloat16" if is_fast else "float32"
    return chosen


@cache
def is_bfloat16_fast() -> bool:
    """Whether this machine has units for bfloat16, without which float32 is 2.5 times as fast."""
    import torch  # takes seconds, which commands without a model should not wait for
    from transformers.utils import is_torch_bf16_gpu_available

    is_fast = is_torch_bf16_gpu_available()
    if not torch.accelerator.is_available():
        find = getattr(torch.cpu, "get_capabilities", dict[str, Any])  # not in all versions
        units: Mapping[str, Any] = find()
        is_fast = any(has for unit, has in units.items() if "bf16" in unit)
    chosen, word = ("bfloat16", "has") if is_fast else ("float32", "has no")
    logger.info("Precision: %s, because this machine %s units for bfloat16.", chosen, word)
    return is_fast


def parse_settings(settings: Mapping[str, Any], *classes: type) -> tuple[Any, ...]:
    """Create an instance of each dataclass; a field of several classes goes to all of these.

    With `bf16` on a machine without an accelerator, `use_cpu` is set, because transformers refuses
    bfloat16 otherwise.

    Raises:
        ValueError: a field is unknown (the message offers the nearest) or missing, or a value has
            the wrong type.
    """
    known = {f.name for cls in classes for f in dataclasses.fields(cls) if f.init}
    for name in settings:
        if name not in known:
            hint = "`condenser VERB --help` lists those of a command."
            if nearest := get_close_matches(name, known, n=1):
                hint = f"Did you mean {nearest[0]!r}?"
            raise ValueError(f"There is no field {name!r}. {hint}")
    if settings.get("bf16"):
        import torch  # takes seconds, which commands without a model should not wait for

        settings = {"use_cpu": not torch.accelerator.is_available(), **settings}
    return tuple(_make(cls, settings) for cls in classes)


def _make(cls: type, settings: Mapping[str, Any]) -> Any:
    values, hints = {}, typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if field.init and field.name in settings:
            values[field.name] = check_value(field.name, settings[field.name], hints[field.name])
        elif is_required(field):
            raise ValueError(
                f"The recipe lacks the field {field.name!r}, which has no default: add it, or pass "
                f"--{field.name}."
            )
    return cls(**values)


def check_least(record: Any, **least: float) -> None:
    """Raise a ValueError unless each of these fields is None, or at least as great as given."""
    for name, number in least.items():
        value = getattr(record, name)
        if value is not None and not value >= number:
            raise ValueError(f"{name} is {value}, expected at least {number}.")


def is_required(field: dataclasses.Field) -> bool:
    """Whether a dataclass field has no default."""
    return field.default is field.default_factory is dataclasses.MISSING


def check_value(name: str, value: Any, hint: Any) -> Any:
    """Return the value of a field if it has the type.

    A whole number is accepted for a float, as is text such as 1e-4, which YAML does not read as a
    number; a path for text; and an item or a tuple for a list of such values.

    Raises:
        ValueError: it has another type.
    """
    for candidate in (value, *_conversions(value)):
        with suppress(TypeError):
            type_validator(name, candidate, hint)
            return candidate
    advice = ' YAML reads no as false: write "no" in quotes.' if value is False else ""
    raise ValueError(
        f"{name} is {value!r}, of type {type(value).__name__}; expected {formatannotation(hint)}."
        f"{advice}"
    )


def _conversions(value: Any) -> Iterator[Any]:
    """What a value may stand for."""
    if type(value) is int:
        yield float(value)
    if isinstance(value, str):
        with suppress(ValueError):
            yield float(value)
    if isinstance(value, Path):
        yield str(value)
    items = value if isinstance(value, list | tuple) else [value]
    yield [str(item) if isinstance(item, Path) else item for item in items]
    yield [float(item) if type(item) is int else item for item in items]


def split_name(system: str | Path | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Split `MODEL[,setting=value]...`, or a mapping of `model` and settings, also as YAML text.

    Raises:
        ValueError: there is no model, or the text is not valid YAML.
    """
    if isinstance(system, str) and system.startswith("{"):
        try:
            system = yaml.safe_load(system)
        except yaml.YAMLError as error:
            raise ValueError(f"{system} is not a valid mapping: {error}") from error
    if isinstance(system, Mapping):
        values = {name: value for name, value in system.items() if value is not None}
        model = str(values.pop("model", ""))
    else:
        model, *words = str(system).split(",")
        values = dict(word.partition("=")[::2] for word in words)
    if not model.strip():
        raise ValueError(f"{system!r} names no system: begin with an encoder or bm25.")
    return model, values


def convert_settings(
    model: str, values: Mapping[str, Any], known: Mapping[str, Any]
) -> dict[str, Any]:
    """Convert settings, often texts, to their types; a wrong one is a ValueError.

    `known` has the type, or the allowed values, of each setting of the model.
    """
    settings = {}
    for name, value in values.items():
        if name not in known:
            raise ValueError(
                f"{model} has no setting {name!r}; it has {', '.join(known)}. A path or a value"
                " with a comma needs a mapping: {model: PATH, SETTING: VALUE}."
            )
        settings[name] = _convert(name, value, known[name])
    return settings


def _convert(name: str, value: Any, kind: Any) -> Any:
    """Convert a value to a type, or check that it is one of a tuple."""
    try:
        return kind[kind.index(str(value))] if isinstance(kind, tuple) else kind(value)
    except ValueError:
        expected = f"one of {', '.join(kind)}" if isinstance(kind, tuple) else kind.__name__
        raise ValueError(f"{name} is {value!r}, expected {expected}.") from None
