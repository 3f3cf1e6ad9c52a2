"""What the commands that run a recipe share: `[WORDS] [--field value ...]` on their line."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any


def read_settings(
    command: str,
    words: list[str],
    *classes: type,
    nested: Mapping[str, Sequence[type]] | None = None,
) -> dict[str, Any]:
    """Parse a recipe command's words into settings; prints the fields and exits on --help.

    Args:
        command: its name, for the help.
        words: RECIPE and `--field value` changes.
        *classes: dataclasses whose fields the recipe may hold.
        nested: field that is a mapping -> dataclasses of the fields in it, for the help.
    """
    import dataclasses

    from modeling_condenser.runs.recipe import read_recipe

    own, library = classes
    fields = [f.name for f in dataclasses.fields(own)]
    inner = "".join(
        f"Field {name}, a mapping such as {{{dataclasses.fields(parts[-1])[0].name}: 100}}, of:"
        "\n\n" + "\n\n".join(str(part.__doc__) for part in parts) + "\n\n"
        for name, parts in (nested or {}).items()
    )
    parser = argparse.ArgumentParser(
        prog=f"condenser {command}",
        description="Run a recipe: a YAML file of fields, each of which --field value overrides."
        "\n\n"
        f"Own fields: {', '.join([*fields, *(nested or {})])}.\n\n{_explain(own)}\n\n{inner}"
        f"Further fields: all of {library.__module__.split('.')[0]}' {library.__name__}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "recipe", metavar="RECIPE", help="YAML file, or the name of a shipped recipe"
    )
    recipe, changes = parser.parse_known_args(words)
    return read_recipe(recipe.recipe, changes)


def _explain(settings: type) -> str:
    """The docstrings of a dataclass and of the dataclasses that it extends."""
    import dataclasses

    parts = [cls.__doc__ for cls in settings.__mro__ if dataclasses.is_dataclass(cls)]
    return "\n\n".join(map(str, parts))


def read_words_and_settings(
    command: str,
    words: list[str],
    named: Mapping[str, tuple[str, str]],
    *classes: type,
    description: str | None,
) -> dict[str, Any]:
    """Parse `WORD ... [--recipe RECIPE] [--field value ...]`; prints the help and exits on --help.

    Args:
        command: its name.
        words: what stands behind it.
        named: field that is a word of its own -> what the usage calls it, and what it is. One
            called "MODEL ..." is one or more words.
        *classes: dataclasses of all fields.
        description: what the command does.

    Returns:
        The fields that were set. What the line says overrides the recipe.
    """
    import dataclasses

    from modeling_condenser.runs.recipe import parse_changes, read_recipe

    fields = [f.name for cls in classes for f in dataclasses.fields(cls) if f.name not in named]
    usage = " ".join(metavar for metavar, _ in named.values())
    parser = argparse.ArgumentParser(
        prog=f"condenser {command}",
        usage=f"condenser {command} {usage} [--recipe RECIPE] [--field value ...]",
        description="\n\n".join(
            [
                f"{description}\nFields, each of which --field value sets: {', '.join(fields)}.",
                *(str(cls.__doc__) for cls in classes),
            ]
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, (metavar, what) in named.items():
        word = metavar.removesuffix(" ...")
        parser.add_argument(name, metavar=word, nargs="+" if word != metavar else None, help=what)
    plain, changes = _separate(words)
    arguments = vars(parser.parse_args(plain))
    settings = parse_changes(changes)
    recipe = settings.pop("recipe", None)
    return {**(read_recipe(recipe) if recipe else {}), **settings, **arguments}


def _separate(words: list[str]) -> tuple[list[str], list[str]]:
    """Tell what a command is about from the changes to its settings, wherever they stand.

    Args:
        words: such as `a b --split dev collection --depth=10`.

    Returns:
        The plain words (and -h or --help), and the `--field value` words.
    """
    plain: list[str] = []
    changes: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in ("-h", "--help") or not word.startswith("--"):
            plain.append(word)
        else:
            changes.append(word)
            if "=" not in word:
                changes.extend(w for w in [next(rest, None)] if w is not None)
    return plain, changes
