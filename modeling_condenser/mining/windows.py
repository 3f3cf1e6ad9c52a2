"""Windows: the queries of a run in parts, each written whole, then put together.

windows/identity.json     what the parts belong to
windows/00000.*.jsonl     the lines of one part, one file for each kind of line
windows/00000.json        written after them: their checksums, and the part's counts

A process can be killed at any point: what its last line names is whole and is not mined again.
"""

import json
import logging
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from modeling_condenser.runs.whole_files import (
    checksum_file,
    remove_partials,
    whole_file,
    write_json,
)

logger = logging.getLogger(__name__)

WINDOWS_FOLDER, IDENTITY_FILE = "windows", "identity.json"


class Windows:
    """The parts of a mining run.

    Args:
        run_folder: that `windows/` lies in, and the files that are made of it.
        files: the names of those files.
        identity: what the run depends on beside its recipe.

    Raises:
        ValueError: the folder holds parts of another run.
    """

    def __init__(
        self, run_folder: Path, files: Iterable[str], *, identity: Mapping[str, Any]
    ) -> None:
        self._run_folder = run_folder
        self._folder = run_folder / WINDOWS_FOLDER
        self._files = tuple(files)
        self._folder.mkdir(exist_ok=True)
        file = self._folder / IDENTITY_FILE
        if not file.is_file():
            write_json(file, dict(identity))
        before = _read(file) or {}
        changed = [name for name in identity if before.get(name) != identity[name]]
        if changed:
            raise ValueError(
                f"{run_folder} was begun with other contents (changed since: "
                f"{', '.join(changed)}): choose another output_dir, or remove this one."
            )

    def counts(self, number: int) -> Counter[str] | None:
        """The counts of a part that is whole; None if it has to be mined."""
        seal = self._folder / f"{number:05d}.json"
        if not seal.is_file():
            return None
        content = _read(seal)
        if content is None or not all(
            part.is_file() and checksum_file(part) == content["files"][name]
            for name, part in self._parts(number).items()
        ):
            logger.warning("Part %d of %s is damaged; it is mined again.", number, self._folder)
            return None
        return Counter(content["counts"])

    def write(
        self, number: int, lines: Iterable[tuple[str, str]], counts: Mapping[str, int]
    ) -> None:
        """Write a part, and then what says that it is whole.

        Args:
            number: of the part, from 0.
            lines: each with the name of the file that it belongs to.
            counts: of the part.
        """
        parts = self._parts(number)
        with ExitStack() as stack:
            open_files = {n: stack.enter_context(whole_file(part)) for n, part in parts.items()}
            for name, line in lines:
                open_files[name].write(line.encode())
        seal = {
            "files": {name: checksum_file(part) for name, part in parts.items()},
            "counts": dict(counts),
        }
        write_json(self._folder / f"{number:05d}.json", seal)

    def join(self, n_windows: int) -> None:
        """Make the run's files of all parts."""
        for name in self._files:
            remove_partials(self._run_folder, name)
            with whole_file(self._run_folder / name) as joined:
                for number in range(n_windows):
                    with self._parts(number)[name].open("rb") as part:
                        shutil.copyfileobj(part, joined)

    def _parts(self, number: int) -> dict[str, Path]:
        """The files of a part, by the names of the run's files."""
        return {name: self._folder / f"{number:05d}.{name}" for name in self._files}


def remove_windows(run_folder: Path) -> None:
    """Remove the parts of a run that is finished."""
    shutil.rmtree(run_folder / WINDOWS_FOLDER, ignore_errors=True)


def _read(file: Path) -> dict[str, Any] | None:
    """A JSON file; None if it is damaged."""
    try:
        return json.loads(file.read_text())
    except ValueError:
        return None
