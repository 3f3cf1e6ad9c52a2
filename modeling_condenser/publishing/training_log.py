"""Training logs: the entries that provenance keeps, and the titles of losses on the model card."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

PREFIX = "readiness/"  # of the measures of readiness, which `analysis` makes
LOSSES = {
    "late_loss": "late MLM loss (nats a masked token)",
    "head_loss": "head MLM loss (nats a masked token)",
    "bow_loss": "bag-of-words loss (nats a block)",
    "contrastive_loss": "contrastive loss (nats a text)",
    "loss": "loss",
}
_MOST_ENTRIES = 200


def thin_log(log: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """The numbers of at most 200 evenly spaced entries with a loss, with the first and the last."""
    entries = [entry for entry in log if "loss" in entry]
    if len(entries) > _MOST_ENTRIES:
        last = len(entries) - 1
        entries = [entries[round(i * last / (_MOST_ENTRIES - 1))] for i in range(_MOST_ENTRIES)]
    return [{n: value for n, value in entry.items() if _is_number(value)} for entry in entries]


def is_readiness(entry: Mapping[str, Any]) -> bool:
    """Whether a log entry holds readiness."""
    return any(name.startswith(PREFIX) for name in entry)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def first_and_last_losses(log: Sequence[Mapping[str, float]]) -> dict[str, str]:
    """Title of each loss -> its first and last value; their sum only if there are no parts."""
    if not log:
        return {}
    first, last = log[0], log[-1]
    names = [name for name in LOSSES if name in first and name in last]
    values = {}
    for name in names:
        if name != "loss" or names == ["loss"]:
            start = f"{first[name]:.4f} at step {first['step']:,}"
            values[LOSSES[name]] = f"{start}, {last[name]:.4f} at step {last['step']:,}"
    return values
