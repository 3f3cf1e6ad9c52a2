"""Training curves: the logs of pre-training runs in, one picture out, always of the same bytes."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from modeling_condenser.runs.whole_files import whole_file

_PANELS = (
    ("late_loss", "late MLM loss (nats a masked token)"),
    ("head_loss", "head MLM loss (nats a masked token)"),
    ("swap_cost", "swap cost (nats a masked token)"),
    ("bow_loss", "bag-of-words loss (nats a block)"),
    ("contrastive_loss", "contrastive loss (nats a text)"),
)
_TOKENS = ("num_input_tokens_seen", 1e6, "tokens seen (millions)")
_STEPS = ("step", 1, "steps")
# Neither date nor version, so that what did not change is not committed again.
_NO_METADATA: dict[str, dict[str, Any]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
}

Log = Sequence[Mapping[str, float]]


def has_curves(log: Log) -> bool:
    """Whether a log holds the losses of pre-training."""
    losses = {"head_loss", "late_loss", "bow_loss", "contrastive_loss"}
    return any(not losses.isdisjoint(entry) for entry in log)


def plot_curves(runs: Mapping[str, Log], out: Path) -> Path:
    """Draw losses and swap cost over the tokens seen, a line for each run.

    Args:
        runs: label -> entries of its log; see `training_log.py` for the names in them.
        out: picture to write, .png or .svg.

    Returns:
        `out`.
    """
    with whole_file(out) as file:
        file.write(draw_curves(runs, kind=out.suffix))
    return out


def draw_curves(runs: Mapping[str, Log], *, kind: str = ".png") -> bytes:
    """The picture of `plot_curves`: the same bytes for the same logs.

    Args:
        runs: label -> entries of its log.
        kind: ".png" or ".svg".
    """
    logged = {key for log in runs.values() for entry in log for key in entry}
    # A run shorter than its logging interval leaves no entry: then the first panel stays empty.
    panels = [panel for panel in _PANELS if panel[0] in logged] or [_PANELS[0]]
    figure = Figure(figsize=(4.2 * len(panels), 3.4), layout="constrained")
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    over, scale, name = _TOKENS if _count_tokens(runs) else _STEPS
    for axes, (key, title) in zip(all_axes, panels, strict=True):
        for number, (label, log) in enumerate(runs.items()):
            entries = [entry for entry in log if key in entry and over in entry]
            if entries:
                x = [entry[over] / scale for entry in entries]
                values = [entry[key] for entry in entries]
                marker = "o" if len(entries) == 1 else None
                axes.plot(x, values, label=label, color=f"C{number}", marker=marker)
        axes.set_title(title, fontsize=9)
        axes.set_xlabel(name, fontsize=9)
        axes.grid(alpha=0.3)
        if len(axes.lines) and len(runs) > 1:
            axes.legend(fontsize=8)
    return save_figure(figure, kind)


def save_figure(figure: Figure, kind: str = ".png") -> bytes:
    """A figure as a picture, .png or .svg: the same bytes each time."""
    stream = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "condenser"}):
        figure.savefig(stream, format=kind[1:], dpi=150, metadata=_NO_METADATA[kind])
    return stream.getvalue()


def _count_tokens(runs: Mapping[str, Log]) -> bool:
    """Whether all runs counted tokens; the Trainer can be told not to."""
    return all("num_input_tokens_seen" in entry for log in runs.values() for entry in log)
