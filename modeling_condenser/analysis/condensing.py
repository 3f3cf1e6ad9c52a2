"""What the head takes from the dense vector: masked blocks in, what the vector is worth out.

`pretraining/probe.py` measures the cost of a swap on batches of training; this measures it on a
fixed sample, and beside it the cost of having no vector at all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from modeling_condenser.modeling_condenser import CondenserForPreTraining
from modeling_condenser.pretraining.collator import CondenserDataCollator
from modeling_condenser.pretraining.counter_random import random_keys
from modeling_condenser.pretraining.probe import ReadBlocks, prediction_loss

_TOKENS_AT_ONCE = 2048


@dataclass(frozen=True)
class Condensing:
    """In nats a masked token.

    Attributes:
        head_loss: of the head, with each text's own late CLS vector.
        zero_cost: its rise when the vector is zero.
        swap_cost: its rise when the vector is another text's.
    """

    head_loss: float
    zero_cost: float
    swap_cost: float


def mask_texts(
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int,
    seed: int,
    head_mlm_probability: float | None = None,
) -> list[dict[str, torch.Tensor]]:
    """Texts as masked batches in their order, the masks of each following from seed and place.

    Args:
        texts: to mask.
        tokenizer: of the model.
        max_length: longest text in tokens.
        seed: of the masks.
        head_mlm_probability: of the model's configuration.

    Raises:
        ValueError: the tokenizer cannot mask.
    """
    collator = CondenserDataCollator(
        tokenizer, max_length=max_length, head_mlm_probability=head_mlm_probability, seed=seed
    )
    ids = tokenizer(list(texts), add_special_tokens=False, truncation=True, max_length=max_length)
    keys = random_keys(seed, np.arange(len(texts))).tolist()
    blocks = [
        {"input_ids": tokens, "mask_key": key}
        for tokens, key in zip(ids["input_ids"], keys, strict=True)
    ]
    n = max(_TOKENS_AT_ONCE // max_length, 1)
    return [collator(blocks[first : first + n]) for first in range(0, len(blocks), n)]


@torch.no_grad()
def measure_condensing(
    model: CondenserForPreTraining, batches: Sequence[Mapping[str, torch.Tensor]]
) -> Condensing:
    """Measure what the head takes from the late CLS vector.

    Each text gets the vector of the text before it, and the first that of the last; so the
    figures do not depend on how the texts are cut into batches.

    Args:
        model: in evaluation mode.
        batches: of `mask_texts`; two texts or more.

    Raises:
        ValueError: there is one text only, or nothing is masked.
    """
    if sum(len(batch["input_ids"]) for batch in batches) < 2:
        raise ValueError("One text came; vectors can be swapped between two or more.")
    before = ReadBlocks.of(model, batches[-1]).cls_late[-1:]  # (1, 1, H)
    n_masked, losses = 0, np.zeros(3)  # own, zeroed, swapped
    for batch in batches:
        read = ReadBlocks.of(model, batch)
        own = read.cls_late  # (B, 1, H)
        others = torch.cat([before, own[:-1]])
        before = own[-1:]
        n_masked += len(read.targets)
        if len(read.targets):
            losses += [
                prediction_loss(read.predict(cls_late), read.targets, reduction="sum")
                for cls_late in (own, torch.zeros_like(own), others)
            ]
    if n_masked == 0:
        raise ValueError("No token of the sample is masked: its texts are too short; give longer.")
    head_loss, zeroed, swapped = (losses / n_masked).tolist()
    return Condensing(head_loss, zeroed - head_loss, swapped - head_loss)
