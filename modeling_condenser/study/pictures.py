"""The pictures of a study: measures over labels, and a map of vectors."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from datasets import Dataset
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from modeling_condenser.evaluation.measures import Evaluation
from modeling_condenser.hub.training_log import as_png

CURVES_FILE, LABELS_FILE, FINETUNING_FILE = "curves.png", "labels.png", "finetuning.png"
MAP_FILE = "map.png"
_TOPICS, _PASSAGES = 8, 40  # of the map: the titles with most passages, and passages of each
_FONT_SIZE = 8
_SHIFT = 0.05  # of the arms' intervals, so that they do not hide each other


def draw_labels(
    groups: Mapping[str, Mapping[str, Evaluation]], horizontal: Evaluation | None = None
) -> bytes:
    """Draw each arm's means over the numbers of labels, with 95 % bootstrap intervals.

    Args:
        groups: "512 labels" -> arm -> measures; the same arms in each group.
        horizontal: BM25's measures, which need no labels.
    """
    arms = list(next(iter(groups.values())))
    measures = list(next(iter(groups.values()))[arms[0]].means)
    figure, panels = _figure(len(measures))
    for panel, measure in zip(panels, measures, strict=True):
        for number, arm in enumerate(arms):
            evaluations = [own[arm] for own in groups.values()]
            means = np.array([evaluation.means[measure] for evaluation in evaluations])
            bounds = np.array([e.interval(measure) or (np.nan, np.nan) for e in evaluations])
            panel.errorbar(
                np.arange(len(groups)) + _SHIFT * (number - len(arms) / 2),
                means,
                abs(bounds.T - means),
                marker=".",
                color=f"C{number % 10}",
                linestyle="-" if number < 10 else "--",
                label=arm,
            )
        if horizontal:
            panel.axhline(horizontal.means[measure], color="grey", linestyle=":", label="bm25")
        panel.set_xticks(range(len(groups)), [group.removesuffix(" labels") for group in groups])
        panel.set_xlabel("labels", fontsize=_FONT_SIZE)
        panel.set_title(measure, fontsize=_FONT_SIZE)
    panels[-1].legend(fontsize=_FONT_SIZE - 1)
    return as_png(figure)


def choose_topics(passages: Dataset) -> dict[str, list[int]]:
    """Titles with most passages -> rows of some of their passages; empty without such titles."""
    rows = defaultdict(list)
    for row, title in enumerate(passages["title"]):
        rows[title].append(row)
    rows.pop("", None)
    most = sorted(rows, key=lambda title: (-len(rows[title]), title))[:_TOPICS]
    return {title: rows[title][:_PASSAGES] for title in most if len(rows[title]) > 1}


def draw_map(vectors: Mapping[str, np.ndarray], topics: Mapping[str, Sequence[int]]) -> bytes:
    """Draw the vectors of passages in two dimensions by t-SNE (thesis, Figure B.2).

    Args:
        vectors: title of a panel -> (N, D), the passages of all topics one after the other.
        topics: topic -> its passages.
    """
    from sklearn.manifold import TSNE  # takes a second

    names = [topic for topic, rows in topics.items() for _ in rows]
    figure, panels = _figure(len(vectors))
    for panel, (title, found) in zip(panels, vectors.items(), strict=True):
        scale = np.linalg.norm(found, axis=1, keepdims=True).clip(min=1e-12)
        perplexity = min(30, (len(found) - 1) / 3)
        places = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(
            found / scale
        )
        for topic in topics:
            x, y = places[[name == topic for name in names]].T
            panel.scatter(x, y, s=12, label=topic[:30])
        panel.set_title(title, fontsize=_FONT_SIZE)
        panel.set_xticks([])
        panel.set_yticks([])
    panels[-1].legend(fontsize=_FONT_SIZE - 1)
    return as_png(figure)


def _figure(n_panels: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(4.5 * n_panels, 3.6), layout="constrained")
    panels = list(figure.subplots(1, n_panels, squeeze=False).flat)
    for panel in panels:
        panel.grid(alpha=0.3)
        panel.tick_params(labelsize=_FONT_SIZE)
    return figure, panels
