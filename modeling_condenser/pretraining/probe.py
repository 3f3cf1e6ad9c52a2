"""What a Condenser's head takes from the dense vector: the cheapest sign that condensing works.

The head can lower its loss by reading the late CLS vector, or get by with the early tokens alone.
Exchanging the late CLS between the blocks of a batch tells which: the rise of the head's loss is
what the vector was worth. It is near 0 until the head begins to read it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from modeling_condenser.modeling_condenser import (
    IGNORE_INDEX,
    CondenserForPreTraining,
    LayerCall,
)


@dataclass(frozen=True)
class Probe:
    """Measured on one batch without dropout; None where the model has no such part.

    Attributes:
        head_accuracy: share of masked tokens that the Condenser head predicts.
        late_accuracy: share of masked tokens that the late output predicts.
        swap_cost: rise of the head's loss, in nats a masked token, when each block is given
            another block's late CLS vector.
    """

    head_accuracy: float | None
    late_accuracy: float | None
    swap_cost: float | None

    def logs(self) -> dict[str, float]:
        """The measures that there are."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@torch.no_grad()
def probe(model: PreTrainedModel, batch: Mapping[str, Any]) -> Probe:
    """Measure a model on a batch, leaving it and all random states as they were.

    Costs one forward pass and one more of the head.

    Args:
        model: a `CondenserForPreTraining`, or a `CondenserForMaskedLM`, which has no head.
        batch: `input_ids`, `attention_mask` and `labels`, each (B, T).
    """
    was_training = model.training
    model.eval()
    try:
        return _measure(model, batch["input_ids"], batch["attention_mask"], batch["labels"])
    finally:
        model.train(was_training)


@dataclass(frozen=True)
class ReadBlocks:
    """Blocks that the backbone has read, for the head to predict with one CLS vector or another.

    Attributes:
        model: whose backbone has read them.
        late: (B, T, H) [cls_late ; late].
        early: (B, T, H) [cls_early ; early].
        layer_call: that the head's layers repeat.
        masked: (B, T) bool, where tokens are predicted.
        targets: (M,) the tokens there.
    """

    model: CondenserForPreTraining
    late: torch.Tensor
    early: torch.Tensor
    layer_call: LayerCall
    masked: torch.Tensor
    targets: torch.Tensor

    @classmethod
    def of(cls, model: CondenserForPreTraining, batch: Mapping[str, torch.Tensor]) -> "ReadBlocks":
        """Have the backbone read `input_ids`, `attention_mask` and `labels`, each (B, T)."""
        late, early, output = model.encode(batch["input_ids"], batch["attention_mask"])
        masked = batch["labels"] != IGNORE_INDEX
        targets = batch["labels"][masked]
        return cls(model, late, early, output.layer_call, masked, targets)

    @property
    def cls_late(self) -> torch.Tensor:
        """(B, 1, H), what the head is given in training."""
        return self.late[:, :1]

    def predict(self, cls_late: torch.Tensor) -> torch.Tensor:
        """The head's predictions of the masked tokens, (M, V), with these vectors (B, 1, H)."""
        hidden = self.model.run_head(cls_late, self.early, layer_call=self.layer_call)
        return self.model.lm_head(hidden[self.masked])

    def predict_late(self) -> torch.Tensor:
        """The late output's predictions of the masked tokens, (M, V)."""
        return self.model.lm_head(self.late[self.masked])


def prediction_loss(
    logits: torch.Tensor, targets: torch.Tensor, *, reduction: str = "mean"
) -> float:
    """Cross-entropy in nats of predictions (M, V): the mean over tokens, or their sum."""
    return torch.nn.functional.cross_entropy(logits.float(), targets, reduction=reduction).item()


def _measure(model: Any, ids: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor) -> Probe:
    masked = labels != IGNORE_INDEX
    targets = labels[masked]
    if len(targets) == 0:
        return Probe(None, None, None)
    if not isinstance(model, CondenserForPreTraining):
        late = model.condenser(input_ids=ids, attention_mask=mask).last_hidden_state
        return Probe(None, _accuracy(model.lm_head(late[masked]), targets), None)

    read = ReadBlocks.of(model, {"input_ids": ids, "attention_mask": mask, "labels": labels})
    own = read.predict(read.cls_late)
    late_accuracy = _accuracy(read.predict_late(), targets)
    swap_cost = None
    if len(ids) > 1:
        swapped = read.predict(read.cls_late.roll(1, dims=0))
        swap_cost = prediction_loss(swapped, targets) - prediction_loss(own, targets)
    return Probe(_accuracy(own, targets), late_accuracy, swap_cost)


def _accuracy(logits: torch.Tensor, targets: torch.Tensor) -> float:
    return (logits.argmax(-1) == targets).float().mean().item()
