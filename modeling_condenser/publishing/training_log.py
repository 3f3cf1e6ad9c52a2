"""Training logs: the entries that provenance keeps, and the names and pictures of measures.

readiness/head_loss               head's loss on the fixed sample, nats a masked token
readiness/zero_cost               rise of that loss when the late CLS vectors are zeroed
readiness/swap_cost               rise of that loss when they are exchanged
readiness/entropy                 entropy of the CLS row of attention, nats, mean over layers
readiness/entropy_layer_K         the same of layer K, counted from 1
readiness/entropy_even            entropy of a row that attends to all tokens alike
readiness/alignment, /uniformity  of the dense vectors (Wang & Isola 2020)
readiness/zero_shot_MRR@10, ...   on a small collection; few_shot_... after fine-tuning
"""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

ENTROPY_FILE = "attention_entropy.png"
PREFIX = "readiness/"
ENTROPY, EVEN_ENTROPY = f"{PREFIX}entropy", f"{PREFIX}entropy_even"
_LAYER = f"{PREFIX}entropy_layer_"
_CURVES = {
    "late_loss": "late MLM loss (nats a masked token)",
    "head_loss": "head MLM loss (nats a masked token)",
    "swap_cost": "swap cost (nats a masked token)",
    "bow_loss": "bag-of-words loss (nats a block)",
    "contrastive_loss": "contrastive loss (nats a text)",
}
_TITLES = {
    **_CURVES,
    f"{PREFIX}head_loss": "head's loss (nats a masked token)",
    f"{PREFIX}zero_cost": "zero cost",
    f"{PREFIX}swap_cost": "swap cost",
    ENTROPY: "CLS attention entropy, mean over layers",
    f"{PREFIX}alignment": "alignment",
    f"{PREFIX}uniformity": "uniformity",
}
_EXPLANATIONS = {
    "late_loss": "Late loss: of the encoder's own output.",
    "head_loss": "Head loss: of the Condenser head, which reads the dense vector.",
    "swap_cost": "Swap cost: rise of the head's loss when dense vectors are exchanged in a batch; "
    "near zero, the head does not use the vector.",
    "bow_loss": "Bag-of-words loss: of the dense vector's prediction of the distinct tokens of its "
    "block, before its weight.",
    "contrastive_loss": "Contrastive loss: of finding a text's match among the texts of the batch.",
    f"{PREFIX}zero_cost": "Zero cost and swap cost: rise of the head's loss (nats a masked token) "
    "when the dense vectors are zeroed or exchanged. Near zero, the head does not use the "
    "vector; where they stop growing, more steps bring little.",
    ENTROPY: "Entropy: of the CLS token's attention, in nats, averaged over heads and texts. The "
    "closer it is to that of a fine-tuned model, the less fine-tuning has to change (Gao & Callan "
    "2021, section 5).",
    f"{PREFIX}alignment": "Lower alignment means that matching texts are closer, lower uniformity "
    "that vectors are spread more evenly (Wang & Isola 2020).",
}
_RETRIEVAL = {
    f"{PREFIX}zero_shot_": "without fine-tuning",
    f"{PREFIX}few_shot_": "after fine-tuning",
}
TOKENS = "num_input_tokens_seen"
_KEPT = (
    *("step", "epoch", "loss", *_CURVES, "head_accuracy", "late_accuracy"),
    *("bow_weight", "contrastive_accuracy"),
    *(TOKENS, "learning_rate", "seconds", "tokens_per_second"),
)

Entry = Mapping[str, float]
Log = Sequence[Entry]


def thin_log(log: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """The numbers in `_KEPT` of at most 200 evenly spaced entries with a loss."""
    chosen = spread([entry for entry in log if "loss" in entry])
    return [{n: entry[n] for n in _KEPT if _is_number(entry.get(n))} for entry in chosen]


def readiness_entries(log: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Step, tokens seen and readiness of at most 200 log entries that hold readiness."""
    kept = ("step", TOKENS, PREFIX)
    return [
        {n: value for n, value in entry.items() if n.startswith(kept) and _is_number(value)}
        for entry in spread(list(filter(is_readiness, log)))
    ]


def is_readiness(entry: Mapping[str, Any]) -> bool:
    """Whether a log entry holds readiness."""
    return any(name.startswith(PREFIX) for name in entry)


def spread(entries: Sequence[Any], *, at_most: int = 200) -> Sequence[Any]:
    """At most `at_most` (2 or more) evenly spaced entries, with the first and the last."""
    if len(entries) <= at_most:
        return entries
    last = len(entries) - 1
    return [entries[round(i * last / (at_most - 1))] for i in range(at_most)]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def layer_entropies(entry: Entry) -> list[float]:
    """Entropies of the layers, from the first to the last."""
    numbers = sorted(int(n.removeprefix(_LAYER)) for n in entry if n.startswith(_LAYER))
    return [entry[f"{_LAYER}{number}"] for number in numbers]


def titled_measures(entries: Sequence[Entry]) -> dict[str, str]:
    """Name -> title of the measures that any entry has, in a fixed order."""
    names = sorted({name for entry in entries for name in entry})
    titles = {name: title for name, title in _TITLES.items() if name in names}
    for prefix, when in _RETRIEVAL.items():
        titles |= {n: f"{n.removeprefix(prefix)} {when}" for n in names if n.startswith(prefix)}
    return titles


def explain(entries: Sequence[Entry]) -> str:
    """Explain the measures that any entry has, in sentences."""
    names = titled_measures(entries)
    return " ".join(text for name, text in _EXPLANATIONS.items() if name in names)


def first_and_last(entries: Sequence[Entry]) -> dict[str, Entry]:
    """The first and the last entry, as "start" or "step N"."""
    steps = {int(entry.get("step", 0)): entry for entry in (entries[0], entries[-1])}
    return {f"step {step:,}" if step else "start": entry for step, entry in steps.items()}


def titled_losses(log: Log) -> dict[str, str]:
    """Name -> title of the losses that the first and the last entry have."""
    named = {name for name in log[0] if name in log[-1]} if log else set()
    parts = {name: title for name, title in _CURVES.items() if name in named}
    return parts or ({"loss": "loss"} if "loss" in named else {})


def draw_entropies(panels: Mapping[str, Mapping[str, Entry]]) -> bytes:
    """Draw CLS attention entropy over the layers, as in Figure 2 of Gao & Callan (2021).

    `panels` maps titles to labels to entries with readiness.
    """
    from matplotlib.figure import Figure  # takes half a second, and cards need no pictures
    from matplotlib.text import Text

    figure = Figure(figsize=(5.5, 3.0 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), squeeze=False)[:, 0]
    for panel, (title, entries) in zip(axes, panels.items(), strict=True):
        for label, entry in entries.items():
            values = layer_entropies(entry)
            panel.plot(range(1, len(values) + 1), values, label=label, marker="o", markersize=3)
        for even in {entry[EVEN_ENTROPY] for entry in entries.values() if EVEN_ENTROPY in entry}:
            panel.axhline(even, color="grey", label="even attention")
        panel.set_title(f"{title}\nCLS attention entropy (nats)".strip(), fontsize=8)
        panel.set_xlabel("layer", fontsize=8)
        panel.legend(fontsize=8, frameon=False)
    for text in figure.findobj(Text):
        text.set_parse_math(False)  # dollar signs in a name enclose no formula
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=150)
    return stream.getvalue()
