"""The card's section of readiness: what was measured while training in, tables and pictures out."""

from collections.abc import Mapping, Sequence

from .markdown import counted, table
from .provenance import Stage
from .readiness_curves import draw_entropies, draw_readiness
from .readiness_log import EVEN_ENTROPY, Entry, layer_entropies, titled_measures
from .training_section import label_stages

READINESS_FILE = "readiness.png"
ENTROPY_FILE = "attention_entropy.png"

HOW_TO_READ = (
    "The rises say how much the head takes from the dense vector: near zero, it does not read it "
    "yet, and where they no longer grow, more steps of the same gain little. Entropy is of the CLS "
    "token's attention, in nats (natural logarithm), averaged over heads and texts: the less it "
    "differs from that of the fine-tuned model, the less fine-tuning has to change (Gao & Callan "
    "2021, section 5). Lower alignment means that texts which belong together are closer, lower "
    "uniformity that vectors fill the sphere more evenly (Wang & Isola 2020)."
)


def measured_stages(stages: Sequence[Stage]) -> dict[str, Sequence[Entry]]:
    """Label -> entries of readiness, of the stages that have some."""
    labelled = label_stages(stages)
    return {label: stage.readiness for label, stage in labelled.items() if stage.readiness}


def readiness_section(stages: Sequence[Stage]) -> str | None:
    """Readiness at the start and at the end of each stage; None where it was not measured."""
    measured = measured_stages(stages)
    if not measured:
        return None
    parts = ["## Readiness", HOW_TO_READ]
    if _has_curve(measured):
        parts.append(f"![Measures of readiness over the tokens seen]({READINESS_FILE})")
    if _entropy_lines(measured):
        parts.append(f"![CLS attention entropy by layer, before and after]({ENTROPY_FILE})")
    for label, entries in measured.items():
        times = counted(len(entries), "time")
        parts += [f"### {label}: measured {times}", readiness_table(_ends(entries))]
    return "\n\n".join(parts)


def readiness_table(columns: Mapping[str, Entry]) -> str:
    """Measures as rows, a column for each label; and the difference, where there are two."""
    entries = list(columns.values())
    header = ["", *columns, *(["difference"] if len(entries) == 2 else [])]
    rows = []
    for name, title in titled_measures(entries).items():
        row = [title, *(_figure(entry.get(name)) for entry in entries)]
        if len(entries) == 2:
            row.append(_difference(entries[1].get(name), entries[0].get(name)))
        rows.append(row)
    return table(header, rows)


def draw_pictures(stages: Sequence[Stage]) -> dict[str, bytes]:
    """File name -> picture, of those that the section shows."""
    measured = measured_stages(stages)
    pictures = {}
    if _has_curve(measured):
        pictures[READINESS_FILE] = draw_readiness(measured)
    if lines := _entropy_lines(measured):
        even = [entry.get(EVEN_ENTROPY) for entries in measured.values() for entry in entries]
        pictures[ENTROPY_FILE] = draw_entropies(lines, even=even[-1])
    return pictures


def _has_curve(measured: Mapping[str, Sequence[Entry]]) -> bool:
    return any(len(entries) > 1 for entries in measured.values())


def _ends(entries: Sequence[Entry]) -> dict[str, Entry]:
    """The first and the last entry, by their steps."""
    ends = [entries[0], entries[-1]] if len(entries) > 1 else [entries[0]]
    return {_said(entry): entry for entry in ends}


def _said(entry: Entry) -> str:
    step = int(entry.get("step", 0))
    return "start" if step == 0 else f"step {step:,}"


def _entropy_lines(measured: Mapping[str, Sequence[Entry]]) -> dict[str, dict[str, list[float]]]:
    """Stage -> which end of it -> entropies of the layers."""
    panels = {}
    for label, entries in measured.items():
        lines = {said: layer_entropies(entry) for said, entry in _ends(entries).items()}
        if lines := {said: entropies for said, entropies in lines.items() if entropies}:
            panels[label] = lines
    return panels


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _difference(after: float | None, before: float | None) -> str:
    return "" if after is None or before is None else f"{after - before:+.4f}"
