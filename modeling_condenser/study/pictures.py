"""The map of a study: passages of a few topics, by their vectors."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from datasets import Dataset
from matplotlib.figure import Figure

from modeling_condenser.evaluation.plots import make_panels

_TOPICS, _PASSAGES = 8, 40  # the titles with most passages, and passages of each


def choose_topics(passages: Dataset) -> dict[str, list[int]]:
    """Titles with most passages -> rows of some of their passages; empty without such titles."""
    rows = defaultdict(list)
    for row, title in enumerate(passages["title"]):
        rows[title].append(row)
    rows.pop("", None)
    most = sorted(rows, key=lambda title: (-len(rows[title]), title))[:_TOPICS]
    return {title: rows[title][:_PASSAGES] for title in most if len(rows[title]) > 1}


def plot_map(vectors: Mapping[str, np.ndarray], topics: Mapping[str, Sequence[int]]) -> Figure:
    """Draw the vectors of passages in two dimensions by t-SNE (thesis, Figure B.2).

    Args:
        vectors: title of a panel -> (N, D), the passages of all topics one after the other.
        topics: topic -> its passages.
    """
    from sklearn.manifold import TSNE  # takes a second

    names = [topic for topic, rows in topics.items() for _ in rows]
    figure, panels = make_panels(list(vectors), height=3.6, width=4.5)
    for panel, found in zip(panels, vectors.values(), strict=True):
        units = found / np.linalg.norm(found, axis=1, keepdims=True).clip(min=1e-12)
        perplexity = min(30, (len(found) - 1) / 3)
        places = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(units)
        for topic in topics:
            x, y = places[[name == topic for name in names]].T
            panel.scatter(x, y, s=12, label=topic[:30])
        panel.set_xticks([])
        panel.set_yticks([])
    panels[-1].legend(fontsize="xx-small")
    return figure
