"""A writer of text files."""

import gzip
from collections.abc import Sequence
from pathlib import Path


def write_lines(path: Path, lines: Sequence[str]) -> Path:
    """Write a text file, compressed if its name ends in .gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path
