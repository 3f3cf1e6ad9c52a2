"""Select the entries of a training log that a curve needs."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

LOSSES = ("loss", "head_loss", "late_loss")
MOST_ENTRIES = 200
_KEPT = (
    *("step", "epoch", *LOSSES, "swap_cost", "head_accuracy", "late_accuracy"),
    *("bow_loss", "bow_weight", "contrastive_loss", "contrastive_accuracy"),
    *("num_input_tokens_seen", "learning_rate", "seconds", "tokens_per_second"),
)


def thin_log(entries: Sequence[Mapping[str, Any]]) -> tuple[dict[str, float], ...]:
    """The known numbers of at most 200 evenly spaced entries with losses."""
    with_losses = [entry for entry in entries if any(name in entry for name in LOSSES)]
    return tuple(
        {name: entry[name] for name in _KEPT if is_number(entry.get(name))}
        for entry in spread(with_losses)
    )


def spread(
    entries: Sequence[Mapping[str, Any]], *, at_most: int = MOST_ENTRIES
) -> Sequence[Mapping[str, Any]]:
    """At most so many (2 or more) evenly spaced entries, the first and the last included."""
    if len(entries) <= at_most:
        return entries
    last = len(entries) - 1
    return [entries[round(i * last / (at_most - 1))] for i in range(at_most)]


def is_number(value: object) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)
