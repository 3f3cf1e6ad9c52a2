"""Read settings from recipes (YAML files) and words of a command, and check them.

Settings are one flat mapping with the fields of several dataclasses of a stage, such as ours and
transformers' training arguments.
"""

import argparse
import dataclasses
import inspect
import logging
import re
import typing
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cache, wraps
from inspect import formatannotation
from pathlib import Path
from types import UnionType
from typing import Any, NoReturn, Union, get_args, get_origin

import yaml
from huggingface_hub.dataclasses import type_validator
from transformers import HfArgumentParser

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


def read_recipe(
    name_or_path: str | Path, changes: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Read the settings of a recipe (`find_recipe`), with changes.

    The machine decides what `bf16: auto` is.

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
    settings |= changes or {}
    if settings.get("bf16") == "auto":
        settings["bf16"] = is_bfloat16_fast()
    return settings


@cache
def is_bfloat16_fast() -> bool:
    """Whether this machine has units for bfloat16, without which float32 is 2.5 times as fast."""
    import torch  # takes seconds, which commands without a model should not wait for
    from transformers.utils import is_torch_bf16_gpu_available

    is_fast = is_torch_bf16_gpu_available()
    if torch.cuda.is_available():
        is_fast = torch.cuda.is_bf16_supported(including_emulation=False)
    elif torch.backends.mps.is_available():
        is_fast = False
    elif not torch.accelerator.is_available():
        find = getattr(torch.cpu, "get_capabilities", dict[str, Any])  # not in all versions
        units: Mapping[str, Any] = find()
        is_fast = any(has for unit, has in units.items() if "bf16" in unit)
    chosen, word = ("bfloat16", "has") if is_fast else ("float32", "has no")
    logger.info("Precision: %s, because this machine %s units for bfloat16.", chosen, word)
    return is_fast


def parse_settings(settings: Mapping[str, Any], *classes: type) -> tuple[Any, ...]:
    """Create an instance of each dataclass; a field of several classes goes to all of these.

    On a machine without an accelerator, `use_cpu` of training arguments is set: else transformers
    refuses bfloat16, and the processes of torchrun train apart.

    Raises:
        ValueError: a field is unknown (the message offers the nearest) or missing, or a value has
            the wrong type.
    """
    _refuse_unknown(settings, classes)
    if any(field.name == "use_cpu" for cls in classes for field in dataclasses.fields(cls)):
        import torch  # takes seconds, which commands without a model should not wait for

        settings = {"use_cpu": not torch.accelerator.is_available(), **settings}
    return tuple(_make(cls, settings) for cls in classes)


def _refuse_unknown(names: Iterable[str], classes: Sequence[type]) -> None:
    known = {f.name for cls in classes for f in dataclasses.fields(cls) if f.init}
    for name in names:
        if name not in known:
            hint = "`condenser VERB --help` lists those of a command."
            if nearest := get_close_matches(name, known, n=1):
                hint = f"Did you mean {nearest[0]!r}?"
            raise ValueError(f"There is no field {name!r}. {hint}")


def _make(cls: type, settings: Mapping[str, Any]) -> Any:
    values, hints = {}, typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if field.init and field.name in settings:
            values[field.name] = check_value(field.name, settings[field.name], hints[field.name])
        elif is_required(field):
            raise ValueError(
                f"{field.name} is missing, and has no default: add it to the recipe, or pass "
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


_SEVERAL = (
    'write several values of a field as a list in quotes, "[a, b]", and a pattern of files in '
    "quotes, too. --help shows the usage."
)


class _Parser(HfArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise a ValueError, which `main` prints, instead of exiting."""
        raise ValueError(message)

    @staticmethod
    def _parse_dataclass_field(parser: argparse.ArgumentParser, field: dataclasses.Field) -> None:
        """As the library, which cannot read mappings and unions: they are written in YAML."""
        types = [each for each in get_args(field.type) if each is not type(None)]
        is_union = get_origin(field.type) in (Union, UnionType) and len(types) > 1
        if is_union or "dict" in str(field.type):
            parser.add_argument(f"--{field.name}", type=_read_structure, default=field.default)
        else:
            HfArgumentParser._parse_dataclass_field(parser, field)


def read_settings(
    verb: str,
    words: Sequence[str],
    *classes: Any,
    about: str | None = None,
    positional: Sequence[str] = (),
    epilog: str | None = None,
) -> dict[str, Any]:
    """Read the settings that the words of a verb state; print the fields and exit on `--help`.

    Args:
        verb: of the command.
        words: behind the verb.
        *classes: dataclasses of the stage.
        about: text above the list of fields.
        positional: fields that may be plain words, in order. One of them may be a list.
        epilog: text below the list of fields.

    Raises:
        ValueError: a word or a field is unknown, or a value has the wrong type.
        FileNotFoundError: the recipe does not exist.
    """
    usage = " ".join(["[RECIPE.yaml]", *map(str.upper, positional), "[--field value ...]"])
    parser = _Parser(
        classes,
        usage=f"condenser {verb} {usage}",
        description=about,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        conflict_handler="resolve",  # a field of several classes goes to all of them
    )
    _adjust_fields(parser, classes)
    parser.add_argument("--recipe", default=argparse.SUPPRESS, help="YAML file, or one shipped")
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    parsed, unknown = parser.parse_known_intermixed_args(_complete_flags(words, classes))
    settings = vars(parsed)
    plain = settings.pop("words")
    stated = (word.lstrip("-").partition("=")[0].replace("-", "_") for word in unknown)
    _refuse_unknown(stated, classes)
    if plain and not positional and not _is_recipe(plain[0]) and Path(plain[0]).exists():
        raise ValueError(f"{plain[0]} is no recipe (a YAML file): {_SEVERAL}")
    if plain and (not positional or _is_recipe(plain[0])):
        settings["recipe"] = plain.pop(0)
    settings.update(_assign_words(plain, [n for n in positional if n not in settings], classes))
    if recipe := settings.pop("recipe", None):
        settings = read_recipe(recipe, settings)
    return settings


def _adjust_fields(parser: argparse.ArgumentParser, classes: Sequence[Any]) -> None:
    """Keep only what is stated, and explain fields by the docstrings of their dataclasses.

    Fields without an explanation, which are transformers' own, are not listed.
    """
    explanations: dict[str, str] = {}
    optional = set[str]()
    for cls in classes:
        explanations.update(_read_explanations(cls))
        # The library has changed the types of the fields.
        types = ChainMap(*(vars(base).get("__annotations__", {}) for base in cls.__mro__))
        optional |= {name for name, each in types.items() if type(None) in get_args(each)}
    for action in parser._actions:
        if action.dest in optional and action.nargs is None and action.type is not None:
            action.type = _or_null(action.type)
            action.choices = action.choices and [*action.choices, None]
        if action.dest == "help":
            continue
        explanation = explanations.get(action.dest)
        is_negation = action.option_strings[0].startswith("--no_")
        if explanation is None or is_negation:
            action.help = argparse.SUPPRESS
        else:
            not_shown = (None, False, dataclasses.MISSING)
            default = "" if action.default in not_shown else f" (default: {action.default})"
            action.help = f"{explanation}{default}".replace("%", "%%")
            action.metavar = "VALUE"
        action.option_strings = action.option_strings[:1]  # --a_b, and not --a-b, which works too
        action.default = argparse.SUPPRESS
        action.required = False


def _or_null(convert: Any) -> Any:
    """Also convert the word `null`, which takes back what a recipe sets."""
    return wraps(convert)(lambda text: None if text == "null" else convert(text))


def _complete_flags(words: Sequence[str], classes: Sequence[Any]) -> list[str]:
    """Write `--flag` as `--flag=true`, so that the flag does not take a plain word behind it."""
    fields = [field for cls in classes for field in dataclasses.fields(cls)]
    flags = {field.name for field in fields if field.type in (bool, bool | None)}
    completed = []
    for word, following in zip(words, [*words[1:], ""], strict=False):
        is_flag = word.startswith("--") and word[2:].replace("-", "_") in flags
        has_value = following.lower() in ("true", "false")
        completed.append(f"{word}=true" if is_flag and not has_value else word)
    return completed


def _read_structure(text: str) -> Any:
    """A mapping or list in YAML, or text."""
    try:
        return yaml.safe_load(text) if text[:1] in ("{", "[") else text
    except yaml.YAMLError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not valid YAML. Write quotes around the whole, and a blank behind each "
            f'colon and comma, as in "{{a: b, c: d}}": {error}'
        ) from error


def _assign_words(
    words: Sequence[str], names: Sequence[str], classes: Sequence[Any]
) -> dict[str, Any]:
    """Give the plain words to fields, in order; a list takes those that the others leave."""
    types = {field.name: str(field.type) for cls in classes for field in dataclasses.fields(cls)}
    rest = list(words)
    n_spare = max(len(rest) - len(names), 0)
    assigned: dict[str, Any] = {}
    for name in names[: len(words)]:
        if "list" in types[name]:
            assigned[name] = [rest.pop(0) for _ in range(1 + n_spare)]
        else:
            assigned[name] = rest.pop(0)
    if rest:
        raise ValueError(f"unexpected word {rest[0]!r}: {_SEVERAL}")
    return assigned


def _is_recipe(word: str) -> bool:
    if word.endswith((".yaml", ".yml")):
        return True
    try:
        return not Path(word).exists() and find_recipe(word).is_file()
    except OSError:  # there is none, or the word is too long for the name of a file
        return False


def _read_explanations(cls: Any) -> dict[str, str]:
    """The fields that the docstrings of a dataclass and its bases explain under `Attributes:`."""
    explanations = {}
    for base in reversed(cls.__mro__):
        attributes = inspect.cleandoc(base.__doc__ or "").partition("\nAttributes:\n")[2]
        for names, text in re.findall(
            r"^    (\w+(?:, \w+)*): (.+(?:\n {5,}.+)*)", attributes, re.MULTILINE
        ):
            for name in names.split(", "):
                explanations[name] = " ".join(text.split())
    return explanations
