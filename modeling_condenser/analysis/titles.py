"""Titles of the measures of readiness.

readiness/head_loss               head's loss on the fixed sample, nats a masked token
readiness/zero_cost               rise of that loss when the late CLS vectors are zeroed
readiness/swap_cost               rise of that loss when they are exchanged
readiness/entropy                 entropy of the CLS row of attention, nats, mean over layers
readiness/entropy_layer_K         the same of layer K, counted from 1
readiness/entropy_even            entropy of a row that attends to all tokens alike
readiness/alignment, /uniformity  of the dense vectors (Wang & Isola 2020)
readiness/zero_shot_MRR@10, ...   on a small collection, without fine-tuning
"""

from collections.abc import Mapping, Sequence

from modeling_condenser.publishing.training_log import PREFIX

ENTROPY = f"{PREFIX}entropy"
_TITLES = {
    f"{PREFIX}head_loss": "head's loss (nats a masked token)",
    f"{PREFIX}zero_cost": "zero cost",
    f"{PREFIX}swap_cost": "swap cost",
    ENTROPY: "CLS attention entropy, mean over layers",
    f"{ENTROPY}_even": "CLS attention entropy, all tokens alike",
    f"{PREFIX}alignment": "alignment",
    f"{PREFIX}uniformity": "uniformity",
}
_RETRIEVAL = f"{PREFIX}zero_shot_"


def titled_measures(entries: Sequence[Mapping[str, float]]) -> dict[str, str]:
    """Name -> title of the measures that any entry has, in a fixed order."""
    names = sorted({name for entry in entries for name in entry})
    titles = {name: title for name, title in _TITLES.items() if name in names}
    for name in names:
        if name.startswith(_RETRIEVAL):
            titles[name] = f"{name.removeprefix(_RETRIEVAL)} without fine-tuning"
    return titles
