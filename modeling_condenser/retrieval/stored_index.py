"""Indices and pages that are built once, in a folder that says what they were made from."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from modeling_condenser.runs.run_folder import whole_folder
from modeling_condenser.runs.whole_files import write_json


def build_once(file: Path, identity: Mapping[str, object], build: Callable[[Path], object]) -> None:
    """Build something, unless its folder holds one of the same identity, as `file` in it says.

    Args:
        file: in the folder of what is built, for the identity.
        identity: everything that it depends on.
        build: writes it into the folder that it is given.
    """
    folder = file.parent
    if not folder.exists() or not any(folder.iterdir()):
        with whole_folder(folder) as partial:
            build(partial)
            write_json(partial / file.name, identity)
    stored = json.loads(file.read_text()) if file.is_file() else {}
    if changed := [name for name, value in identity.items() if stored.get(name) != value]:
        raise ValueError(
            f"{folder} holds something else, made with another {', '.join(changed)}: name another"
            " folder, or remove this one to build it again."
        )
