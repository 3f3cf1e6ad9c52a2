"""Entries of a training log: selection for provenance, and names of readiness measures.

readiness/head_loss               head's loss on the fixed sample, nats a masked token
readiness/zero_cost               rise of that loss when the late CLS vectors are zeroed
readiness/swap_cost               rise of that loss when they are exchanged
readiness/entropy                 entropy of the CLS row of attention, nats, mean over layers
readiness/entropy_layer_K         the same of layer K, counted from 1
readiness/entropy_even            entropy of a row that attends to all tokens alike
readiness/alignment, /uniformity  of the dense vectors (Wang & Isola 2020)
readiness/zero_shot_MRR@10, ...   on a small collection; few_shot_... after fine-tuning
readiness/sample                  a number that identifies the sample
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

READINESS_FILE = "readiness.png"
ENTROPY_FILE = "attention_entropy.png"
PREFIX = "readiness/"
ENTROPY, EVEN_ENTROPY = f"{PREFIX}entropy", f"{PREFIX}entropy_even"
HOW_TO_READ = (
    "Zero cost and swap cost are the rise of the head's loss (nats a masked token) when the late "
    "CLS vectors are zeroed or exchanged: near zero, the head does not use the vector; where they "
    "stop growing, more steps bring little. Entropy is that of the CLS token's attention, in nats, "
    "averaged over heads and texts: the closer it is to that of a fine-tuned model, the less "
    "fine-tuning has to change (Gao & Callan 2021, section 5). Lower alignment means that matching "
    "texts are closer, lower uniformity that vectors are spread more evenly (Wang & Isola 2020)."
)
_LAYER = f"{PREFIX}entropy_layer_"
_TITLES = {
    f"{PREFIX}head_loss": "head's loss (nats a masked token)",
    f"{PREFIX}zero_cost": "zero cost",
    f"{PREFIX}swap_cost": "swap cost",
    ENTROPY: "CLS attention entropy, mean over layers",
    f"{PREFIX}alignment": "alignment",
    f"{PREFIX}uniformity": "uniformity",
}
_RETRIEVAL = {
    f"{PREFIX}zero_shot_": "without fine-tuning",
    f"{PREFIX}few_shot_": "after fine-tuning",
}
_LOSSES = ("loss", "head_loss", "late_loss")
_KEPT = (
    *("step", "epoch", *_LOSSES, "swap_cost", "head_accuracy", "late_accuracy"),
    *("bow_loss", "bow_weight", "contrastive_loss", "contrastive_accuracy"),
    *("num_input_tokens_seen", "learning_rate", "seconds", "tokens_per_second"),
)

Entry = Mapping[str, float]


def thin_log(log: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """The known numbers of at most 200 evenly spaced entries with losses."""
    chosen = spread([entry for entry in log if any(name in entry for name in _LOSSES)])
    return [{n: entry[n] for n in _KEPT if _is_number(entry.get(n))} for entry in chosen]


def readiness_entries(log: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Step, tokens seen and readiness of at most 200 log entries that hold readiness."""
    kept = ("step", "num_input_tokens_seen", PREFIX)
    return [
        {n: value for n, value in entry.items() if n.startswith(kept) and _is_number(value)}
        for entry in spread(list(filter(is_readiness, log)))
    ]


def is_readiness(entry: Mapping[str, Any]) -> bool:
    """Whether a log entry holds readiness."""
    return any(name.startswith(PREFIX) for name in entry)


def spread(entries: Sequence[Any], *, at_most: int = 200) -> Sequence[Any]:
    """At most so many (2 or more) evenly spaced entries, the first and the last included."""
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


def first_and_last(entries: Sequence[Entry]) -> dict[str, Entry]:
    """The first and the last entry, as "start" or "step N"."""
    steps = {int(entry.get("step", 0)): entry for entry in (entries[0], entries[-1])}
    return {f"step {step:,}" if step else "start": entry for step, entry in steps.items()}
