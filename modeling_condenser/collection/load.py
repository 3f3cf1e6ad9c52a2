"""Any collection by its name: the layout is found by what lies there."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from datasets import Dataset

from .beir import is_beir_folder, load_beir_collection, load_beir_passages
from .collection import Collection
from .configured import has_configurations, load_configured_collection, load_configured_passages
from .dpr import is_dpr_folder, load_dpr_collection, load_dpr_passages
from .hub import load_hub_collection, load_hub_passages
from .msmarco import is_msmarco_folder, load_msmarco_collection, load_msmarco_passages

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")


class Layout(NamedTuple):
    """One way that a collection can lie in a folder."""

    marks: str
    is_in: Callable[[Path], bool]
    load_collection: Callable[..., Collection]
    load_passages: Callable[[Path], Dataset]


_LAYOUTS = (
    Layout("corpus.jsonl (BEIR)", is_beir_folder, load_beir_collection, load_beir_passages),
    Layout("psgs_w100.tsv (DPR)", is_dpr_folder, load_dpr_collection, load_dpr_passages),
    Layout(
        "msmarco-docs.tsv, para.txt, corpus.tsv or collection.tsv (MS MARCO)",
        is_msmarco_folder,
        load_msmarco_collection,
        load_msmarco_passages,
    ),
    Layout(
        "a README.md that declares corpus and queries (a copy of a Hub data set)",
        has_configurations,
        load_configured_collection,
        load_configured_passages,
    ),
)


def load_collection(source: str | Path, *, split: str = "test") -> Collection:
    """Load one split of a collection.

    Args:
        source: a folder in the layout of BEIR, MS MARCO or DPR, or `owner/name`, a data set on the
            Hub (`owner/name@revision` for one of its commits), in the layout of BEIR or MTEB. See
            the modules of those names.
        split: whose queries and judgements to load, as the layout names it: "test" for most, but
            "dev.small" or "dl19" for MS MARCO and "nq-test" for DPR.

    Returns:
        All passages, and the queries that the split judges, by passages or by answers.

    Raises:
        FileNotFoundError: there is no such collection, or one of its files is missing.
        ValueError: unknown layout or split, or files that are malformed or do not fit together; the
            message names file and line, or id.
    """
    layout = _find_layout(source)
    if layout is None:
        return load_hub_collection(str(source), split=split)
    return layout.load_collection(Path(source), split=split)


def load_passages(source: str | Path) -> Dataset:
    """Load the passages of a collection alone: columns `_id`, `title`, `text`.

    Args:
        source: see `load_collection`.

    Raises:
        FileNotFoundError: there is no such collection, or its passages are missing.
        ValueError: unknown layout, malformed file or duplicate id; the message names the line.
    """
    layout = _find_layout(source)
    return load_hub_passages(str(source)) if layout is None else layout.load_passages(Path(source))


def _find_layout(source: str | Path) -> Layout | None:
    """The layout of a folder; None for a name on the Hub."""
    folder = Path(source)
    if not folder.is_dir():
        if not folder.exists() and _HUB_NAME.fullmatch(str(source)):
            return None
        what = "is a file" if folder.exists() else "does not exist"
        raise FileNotFoundError(
            f"no collection at {source}: it {what}, expected a folder, or owner/name on the Hub;"
            " mend the path"
        )
    for layout in _LAYOUTS:
        if layout.is_in(folder):
            return layout
    held = sorted(path.name for path in folder.iterdir())
    raise FileNotFoundError(
        f"no collection in {folder}: it holds {', '.join(held[:8]) or 'nothing'}"
        f"{', …' if len(held) > 8 else ''}, expected"
        f" {'; or '.join(layout.marks for layout in _LAYOUTS)}; add the passages, or mend the path"
    )
