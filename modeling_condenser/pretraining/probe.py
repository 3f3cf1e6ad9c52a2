"""What a Condenser's head reads from the dense vector.

The head can lower its loss by reading the late CLS vector, or predict from the early tokens alone.
The swap cost, the rise of its loss when the blocks of a batch exchange their late CLS vectors, says
what the vector is worth; it is near 0 until the head begins to read it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from modeling_condenser.modeling_condenser import IGNORE_INDEX, CondenserForPreTraining


@torch.no_grad()
def probe(model: Any, batch: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Measure a model on a batch without dropout; its mode and all random states are kept.

    Args:
        model: a `CondenserForPreTraining` or a `CondenserForMaskedLM`.
        batch: of `CondenserDataCollator`, padded; each column (B, T).

    Returns:
        `late_accuracy` and, with a head, `head_accuracy`: shares of masked tokens that are
        predicted. With a head and two blocks or more, `swap_cost`: the rise of the head's loss, in
        nats a masked token, when each block is given another one's vector. Nothing if no token is
        masked.
    """
    masked = batch["labels"] != IGNORE_INDEX
    if not masked.any():
        return {}
    was_training = model.training
    model.eval()
    try:
        read = ReadBlocks(model, batch)
        logits = model.lm_head(read.late[masked])
        measured = {"late_accuracy": _accuracy(logits, batch["labels"][masked])}
        if hasattr(model, "run_head"):  # by name: remote code has classes of its own
            own = read.predict(read.cls_late)
            measured["head_accuracy"] = _accuracy(own, read.targets)
            if len(masked) > 1:
                swapped = read.predict(read.cls_late.roll(1, dims=0))
                cost = prediction_loss(swapped, read.targets) - prediction_loss(own, read.targets)
                measured["swap_cost"] = cost
        return measured
    finally:
        model.train(was_training)


class ReadBlocks:
    """Blocks that the backbone has read, for the head to predict with one CLS vector or another."""

    def __init__(self, model: CondenserForPreTraining, batch: Mapping[str, torch.Tensor]):
        self.model = model
        self.late, self._early, output = model.encode(
            batch["input_ids"], batch["attention_mask"], head_input_ids=batch.get("head_input_ids")
        )  # (B, T, H) [cls_late ; late]
        self.cls_late = self.late[:, :1]  # (B, 1, H), which the head reads in training
        self._layer_call = output.layer_call
        labels = batch.get("head_targets", batch["labels"])
        self._is_predicted = labels != IGNORE_INDEX
        self.targets = labels[self._is_predicted]  # (M,), the tokens that the head predicts

    def predict(self, cls_late: torch.Tensor) -> torch.Tensor:
        """The head's predictions of the masked tokens, (M, V), with these vectors (B, 1, H)."""
        hidden = self.model.run_head(cls_late, self._early, layer_call=self._layer_call)
        return self.model.lm_head(hidden[self._is_predicted])


def prediction_loss(
    logits: torch.Tensor, targets: torch.Tensor, *, reduction: str = "mean"
) -> float:
    """Cross-entropy in nats of predictions (M, V): the mean over tokens, or their sum."""
    return cross_entropy(logits.float(), targets, reduction=reduction).item()


def _accuracy(logits: torch.Tensor, targets: torch.Tensor) -> float:
    return (logits.argmax(-1) == targets).float().mean().item()
