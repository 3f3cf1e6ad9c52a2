"""What a Condenser's head reads from the dense vector.

The head can lower its loss by reading the late CLS vector, or predict from the early tokens alone.
The swap cost, the rise of its loss when the blocks of a batch exchange their late CLS vectors, says
what the vector is worth; it is near 0 until the head begins to read it.
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

    head_accuracy: float | None = None
    late_accuracy: float | None = None
    swap_cost: float | None = None

    def logs(self) -> dict[str, float]:
        """The measures that there are."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@torch.no_grad()
def probe(model: PreTrainedModel, batch: Mapping[str, Any]) -> Probe:
    """Measure a model on a batch; its mode and all random states stay as they are.

    Costs one forward pass and one more of the head.

    Args:
        model: a `CondenserForPreTraining` or a `CondenserForMaskedLM`.
        batch: `input_ids`, `attention_mask` and `labels`, each (B, T); `head_input_ids` and
            `head_targets` where the head reads a second masking.
    """
    was_training = model.training
    model.eval()
    try:
        return _measure(model, batch)
    finally:
        model.train(was_training)


@dataclass(frozen=True)
class ReadBlocks:
    """Blocks that the backbone has read, for the head to predict with one CLS vector or another.

    Attributes:
        model: whose backbone has read them.
        late: (B, T, H) [cls_late ; late].
        early: (B, T, H) what the head reads beside the vector: [cls_early ; early], or the
            embeddings of a second masking.
        layer_call: that the head's layers repeat.
        labels: (B, T) int64 the tokens that the head predicts, otherwise -100.
    """

    model: CondenserForPreTraining
    late: torch.Tensor
    early: torch.Tensor
    layer_call: LayerCall
    labels: torch.Tensor

    @classmethod
    def of(cls, model: CondenserForPreTraining, batch: Mapping[str, torch.Tensor]) -> "ReadBlocks":
        """Run the backbone on a batch of `probe`."""
        late, early, output = model.encode(
            batch["input_ids"],
            batch["attention_mask"],
            head_input_ids=batch.get("head_input_ids"),
        )
        labels = batch.get("head_targets", batch["labels"])
        return cls(model, late, early, output.layer_call, labels)

    @property
    def cls_late(self) -> torch.Tensor:
        """(B, 1, H), what the head is given in training."""
        return self.late[:, :1]

    @property
    def targets(self) -> torch.Tensor:
        """The tokens that the head predicts, (M,)."""
        return self.labels[self.labels != IGNORE_INDEX]

    def predict(self, cls_late: torch.Tensor) -> torch.Tensor:
        """The head's predictions of the masked tokens, (M, V), with these vectors (B, 1, H)."""
        hidden = self.model.run_head(cls_late, self.early, layer_call=self.layer_call)
        return self.model.lm_head(hidden[self.labels != IGNORE_INDEX])


def prediction_loss(
    logits: torch.Tensor, targets: torch.Tensor, *, reduction: str = "mean"
) -> float:
    """Cross-entropy in nats of predictions (M, V): the mean over tokens, or their sum."""
    return torch.nn.functional.cross_entropy(logits.float(), targets, reduction=reduction).item()


def _measure(model: Any, batch: Mapping[str, torch.Tensor]) -> Probe:
    ids, mask, labels = batch["input_ids"], batch["attention_mask"], batch["labels"]
    masked = labels != IGNORE_INDEX
    if not masked.any():
        return Probe()
    if not hasattr(model, "run_head"):  # by name: remote code has classes of its own
        late = model.condenser(input_ids=ids, attention_mask=mask).last_hidden_state
        return Probe(late_accuracy=_accuracy(model.lm_head(late[masked]), labels[masked]))
    read = ReadBlocks.of(model, batch)
    own = read.predict(read.cls_late)
    late_accuracy = _accuracy(model.lm_head(read.late[masked]), labels[masked])
    swap_cost = None
    if len(ids) > 1:
        swapped = read.predict(read.cls_late.roll(1, dims=0))
        swap_cost = prediction_loss(swapped, read.targets) - prediction_loss(own, read.targets)
    return Probe(_accuracy(own, read.targets), late_accuracy, swap_cost)


def _accuracy(logits: torch.Tensor, targets: torch.Tensor) -> float:
    return (logits.argmax(-1) == targets).float().mean().item()
