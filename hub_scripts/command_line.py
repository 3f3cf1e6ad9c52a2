"""Reads the words of a verb: `condenser VERB [RECIPE.yaml] [WORD ...] [--field value ...]`.

The fields are those of the dataclasses of a stage, by transformers' `HfArgumentParser`. Some may
also be given as plain words. Fields of the command line override those of the recipe.
"""

import argparse
import dataclasses
import inspect
import re
from collections.abc import Sequence
from difflib import get_close_matches
from types import UnionType
from typing import Any, NoReturn, Union, get_args, get_origin

import yaml
from transformers import HfArgumentParser

from modeling_condenser.files.settings import find_recipe, read_recipe, refuse_ambiguous


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
    if unknown:
        _refuse_unknown(unknown[0], classes)
    if plain and (not positional or _is_recipe(plain[0])):
        settings["recipe"] = plain.pop(0)
    settings.update(_assign_words(plain, [n for n in positional if n not in settings], classes))
    if recipe := settings.pop("recipe", None):
        settings = {**read_recipe(recipe), **settings}
    return settings


def _adjust_fields(parser: argparse.ArgumentParser, classes: Sequence[Any]) -> None:
    """Keep only what is stated, and explain fields by the docstrings of their dataclasses.

    Fields without an explanation, which are transformers' own, are not listed.
    """
    explanations: dict[str, str] = {}
    for cls in classes:
        explanations.update(_read_explanations(cls))
    for action in parser._actions:
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


def _complete_flags(words: Sequence[str], classes: Sequence[Any]) -> list[str]:
    """Write `--flag` as `--flag=true`, so that the flag does not take a plain word behind it."""
    fields = [field for cls in classes for field in dataclasses.fields(cls)]
    flags = {field.name for field in fields if field.type in (bool, bool | None)}
    completed = []
    for word, following in zip(words, [*words[1:], ""], strict=True):
        is_flag = word.startswith("--") and word[2:].replace("-", "_") in flags
        has_value = following.lower() in ("true", "false")
        completed.append(f"{word}=true" if is_flag and not has_value else word)
    return completed


def _read_structure(text: str) -> Any:
    """A mapping or list in YAML, or text."""
    return yaml.safe_load(text) if text[:1] in ("{", "[") else text


def _refuse_unknown(word: str, classes: Sequence[Any]) -> NoReturn:
    known = [field.name for cls in classes for field in dataclasses.fields(cls)]
    name = word.lstrip("-").partition("=")[0].replace("-", "_")
    nearest = get_close_matches(name, known, n=1)
    hint = f"Did you mean --{nearest[0]}?" if nearest else "--help lists the fields."
    raise ValueError(f"There is no field {word!r}. {hint}")


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
        raise ValueError(f"unexpected word {rest[0]!r}; --help shows the usage.")
    return assigned


def _is_recipe(word: str) -> bool:
    if word.endswith((".yaml", ".yml")):
        return True
    try:
        recipe = find_recipe(word)
    except OSError:  # there is none, or the word is too long for the name of a file
        return False
    if recipe.suffix != ".yaml":
        return False
    refuse_ambiguous(word, "a recipe")
    return True


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
