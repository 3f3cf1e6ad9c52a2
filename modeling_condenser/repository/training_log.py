"""A run's log in; as many of its entries as a curve needs out."""

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


def thin_log(
    entries: Sequence[Mapping[str, Any]], *, at_most: int = MOST_ENTRIES
) -> tuple[dict[str, float], ...]:
    """Keep the entries that hold losses, as evenly spaced as can be, the first and the last too.

    Args:
        entries: as the Trainer logs them.
        at_most: so many are kept; at least 2.

    Returns:
        Their numbers under the known names, and nothing else.
    """
    told = spread(
        [entry for entry in entries if any(name in entry for name in LOSSES)], at_most=at_most
    )
    return tuple(
        {name: entry[name] for name in _KEPT if is_number(entry.get(name))} for entry in told
    )


def spread(
    entries: Sequence[Mapping[str, Any]], *, at_most: int = MOST_ENTRIES
) -> Sequence[Mapping[str, Any]]:
    """So many of the entries, as evenly spaced as can be, the first and the last too."""
    if len(entries) <= at_most:
        return entries
    last = len(entries) - 1
    return [entries[round(i * last / (at_most - 1))] for i in range(at_most)]


def is_number(value: object) -> bool:
    """Whether JSON holds it as a number."""
    return isinstance(value, int | float) and math.isfinite(value)
