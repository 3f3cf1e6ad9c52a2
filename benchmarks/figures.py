"""Collect the figures of the result pages in one table.

    python -m benchmarks.figures docs/results

Writes figures.csv: a row for each cell of the tables that have columns of numbers, with the page,
the section, the number of the table in it, the labels of row and column, and the cell.
"""

import argparse
import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path

FIGURES_FILE = "figures.csv"
_FIELDS = ("page", "section", "table", "row", "column", "value")
_MARKS = re.compile(r"\*\*|`|\[([^]]*)\]\([^)]*\)")
_LABELS = ("labels",)  # columns of numbers that name a row


def main() -> None:
    """Write the table beside the pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    (folder / FIGURES_FILE).write_text(figures_of(folder), encoding="utf-8")


def figures_of(folder: Path) -> str:
    """The CSV of all pages of a folder."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_FIELDS)
    for page in sorted(folder.glob("*.md")):
        for section, number, lines in _find_tables(page.read_text(encoding="utf-8")):
            for figure in _read_table(lines):
                writer.writerow((page.name, section, number, *figure))
    return text.getvalue()


def _find_tables(page: str) -> Iterator[tuple[str, int, list[str]]]:
    """Section, number in it, and lines of each table."""
    section, number = "", 0
    for block in re.split(r"\n{2,}", page):
        lines = block.splitlines()
        if block.startswith("#"):
            section, number = lines[0].strip("# "), 0
        elif block.startswith("| "):
            number += 1
            yield section, number, lines


def _read_table(lines: list[str]) -> Iterator[tuple[str, str, str]]:
    """Row, column and value of each cell under a heading that is aligned to the right."""
    header, alignment, *rows = map(_cells, lines)
    is_value = [
        mark.endswith(":") and name not in _LABELS
        for name, mark in zip(header, alignment, strict=True)
    ]
    columns, first = _full_names(header), ""
    for cells in rows:
        first = cells[0] = cells[0] or first
        labels = [cell for cell, value in zip(cells, is_value, strict=True) if cell and not value]
        for column, cell, value in zip(columns, cells, is_value, strict=True):
            if value and cell:
                yield ", ".join(labels), column, cell


def _full_names(header: list[str]) -> list[str]:
    """Names of columns without what is said once for several, as in `MRR@10, no labels`."""
    names, group = list[str](), ""
    for name in header:
        if found := re.match(r"(.+?)[,:] ", name):
            group = found[1]
        elif name == "p" or name.startswith("with "):
            name = f"{names[-1]}, {name}"
        elif group and header.count(name) > 1:
            name = f"{group}, {name}"
        names.append(name)
    return names


def _cells(line: str) -> list[str]:
    return [_MARKS.sub(r"\1", cell).strip() for cell in line.strip()[1:-1].split("|")]


if __name__ == "__main__":
    main()
