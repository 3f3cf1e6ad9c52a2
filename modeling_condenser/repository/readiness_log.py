"""Readiness in a training log: what its measures are called, for who writes and who reads them.

readiness/head_loss               nats a masked token, of the head, on the fixed sample
readiness/zero_cost               rise of it when the late CLS is zeroed
readiness/swap_cost               rise of it when the late CLS is another text's
readiness/entropy                 nats, of the CLS row of attention, mean over layers
readiness/entropy_layer_K         the same of layer K, counted from 1
readiness/entropy_even            of a row that attends to all tokens alike
readiness/alignment, /uniformity  of the dense vectors (Wang & Isola 2020)
readiness/zero_shot_MRR@10, ...   on a small collection; few_shot_... after fine-tuning
readiness/sample                  a number that is another where another sample was measured
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .training_log import is_number, spread

PREFIX = "readiness/"
ENTROPY, EVEN_ENTROPY = f"{PREFIX}entropy", f"{PREFIX}entropy_even"
SAMPLE = f"{PREFIX}sample"
ZERO_SHOT, FEW_SHOT = f"{PREFIX}zero_shot_", f"{PREFIX}few_shot_"
_LAYER = f"{PREFIX}entropy_layer_"
_WHEN = ("step", "num_input_tokens_seen")
_TITLES = {
    f"{PREFIX}head_loss": "head's loss (nats a masked token)",
    f"{PREFIX}zero_cost": "rise when the late CLS is zeroed",
    f"{PREFIX}swap_cost": "rise when the late CLS is another text's",
    ENTROPY: "CLS attention entropy, mean over layers",
    f"{PREFIX}alignment": "alignment",
    f"{PREFIX}uniformity": "uniformity",
}

Entry = Mapping[str, float]


def name_layer(number: int) -> str:
    """What the entropy of a layer, counted from 1, is called."""
    return f"{_LAYER}{number}"


def is_readiness(entry: Mapping[str, Any]) -> bool:
    """Whether an entry of a log is one of readiness."""
    return any(name.startswith(PREFIX) for name in entry)


def readiness_entries(log: Sequence[Mapping[str, Any]]) -> tuple[dict[str, float], ...]:
    """Those of a log's entries that are of readiness, at most 200, the first and the last too.

    Returns:
        Their numbers: step, tokens seen and measures, and nothing else.
    """
    return tuple(
        {
            name: value
            for name, value in entry.items()
            if (name in _WHEN or name.startswith(PREFIX)) and is_number(value)
        }
        for entry in spread([entry for entry in log if is_readiness(entry)])
    )


def layer_entropies(entry: Entry) -> list[float]:
    """The entropies of an entry's layers, from the first to the last."""
    numbers = sorted(
        int(found[1]) for name in entry if (found := re.fullmatch(rf"{_LAYER}(\d+)", name))
    )
    return [entry[name_layer(number)] for number in numbers]


def title_of(name: str) -> str | None:
    """What a measure is called in tables and pictures; None for one that has no line of its own."""
    for prefix, said in ((ZERO_SHOT, "without fine-tuning"), (FEW_SHOT, "after fine-tuning")):
        if name.startswith(prefix):
            return f"{name.removeprefix(prefix)} {said}"
    return _TITLES.get(name)


def titled_measures(entries: Sequence[Entry]) -> dict[str, str]:
    """Name -> title of the measures that some entry has, in a fixed order."""
    present = {name for entry in entries for name in entry}
    ordered = [*_TITLES, *sorted(present - _TITLES.keys(), key=_order)]
    return {
        name: title for name in ordered if name in present and (title := title_of(name)) is not None
    }


def _order(name: str) -> tuple[bool, str]:
    return (name.startswith(FEW_SHOT), name)
