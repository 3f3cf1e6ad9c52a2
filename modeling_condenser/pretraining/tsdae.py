"""TSDAE: a decoder reconstructs a text from the vector of a copy without most of its words.

Wang, Reimers & Gurevych (2021), "TSDAE: Using Transformer-based Sequential Denoising Auto-Encoder
for Unsupervised Sentence Embedding Learning": each word of a text is deleted with a probability of
0.6, the encoder reads the rest, and a decoder, whose cross-attention sees the dense vector only,
predicts the whole text from left to right. Encoder and decoder share their weights. Words are those
of whole-word masking, and the loss is averaged over the tokens of an optimiser step.

sentence-transformers has this loss too, but its checkpoints lack the decoder, so a run could not be
resumed, and it knows neither prompts nor accumulated batches.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from transformers import AutoModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from modeling_condenser.configuration_condenser import SUPPORTED_ENCODERS
from modeling_condenser.encoder_parts import pool
from modeling_condenser.losses import IGNORE_INDEX, widen

from .collator import CondenserDataCollator
from .counter_random import uniforms

DELETION_STREAM = 4  # of a block's key, beside those of masking.py
# Encoders of which transformers also has a decoder with cross-attention.
ENCODERS_WITH_DECODER = tuple(
    name for name in SUPPORTED_ENCODERS if name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
)


@dataclass
class DenoisingCollator:
    """Makes padded batches of blocks, and of copies of them without most of their words.

    Prompts stand before the copies, which the encoder reads. The deleted words depend on a block
    and its `mask_key` only, as masks do. At least one word of a block is kept.
    """

    collator: CondenserDataCollator
    deletion_probability: float = 0.6

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """`input_ids` and `labels` of blocks, (B, T) int64, and of their copies.

        `labels` is -100 at padding and at the first token, which is not predicted. The copies are
        `noisy_input_ids` and `noisy_attention_mask`, each (B, N) int64.
        """
        blocks, keys = self.collator.read(examples)
        ids, is_text, is_token = self.collator.frame(blocks, prompted=False)
        words = self.collator.word_starts.number_words(ids, is_text)
        # A token outside words is a word.
        begins = is_text & ((words < 0) | (words != np.roll(words, 1, axis=1)))
        words = np.maximum(begins.cumsum(axis=1) - 1, 0)
        draws = uniforms(keys, int(words.max()) + 1, stream=DELETION_STREAM)
        draws = np.where(is_text, np.take_along_axis(draws, words, axis=1), -1)  # (B, T)
        is_kept = (draws >= self.deletion_probability) | (draws == draws.max(axis=1, keepdims=True))
        kept = [row[mask] for row, mask in zip(ids, is_text & is_kept, strict=True)]
        noisy_ids, _, is_noisy_token = self.collator.frame(kept)
        is_predicted = is_token & (np.arange(ids.shape[1]) > 0)
        batch = {
            "input_ids": ids,
            "attention_mask": is_token,
            "labels": np.where(is_predicted, ids, IGNORE_INDEX),
            "noisy_input_ids": noisy_ids,
            "noisy_attention_mask": is_noisy_token,
        }
        return {name: torch.from_numpy(values).long() for name, values in batch.items()}


def add_decoder(model: Any, *, seed: int = 0) -> None:
    """Add TSDAE's decoder, tied to the encoder, and make TSDAE's loss the model's forward pass.

    The decoder is the encoder with cross-attention, which is drawn by the seed, and predicts by the
    model's LM head. It is the model's `head`: checkpoints hold its untied weights, which an encoder
    or a masked LM that is opened from one ignores.
    """
    encoder: Any = model.condenser.encoder
    config = copy.deepcopy(encoder.config)
    if config.model_type not in ENCODERS_WITH_DECODER:
        raise ValueError(
            "Objective tsdae needs a decoder with cross-attention, but transformers has none for "
            f"model_type {config.model_type!r}: choose an encoder of type "
            f"{', '.join(ENCODERS_WITH_DECODER)}, or another objective."
        )
    config.is_decoder = config.add_cross_attention = True
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.head = AutoModel.from_config(config)
    for name, parameter in encoder.named_parameters():
        place, _, own = name.rpartition(".")
        setattr(model.head.get_submodule(place), own, parameter)
        model._tied_weights_keys[f"head.{name}"] = f"condenser.encoder.{name}"  # saved once
    model.forward = partial(reconstruct, model)  # of the instance: checkpoints copy the class


def reconstruct(
    model: Any,
    input_ids: torch.Tensor,
    labels: torch.Tensor,
    noisy_input_ids: torch.Tensor,
    noisy_attention_mask: torch.Tensor,
    num_items_in_batch: Any = None,
    **_: Any,
) -> dict[str, torch.Tensor]:
    """The loss of a `DenoisingCollator`'s batch, its sum divided by `num_items_in_batch`."""
    late = model.condenser(noisy_input_ids, attention_mask=noisy_attention_mask).last_hidden_state
    vectors = pool(late, model.config.pooling, attention_mask=noisy_attention_mask)  # (B, 1, H)
    hidden = model.head(input_ids[:, :-1], encoder_hidden_states=vectors, use_cache=False)[0]
    targets = labels[:, 1:]
    is_predicted = targets != IGNORE_INDEX
    logits = widen(model.lm_head(hidden[is_predicted]))
    loss = F.cross_entropy(logits, targets[is_predicted], reduction="sum")
    return {"loss": loss / (len(logits) if num_items_in_batch is None else num_items_in_batch)}


def remove_decoder(model: Any) -> None:
    """Make a model with a decoder a plain masked LM again."""
    ties = model._tied_weights_keys
    model._tied_weights_keys = {n: ties[n] for n in ties if not n.startswith("head.")}
    del model.head
    del model.forward  # that of the instance; the class has its own
