"""A dense Condenser written from equations (6)-(11) of the paper, in plain torch operations.

The independent source for the tests of the model: no code of the package and no layer classes of
the library, only the weights, by name. Every position is projected to the vocabulary, and attention
is an explicit softmax.
"""

import math

import torch
from torch.nn import functional as F

Weights = dict[str, torch.Tensor]


def naive_loss(weights: Weights, config, batch) -> dict[str, torch.Tensor]:
    """Losses of a batch of `input_ids`, `attention_mask` and `labels`, each (B, T)."""
    encoder = config.encoder_config
    states = [embed(weights, encoder, batch["input_ids"])]
    for number in range(encoder.num_hidden_layers):
        prefix = f"condenser.encoder.encoder.layer.{number}."
        states.append(layer(weights, prefix, encoder, states[-1], batch["attention_mask"]))
    late, cd = states[-1], states[config.skip_from].clone()
    cd[:, 0] = vectors(config.pooling, late, batch["attention_mask"])  # [cls_late ; early]
    for number in range(config.n_head_layers):
        cd = layer(weights, f"head.{number}.", encoder, cd, batch["attention_mask"])

    n_items = (batch["labels"] != -100).sum()
    head_loss = mlm(weights, encoder, cd, batch["labels"]) / n_items
    late_loss = mlm(weights, encoder, late, batch["labels"]) / n_items
    loss = head_loss + late_loss if config.late_mlm else head_loss
    return {"loss": loss, "head_loss": head_loss, "late_loss": late_loss}


def vectors(pooling: str, late: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The dense vectors, (B, H): CLS, or the mean of each block's tokens, block by block."""
    if pooling == "cls":
        return late[:, 0]
    assert pooling == "mean"
    blocks = zip(late, mask.bool(), strict=True)
    return torch.stack([sum(block[is_token]) / int(is_token.sum()) for block, is_token in blocks])


def embed(weights: Weights, config, ids: torch.Tensor) -> torch.Tensor:
    prefix = "condenser.encoder.embeddings."
    words = weights[prefix + "word_embeddings.weight"][ids]
    positions = weights[prefix + "position_embeddings.weight"][: ids.shape[1]]
    segment = weights[prefix + "token_type_embeddings.weight"][0]
    return norm(weights, prefix + "LayerNorm.", config, words + positions + segment)


def layer(weights: Weights, prefix: str, config, x: torch.Tensor, mask: torch.Tensor):
    attention = prefix + "attention."
    n_heads = config.num_attention_heads
    size = config.hidden_size // n_heads

    def heads(name: str) -> torch.Tensor:  # (B, heads, T, size)
        projected = linear(weights, f"{attention}self.{name}.", x)
        return projected.reshape(*x.shape[:2], n_heads, size).transpose(1, 2)

    scores = heads("query") @ heads("key").transpose(2, 3) / math.sqrt(size)
    scores = scores.masked_fill(mask[:, None, None, :] == 0, float("-inf"))
    mixed = (scores.softmax(-1) @ heads("value")).transpose(1, 2).reshape(x.shape)
    mixed = linear(weights, attention + "output.dense.", mixed)
    x = norm(weights, attention + "output.LayerNorm.", config, x + mixed)
    inner = F.gelu(linear(weights, prefix + "intermediate.dense.", x))
    outer = linear(weights, prefix + "output.dense.", inner)
    return norm(weights, prefix + "output.LayerNorm.", config, x + outer)


def mlm(weights: Weights, config, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    prefix = "lm_head.predictions."
    transformed = F.gelu(linear(weights, prefix + "transform.dense.", hidden))
    transformed = norm(weights, prefix + "transform.LayerNorm.", config, transformed)
    vocabulary = weights["condenser.encoder.embeddings.word_embeddings.weight"]
    logits = transformed @ vocabulary.T + weights[prefix + "bias"]  # (B, T, V)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


def linear(weights: Weights, prefix: str, x: torch.Tensor) -> torch.Tensor:
    return x @ weights[prefix + "weight"].T + weights[prefix + "bias"]


def norm(weights: Weights, prefix: str, config, x: torch.Tensor) -> torch.Tensor:
    variance, mean = torch.var_mean(x, dim=-1, correction=0, keepdim=True)
    x = (x - mean) / torch.sqrt(variance + config.layer_norm_eps)
    return x * weights[prefix + "weight"] + weights[prefix + "bias"]
