"""Measure what a Condenser's head reads from the dense vector.

The head can read the vector (the late CLS, or the mean of all late tokens), or predict from the
early tokens alone. How much its loss rises when the vectors are zeroed or exchanged between blocks
shows what they are worth. The rise is near 0 until the head begins to read them.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from modeling_condenser.encoder_parts import pool
from modeling_condenser.losses import IGNORE_INDEX, widen


@torch.no_grad()
def probe(model: Any, batches: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, float]:
    """Measure a `CondenserForPreTraining` or `CondenserForMaskedLM` on blocks, without dropout.

    To exchange vectors, each block gets that of the block before it, and the first block that of
    the last, so the result does not depend on how blocks are split into batches.

    Args:
        model: its mode and all random states are kept.
        batches: of `CondenserDataCollator`, padded; each column (B, T).

    Returns:
        `late_accuracy`, the share of masked tokens that are predicted. With a head also
        `head_accuracy` and, in nats a masked token, `head_loss`, its rise when the dense vectors
        are zeroed (`zero_cost`) or exchanged (`swap_cost`, of two blocks or more). Nothing if no
        token is masked.
    """
    if all((batch["labels"] == IGNORE_INDEX).all() for batch in batches):
        return {}
    was_training = model.training
    model.eval()
    try:
        values = _measure_tokens(model, batches)
    finally:
        model.train(was_training)
    means = {name: torch.cat(parts).cpu().double().mean().item() for name, parts in values.items()}
    for name in means.keys() & {"zero_cost", "swap_cost"}:
        means[name] -= means["head_loss"]
    if sum(len(batch["labels"]) for batch in batches) == 1:
        means.pop("swap_cost", None)
    return means


def _measure_tokens(
    model: Any, batches: Sequence[Mapping[str, torch.Tensor]]
) -> dict[str, list[torch.Tensor]]:
    """Measure -> its value for each masked token of each batch, (M,); a cost is a whole loss."""
    values: dict[str, list[torch.Tensor]] = defaultdict(list)
    before = _encode(model, batches[-1])[0][-1:] if len(batches) > 1 else None  # (1, 1, H)
    for batch in batches:
        vectors, late, early, output = _encode(model, batch)  # (B, 1, H), (B, T, H)
        is_masked = batch["labels"] != IGNORE_INDEX
        predicted = model.lm_head(late[is_masked]).argmax(-1)
        values["late_accuracy"].append(predicted == batch["labels"][is_masked])
        if not hasattr(model, "run_head"):  # by name: remote code has classes of its own
            continue
        first_vector = vectors[-1:] if before is None else before
        exchanged = torch.cat([first_vector, vectors[:-1]])
        before = vectors[-1:]
        labels = batch.get("head_targets", batch["labels"])
        is_masked = labels != IGNORE_INDEX
        variants = {
            "head_loss": vectors,
            "zero_cost": torch.zeros_like(vectors),
            "swap_cost": exchanged,
        }
        for name, cls_late in variants.items():
            hidden = model.run_head(cls_late, early, output.layer_call)
            logits = widen(model.lm_head(hidden[is_masked]))  # (M, V)
            values[name].append(cross_entropy(logits, labels[is_masked], reduction="none"))
            if name == "head_loss":
                values["head_accuracy"].append(logits.argmax(-1) == labels[is_masked])
    return values


def _encode(model: Any, batch: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, Any, Any, Any]:
    """The dense vectors, (B, 1, H), and what `encode` returns."""
    ids, mask = batch["input_ids"], batch["attention_mask"]
    late, early, output = model.encode(ids, mask, head_input_ids=batch.get("head_input_ids"))
    return pool(late, model.config.pooling, attention_mask=mask), late, early, output
