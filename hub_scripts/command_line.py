"""The grammar of all verbs: `condenser VERB [RECIPE.yaml] [WORD ...] [--field value ...]`.

Fields are those of dataclasses, written with underscores or hyphens. The value of a field that may
be text is taken literally, unless it is null or in quotes, or is a [list] or {mapping} where the
field may be one and no file has this name. Values of other fields are YAML. A boolean field without
a value is true. Some fields may also be given as plain words.
"""

import argparse
import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from yaml import YAMLError

from modeling_condenser.files.settings import (
    check_value,
    find_recipe,
    is_path,
    is_required,
    parse_settings,
    parse_value,
    read_recipe,
    refuse_ambiguous,
)

_FLAGS = (bool, bool | None)  # types of fields that may stand alone
_QUOTED = re.compile(r"""'(?:[^']|'')*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)

Fields = Mapping[str, dataclasses.Field]


@dataclass(frozen=True)
class CommandLine:
    """A verb, the words behind it, and what the verb does."""

    verb: str
    words: Sequence[str]
    about: str | None = None

    def read(self, *classes: type, plain: Sequence[str] = (), further: str = "") -> dict[str, Any]:
        """Read the settings; print the fields and exit on `--help`.

        Args:
            *classes: dataclasses whose fields the help explains; unknown fields are not refused
                here, but where the settings are used.
            plain: names of the fields that may be plain words, in order. A list takes several
                words. The first word may also be a recipe file.
            further: text below the help, about further fields.

        Returns:
            The fields that were set; those of the command line override those of the recipe.
        """
        fields = {field.name: field for cls in classes for field in dataclasses.fields(cls)}
        usage_words = ["[RECIPE.yaml]", *map(str.upper, plain), "[--field value ...]"]
        usage = " ".join(["condenser", self.verb, *usage_words])
        if {"-h", "--help"} & set(self.words):
            _print_help(usage, classes, self.about, further)
            sys.exit(0)
        others, settings = _separate(self.words, fields)
        if others and (not plain or _is_recipe(others[0])):
            settings["recipe"] = others.pop(0)
        names = [name for name in plain if name not in settings]
        n_spare = max(len(others) - len(names), 0)
        for name in names[: len(others)]:
            if "list" in str(fields[name].type):  # it takes the words that the others leave
                settings[name] = [others.pop(0) for _ in range(1 + n_spare)]
            else:
                settings[name] = others.pop(0)
        if others:
            raise ValueError(f"unexpected word {others[0]!r}; --help shows the usage.")
        if recipe := settings.pop("recipe", None):
            settings = {**read_recipe(recipe), **settings}
        missing = [name for name in names if name not in settings and is_required(fields[name])]
        if missing:
            raise ValueError(f"{', '.join(missing)} is not given: {usage}")
        return settings

    def call(self, function: Callable, *, without: Collection[str] = ()) -> Any:
        """Call a function with the settings as its arguments, which its docstring explains.

        Its positional parameters may be plain words; the parameters in `without` cannot be set.
        """
        hints, fields, plain = get_type_hints(function), [], []
        for name, parameter in inspect.signature(function).parameters.items():
            default = [] if parameter.default is parameter.empty else [parameter.default]
            if name not in without:
                fields.append((name, hints[name], *default))
            if parameter.kind is not parameter.KEYWORD_ONLY:
                plain.append(name)
        explained = (function.__doc__ or "").replace("Args:", "Attributes:")
        cls: Any = dataclasses.make_dataclass("_", fields, namespace={"__doc__": explained})
        (filled,) = parse_settings(self.read(cls, plain=plain), cls)
        return function(**vars(filled))


def _separate(words: Sequence[str], fields: Fields) -> tuple[list[str], dict[str, Any]]:
    """Separate plain words from fields with values; some lists take all words up to a field.

    A field that is not among `fields`, such as the trainer's bf16, is true if no value follows.
    """
    plain: list[str] = []
    settings: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not re.match("--?[a-zA-Z]", word):
            plain.append(word)
            continue
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        field = fields.get(name)
        is_flag = field is not None and field.type in _FLAGS
        if not equals and is_flag and rest[:1] not in (["true"], ["false"]):
            value = "true"
        elif not equals and rest and not re.match("--[a-zA-Z]", rest[0]):
            value = rest.pop(0)
        elif not equals and field:
            raise ValueError(f"{word} needs a value.")
        elif not equals:
            value = "true"
        try:
            settings[name] = _read_value(value, field)
        except YAMLError as error:
            raise ValueError(f"The value of {word} is not valid YAML: {error}") from error
        if field and field.metadata.get("words") == "many" and settings[name] == value:
            settings[name] = [value]
            while rest and not rest[0].startswith("--"):
                settings[name].append(rest.pop(0))
    return plain, settings


def _read_value(value: str, field: dataclasses.Field | None) -> Any:
    """Read the value of a field, as text if the field may be text; see above."""
    if not field or not _may_be("text", field) or _may_be(1, field) or _may_be(True, field):
        return parse_value(value)
    if value == "null" or _QUOTED.fullmatch(value):
        read = parse_value(value)
        return read if read is None or isinstance(read, str) else value
    kinds = {"[": ["text"], "{": {"text": "text"}}
    is_structure = value[:1] in kinds and _may_be(kinds[value[:1]], field)
    return parse_value(value) if is_structure and not is_path(value) else value


def _may_be(value: Any, field: dataclasses.Field) -> bool:
    """Whether a field may have a value of this kind."""
    with suppress(ValueError):
        check_value(field.name, value, str if field.type is Path else field.type)
        return True
    return False


def _is_recipe(word: str) -> bool:
    with suppress(OSError):  # there is no such file, or the word is too long for a name
        recipe = find_recipe(word)
        if recipe != Path(word):
            refuse_ambiguous(word, "a recipe")
        word = str(recipe)
    return word.endswith((".yaml", ".yml"))


def _print_help(usage: str, classes: Sequence[type], about: str | None, further: str) -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        usage=usage, description=about, epilog=further, formatter_class=layout
    )
    for cls in classes:
        explained = _explanations(cls)
        for field in dataclasses.fields(cls):
            if text := explained.get(field.name):
                if field.default not in (dataclasses.MISSING, None, False):
                    text += f" (default: {field.default})"
                value = "[true|false]" if field.type in _FLAGS else "VALUE"
                parser.add_argument(f"--{field.name}", metavar=value, help=text.replace("%", "%%"))
    parser.print_help()


def _explanations(cls: type) -> dict[str, str]:
    """The attributes that the docstrings of a dataclass and its bases explain."""
    found = {}
    for base in reversed(cls.__mro__):
        attributes = inspect.cleandoc(base.__doc__ or "").partition("\nAttributes:\n")[2]
        for match in re.finditer(r"^    (\w+): (.+(?:\n {5,}.+)*)", attributes, re.MULTILINE):
            found[match[1]] = " ".join(match[2].split())
    return found
