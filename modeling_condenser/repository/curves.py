"""Training curves: the logs of pre-training runs in, one picture out."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from modeling_condenser.runs.run_folder import read_log

_PANELS = (
    ("late_loss", "late MLM loss (nats a masked token)"),
    ("head_loss", "head MLM loss (nats a masked token)"),
    ("swap_cost", "swap cost (nats a masked token)"),
)


def plot_curves(runs: Mapping[str, Path], out: Path) -> Path:
    """Draw losses and swap cost over the tokens seen, a line for each run.

    Args:
        runs: label -> finished pre-training run folder.
        out: picture to write, .png or .svg.

    Returns:
        `out`.
    """
    logs = {label: read_log(folder) for label, folder in runs.items()}
    logged = {key for log in logs.values() for entry in log for key in entry}
    # A run shorter than its logging interval leaves no entry: then the first panel stays empty.
    panels = [panel for panel in _PANELS if panel[0] in logged] or [_PANELS[0]]
    figure = Figure(figsize=(4.2 * len(panels), 3.4), layout="constrained")
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (key, title) in zip(all_axes, panels, strict=True):
        for number, (label, log) in enumerate(logs.items()):
            entries = [entry for entry in log if key in entry]
            if entries:
                tokens = [entry["num_input_tokens_seen"] / 1e6 for entry in entries]
                values = [entry[key] for entry in entries]
                axes.plot(tokens, values, label=label, color=f"C{number}")
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("tokens seen (millions)", fontsize=9)
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize=8)
    figure.savefig(out, dpi=150)
    return out
