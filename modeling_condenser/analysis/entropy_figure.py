"""The figure of attention entropies over the layers."""

import io
from collections.abc import Mapping

from .titles import ENTROPY

_LAYER, _EVEN = f"{ENTROPY}_layer_", f"{ENTROPY}_even"


def layer_entropies(entry: Mapping[str, float]) -> list[float]:
    """Entropies of the layers, from the first to the last."""
    numbers = sorted(int(n.removeprefix(_LAYER)) for n in entry if n.startswith(_LAYER))
    return [entry[f"{_LAYER}{number}"] for number in numbers]


def draw_entropies(entries: Mapping[str, Mapping[str, float]]) -> bytes:
    """Draw CLS attention entropy over the layers, as in Figure 2 of Gao & Callan (2021).

    `entries` maps labels to entries with readiness. The result is a PNG file.
    """
    from matplotlib.figure import Figure  # takes half a second
    from matplotlib.text import Text

    figure = Figure(figsize=(5.5, 3.0), layout="constrained")
    axes = figure.subplots()
    for label, entry in entries.items():
        values = layer_entropies(entry)
        axes.plot(range(1, len(values) + 1), values, label=label, marker="o", markersize=3)
    for even in {entry[_EVEN] for entry in entries.values() if _EVEN in entry}:
        axes.axhline(even, color="grey", label="even attention")
    axes.set_title("CLS attention entropy (nats)", fontsize=8)
    axes.set_xlabel("layer", fontsize=8)
    axes.legend(fontsize=8, frameon=False)
    for text in figure.findobj(Text):
        text.set_parse_math(False)  # dollar signs in a name enclose no formula
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=150)
    return stream.getvalue()
