"""Write the summary of docs/results: one table and one chart of the figures on a page.

    python -m benchmarks.results_summary

The figures are those of docs/results/published-start-whole.md. The table stands between two marks,
in docs/results/README.md and in README.md; the chart is docs/results/published-start.png.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
PAGE, CHART = RESULTS / "published-start-whole.md", RESULTS / "published-start.png"
SUMMARIES = (RESULTS / "README.md", ROOT / "README.md")
START, END = "<!-- summary -->", "<!-- end of summary -->"

# Row of the summary -> the table of the page, and its row there.
ALONE, FUSED = "alone", "with BM25"
ROWS = {
    "BM25": (ALONE, "BM25"),
    "untouched": (ALONE, "untouched"),
    "adapted": (ALONE, "adapt without dev queries"),
    "untouched, with BM25": (FUSED, "untouched"),
    "adapted, with BM25": (FUSED, "adapt without dev queries"),
}
# Markers and colours (Okabe and Ito's, which colour-blind people can tell apart) of the rows.
STYLES = {
    "BM25": ("x", "grey"),
    "untouched": ("o", "#56B4E9"),
    "adapted": ("o", "#0072B2"),
    "untouched, with BM25": ("D", "#E69F00"),
    "adapted, with BM25": ("D", "#D55E00"),
}

Table = Mapping[str, Mapping[str, str]]
"""Row -> column -> figure, as on the page."""


def read_tables(page: str) -> dict[str, Table]:
    """The tables of nDCG@10 without labels, by what is searched: `alone` or `with BM25`."""
    tables = {}
    for block in re.findall(r"^\| nDCG@10, no labels, .*(?:\n\|.*)+", page, re.MULTILINE):
        header, _, *lines = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()
        ]
        name = header[0].removeprefix("nDCG@10, no labels, ")
        tables[name] = {line[0]: dict(zip(header[1:], line[1:], strict=True)) for line in lines}
    return tables


def summarize(page: str) -> Table:
    """The rows of the summary, with the marks of significance."""
    tables = read_tables(page)
    return {name: tables[kind][row] for name, (kind, row) in ROWS.items()}


def as_markdown(rows: Table) -> str:
    """The summary as a table; the best figure of a column is bold."""
    columns = list(next(iter(rows.values())))
    best = {column: max(_number(row[column]) for row in rows.values()) for column in columns}
    lines = [["nDCG@10", *columns], ["---", *["---:"] * len(columns)]]
    for name, row in rows.items():
        cells = [
            f"**{text}**" if _number(text := row[column]) == best[column] else text
            for column in columns
        ]
        lines.append([name, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def draw(rows: Table) -> Figure:
    """The figures as points, a line for each collection."""
    columns = list(next(iter(rows.values())))
    figure = Figure(figsize=(7.5, 3.4), layout="constrained")
    axes = figure.subplots()
    for name, row in rows.items():
        marker, colour = STYLES[name]
        figures = [_number(row[column]) for column in columns]
        axes.plot(figures, columns, linestyle="", marker=marker, color=colour, label=name)
    axes.invert_yaxis()
    axes.grid(axis="y", alpha=0.4)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel("nDCG@10 without labels")
    figure.legend(loc="outside upper center", ncols=5, frameon=False, fontsize="small")
    return figure


def _number(text: str) -> float:
    return float(text.split()[0])


def main() -> None:
    rows = summarize(PAGE.read_text())
    for file in SUMMARIES:
        before, rest = file.read_text().split(START)
        after = rest.split(END)[1]
        file.write_text(f"{before}{START}\n\n{as_markdown(rows)}\n\n{END}{after}")
    draw(rows).savefig(CHART, dpi=150)


if __name__ == "__main__":
    main()
