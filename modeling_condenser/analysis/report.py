"""What an analysis found: the figures of its models in, Markdown and pictures out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from modeling_condenser.repository.curves import draw_entropies, draw_readiness
from modeling_condenser.repository.markdown import escape, table
from modeling_condenser.repository.readiness import (
    ENTROPY_FILE,
    HOW_TO_READ,
    readiness_table,
    titled_measures,
)
from modeling_condenser.repository.readiness import READINESS_FILE as CURVES_FILE

from .readiness import Readiness
from .run_models import Measurable

_MOST_LINES = 10  # of the picture of entropies; of more models, so many evenly


@dataclass(frozen=True)
class Analysis:
    """What was measured.

    Attributes:
        models: that were measured, in their order.
        readiness: of each.
        runs: name of a run -> numbers of its models among them.
        facts: settings, sample, machine.
    """

    models: Sequence[Measurable]
    readiness: Sequence[Readiness]
    runs: Mapping[str, Sequence[int]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def entry(self, number: int) -> dict[str, float]:
        """A model's figures as an entry of a log."""
        model = self.models[number]
        when = {"step": model.step, "num_input_tokens_seen": model.tokens_seen}
        known = {name: value for name, value in when.items() if value is not None}
        return {**self.readiness[number].logs(), **known}


def draw_analysis(analysis: Analysis) -> dict[str, bytes]:
    """File name -> picture: entropy over layers, and the course of runs of several models."""
    lines = {m.label: r.entropy.layers for m, r in _pairs(analysis)}
    kept = _evenly(list(lines), _MOST_LINES)
    even = analysis.readiness[0].entropy.even
    pictures = {ENTROPY_FILE: draw_entropies({"": {k: lines[k] for k in kept}}, even=even)}
    runs = {
        name.rstrip("/").rpartition("/")[2]: [analysis.entry(number) for number in numbers]
        for name, numbers in analysis.runs.items()
        if len(numbers) > 1
    }
    if runs:
        pictures[CURVES_FILE] = draw_readiness(runs)
    return pictures


def write_report(analysis: Analysis, pictures: Sequence[str]) -> str:
    """The report: all measures, entropy by layer with differences from the first model."""
    parts = ["# Readiness", HOW_TO_READ, measures_table(analysis)]
    if CURVES_FILE in pictures:
        parts.append(f"![Measures of readiness over the tokens seen]({CURVES_FILE})")
    parts += ["## CLS attention entropy by layer, in nats", entropy_table(analysis)]
    if ENTROPY_FILE in pictures:
        parts.append(f"![CLS attention entropy by layer]({ENTROPY_FILE})")
    return "\n\n".join(parts) + "\n"


def measures_table(analysis: Analysis) -> str:
    """Measures of all models: two beside each other with their difference, more one a row."""
    entries = [analysis.entry(number) for number in range(len(analysis.models))]
    labels = [escape(model.label) for model in analysis.models]
    if len(entries) <= 2:
        return readiness_table(dict(zip(labels, entries, strict=True)))
    titles = titled_measures(entries)
    rows = [
        [label, *(f"{entry[name]:.4f}" if name in entry else "" for name in titles)]
        for label, entry in zip(labels, entries, strict=True)
    ]
    return table(["", *titles.values()], rows)


def entropy_table(analysis: Analysis) -> str:
    """Entropy of each layer, with the difference from the first model's in brackets."""
    first = analysis.readiness[0].entropy.layers
    n_layers = max(len(r.entropy.layers) for r in analysis.readiness)
    rows = []
    for number, (model, readiness) in enumerate(_pairs(analysis)):
        layers = readiness.entropy.layers
        cells = [f"{value:.3f}" for value in layers]
        if number and len(layers) == len(first):
            pairs = zip(layers, first, strict=True)
            cells = [f"{after:.3f} ({after - before:+.3f})" for after, before in pairs]
        rows.append([escape(model.label), *cells, *[""] * (n_layers - len(layers))])
    even = analysis.readiness[0].entropy.even
    listing = table(["", *(str(layer) for layer in range(1, n_layers + 1))], rows)
    return f"{listing}\n\nEven attention to all tokens has {even:.3f}."


def _pairs(analysis: Analysis) -> list[tuple]:
    return list(zip(analysis.models, analysis.readiness, strict=True))


def _evenly(labels: list[str], at_most: int) -> list[str]:
    if len(labels) <= at_most:
        return labels
    last = len(labels) - 1
    return [labels[round(i * last / (at_most - 1))] for i in range(at_most)]
