"""Measures of readiness: CLS attention entropy, use of the vector by the head, geometry."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch.nn import functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from modeling_condenser.modeling_condenser import CondenserForPreTraining
from modeling_condenser.pretraining.collator import CondenserDataCollator
from modeling_condenser.pretraining.counter_random import random_keys
from modeling_condenser.pretraining.probe import ReadBlocks, prediction_loss

_TOKENS_PER_BATCH = 2048


@torch.no_grad()
def measure_attention_entropy(
    encoder: PreTrainedModel, batches: Iterable[Mapping[str, torch.Tensor]]
) -> tuple[list[float], float]:
    """Measure CLS attention entropy: Gao & Callan (2021), section 5 and Figure 2.

    Args:
        encoder: in evaluation mode. Its attention back-end is changed and restored.
        batches: `input_ids` and `attention_mask`, each (B, T).

    Returns:
        The entropy of the CLS row of each layer, from the first to the last, and that of even
        attention to all tokens, in nats, mean over heads and texts.
    """
    by_text, even = [], []
    back_end = encoder.config._attn_implementation
    try:
        encoder.set_attn_implementation("eager")
        for batch in batches:
            mask = batch["attention_mask"]
            attentions = encoder(**batch, output_attentions=True).attentions
            if not attentions or any(layer is None or layer.dim() != 4 for layer in attentions):
                raise ValueError(
                    f"A {encoder.config.model_type} encoder does not return the attention of its "
                    "layers, so its entropy cannot be measured."
                )
            layers = [cls_entropies(layer, mask) for layer in attentions]
            by_text.append(torch.stack(layers, dim=1).cpu().numpy())  # (B, layers)
            even.append(mask.sum(1).double().log().cpu().numpy())
    finally:
        encoder.set_attn_implementation(back_end)
    return np.concatenate(by_text).mean(axis=0).tolist(), float(np.concatenate(even).mean())


def cls_entropies(attention: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Entropy of each text's CLS row over its tokens, in nats, mean over heads: (B,) float64.

    Args:
        attention: (B, heads, T, T); each row is a distribution.
        mask: (B, T), 1 for tokens and 0 for padding. The first token is CLS.
    """
    first = mask.argmax(dim=1)  # (B,) not 0 with padding on the left
    rows = attention[torch.arange(len(attention)), :, first].double()  # (B, heads, T)
    rows = rows * mask[:, None]
    rows = rows / rows.sum(-1, keepdim=True)
    return torch.special.entr(rows).sum(-1).mean(-1)


def mask_texts(
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int,
    seed: int,
    head_mlm_probability: float | None = None,
) -> list[dict[str, torch.Tensor]]:
    """Mask texts, in batches in their order; masks depend on the seed and a text's place only."""
    collator = CondenserDataCollator(
        tokenizer, max_length=max_length, head_mlm_probability=head_mlm_probability, seed=seed
    )
    ids = tokenizer(list(texts), add_special_tokens=False, truncation=True, max_length=max_length)
    keys = random_keys(seed, np.arange(len(texts))).tolist()
    blocks = [
        {"input_ids": tokens, "mask_key": key}
        for tokens, key in zip(ids["input_ids"], keys, strict=True)
    ]
    n = max(_TOKENS_PER_BATCH // max_length, 1)
    return [collator(blocks[first : first + n]) for first in range(0, len(blocks), n)]


@torch.no_grad()
def measure_condensing(
    model: CondenserForPreTraining, batches: Sequence[Mapping[str, torch.Tensor]]
) -> dict[str, float]:
    """Measure what the head takes from the late CLS vector.

    To swap vectors, each text gets that of the text before it, and the first text that of the last,
    so the result does not depend on the batches.

    Args:
        model: in evaluation mode.
        batches: of `mask_texts`, with two texts or more.

    Returns:
        In nats a masked token: `head_loss`, and the rise of it when vectors are zero (`zero_cost`)
        and when they are swapped (`swap_cost`).
    """
    before = ReadBlocks(model, batches[-1]).cls_late[-1:]  # (1, 1, H)
    n_masked, losses = 0, np.zeros(3)  # own vector, zeros, another text's vector
    for batch in batches:
        read = ReadBlocks(model, batch)
        own = read.cls_late  # (B, 1, H)
        others = torch.cat([before, own[:-1]])
        before = own[-1:]
        n_masked += len(read.targets)
        losses += [
            prediction_loss(read.predict(cls_late), read.targets, reduction="sum")
            for cls_late in (own, torch.zeros_like(own), others)
        ]
    if n_masked == 0:
        raise ValueError("No token of the sample is masked: its texts are too short.")
    head_loss, zeroed, swapped = (losses / n_masked).tolist()
    costs = {"zero_cost": zeroed - head_loss, "swap_cost": swapped - head_loss}
    return {"head_loss": head_loss, **costs}


def alignment(first: np.ndarray, second: np.ndarray) -> float:
    """Mean of |x - y|^2 over matching rows, normalised (Wang & Isola 2020, alpha = 2): 0 to 4."""
    return float((_unit(first) - _unit(second)).square().sum(1).mean())


def uniformity(vectors: np.ndarray) -> float:
    """log of the mean of exp(-2 |x - y|^2) over pairs of normalised rows (Wang & Isola, t = 2)."""
    return float(torch.pdist(_unit(vectors)).square().mul(-2).exp().mean().log())


def _unit(vectors: np.ndarray) -> torch.Tensor:
    return F.normalize(torch.from_numpy(np.asarray(vectors, dtype=np.float64)), dim=1)
