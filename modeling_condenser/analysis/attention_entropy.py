"""Where the CLS token looks: texts through an encoder in, the entropy of its attention out.

Gao & Callan (2021), section 5 and Figure 2, after Clark et al. (2019): at each layer, the entropy
of the distribution over tokens that CLS attends with, averaged over all heads and over the texts.
High entropy is broad attention, low entropy focused. In nats: the logarithm is the natural one, so
that even attention to n tokens has ln n.

Layers with local attention (ModernBERT) see a window only, so theirs stays below ln n.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

_TOLERANCE = 1e-2  # of a row's sum; half precision is that coarse


@dataclass(frozen=True)
class AttentionEntropy:
    """Entropy of the CLS row of attention, in nats.

    Attributes:
        layers: of each layer, from the first to the last, averaged over heads and texts.
        even: of a row that attends to all tokens of a text alike, averaged over texts.
    """

    layers: tuple[float, ...]
    even: float

    @property
    def mean(self) -> float:
        """Over the layers."""
        return float(np.mean(self.layers))


@torch.no_grad()
def measure_attention_entropy(
    encoder: PreTrainedModel, batches: Iterable[Mapping[str, torch.Tensor]]
) -> AttentionEntropy:
    """Measure an encoder, whose attention back-end is changed meanwhile, and then restored.

    Args:
        encoder: in evaluation mode.
        batches: `input_ids` and `attention_mask`, each (B, T); what belongs to a text does not
            depend on its batch.

    Raises:
        ValueError: the encoder does not give its attention.
    """
    by_text, even = [], []
    with eager_attention(encoder):
        for batch in batches:
            mask = batch["attention_mask"]
            attentions = encoder(**batch, output_attentions=True).attentions
            _check(encoder, attentions)
            layers = [cls_entropies(layer, mask) for layer in attentions]
            by_text.append(torch.stack(layers, dim=1).cpu().numpy())  # (B, layers)
            even.append(mask.sum(1).double().log().cpu().numpy())
    means = np.concatenate(by_text).mean(axis=0)
    return AttentionEntropy(tuple(means.tolist()), float(np.concatenate(even).mean()))


def cls_entropies(attention: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Entropy of each text's CLS row over its real tokens, averaged over heads.

    Args:
        attention: (B, heads, T, T), rows are what attends, each a distribution.
        mask: (B, T), 1 for tokens and 0 for padding; CLS is the first token.

    Returns:
        (B,) float64, in nats.
    """
    first = mask.argmax(dim=1)  # (B,) where padding stands on the left, CLS is not at 0
    rows = attention[torch.arange(len(attention)), :, first].double()  # (B, heads, T)
    rows = rows * mask[:, None]
    rows = rows / rows.sum(-1, keepdim=True)
    return torch.special.entr(rows).sum(-1).mean(-1)


@contextmanager
def eager_attention(encoder: PreTrainedModel) -> Iterator[None]:
    """Have an encoder compute its attention in the way that can give it, meanwhile.

    Raises:
        ValueError: the encoder has no such way.
    """
    before = encoder.config._attn_implementation
    try:
        encoder.set_attn_implementation("eager")
    except ValueError as error:
        raise ValueError(f"{_without(encoder)} ({error})") from error
    try:
        yield
    finally:
        encoder.set_attn_implementation(before)


def _check(encoder: PreTrainedModel, attentions: tuple[torch.Tensor, ...] | None) -> None:
    if not attentions or any(layer is None or layer.dim() != 4 for layer in attentions):
        raise ValueError(_without(encoder))
    off = max(float((layer[:, :, 0].sum(-1) - 1).abs().max()) for layer in attentions)
    if off > _TOLERANCE:
        raise ValueError(
            f"The rows of attention of a {encoder.config.model_type} encoder sum to 1 only within "
            f"{off:.2g}, so they have no entropy: expected the outcome of a softmax without "
            "dropout; put the model into evaluation mode."
        )


def _without(encoder: PreTrainedModel) -> str:
    return (
        f"A {encoder.config.model_type} encoder does not give the attention of its layers, (B, "
        "heads, T, T) each, so its entropy cannot be measured: expected one that has the "
        "attention back-end 'eager'."
    )
