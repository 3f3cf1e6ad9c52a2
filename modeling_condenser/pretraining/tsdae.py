"""TSDAE: a decoder reconstructs a text from the CLS vector of what is left of it.

Wang, Reimers & Gurevych (2021), "TSDAE: Using Transformer-based Sequential Denoising Auto-Encoder
for Unsupervised Sentence Embedding Learning": each word of a text is deleted with a probability of
0.6, the encoder reads the rest, and a decoder, whose cross-attention sees the CLS vector only,
predicts the whole text from left to right. Encoder and decoder share their weights. Unlike in
sentence-transformers, words are those of whole-word masking, not NLTK's; the rest is not tokenized
again; and the loss is averaged over the tokens of an optimiser step, not of a micro-batch.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForMaskedLM

from modeling_condenser.hub.quiet_loading import quiet_loading
from modeling_condenser.modeling_condenser import take_lm_head

from .collator import CondenserDataCollator
from .counter_random import uniforms
from .masking import IGNORE_INDEX

DELETION_STREAM = 4  # of a block's key, beside those of masking.py
# Encoders of which transformers also has a decoder with cross-attention.
ENCODERS_WITH_DECODER = ("bert", "camembert", "electra", "roberta", "xlm-roberta")


class DenoisingCollator:
    """Makes padded batches of blocks, and of copies of them without most of their words.

    The deleted words depend on a block and its `mask_key` only; at least one is kept.
    """

    def __init__(self, collator: CondenserDataCollator, *, deletion_probability: float = 0.6):
        self.collator = collator
        self.deletion_probability = deletion_probability

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """`input_ids`, `attention_mask` and `labels` of blocks, (B, T) int64, and of their copies.

        `labels` is -100 at padding and at the first token, which is not predicted. The copies are
        `noisy_input_ids` and `noisy_attention_mask`, each (B, N) int64.
        """
        blocks, keys = self.collator.read(examples)
        ids, is_text, is_token = self.collator.frame(blocks)
        words = self.collator.word_starts.number_words(ids, is_text)
        kept = _choose_kept(words, is_text, keys, self.deletion_probability)
        left = [row[is_kept] for row, is_kept in zip(ids, kept, strict=True)]
        noisy_ids, _, is_noisy_token = self.collator.frame(left)
        labels = np.where(ids == self.collator.pad_token_id, IGNORE_INDEX, ids)
        labels[:, 0] = IGNORE_INDEX
        batch = {
            "input_ids": ids,
            "attention_mask": is_token,
            "labels": labels,
            "noisy_input_ids": noisy_ids,
            "noisy_attention_mask": is_noisy_token,
        }
        return {name: torch.from_numpy(values).long() for name, values in batch.items()}


def _choose_kept(
    words: np.ndarray, is_text: np.ndarray, keys: np.ndarray, deletion_probability: float
) -> np.ndarray:
    """(B, T) bool, tokens of the words that are not deleted; a token outside words is a word."""
    begins = is_text & ((words < 0) | (words != np.roll(words, 1, axis=1)))
    numbers = np.maximum(begins.cumsum(axis=1) - 1, 0)
    draws = uniforms(keys, int(numbers.max()) + 1, stream=DELETION_STREAM)
    draws = np.where(is_text, np.take_along_axis(draws, numbers, axis=1), -1)  # (B, T)
    # The largest draw is always kept: where all words would be deleted, it is a random one.
    return is_text & ((draws >= deletion_probability) | (draws == draws.max(axis=1, keepdims=True)))


def add_decoder(model: Any) -> None:
    """Give a `CondenserForMaskedLM` TSDAE's decoder and loss, in place of its forward pass.

    The decoder is tied to the encoder; it starts from a copy of the LM head, and its
    cross-attention is drawn from torch's generator. It is the model's `head`, so checkpoints hold
    its untied weights, and an encoder or a masked LM that is opened from one ignores them.
    """
    encoder: Any = model.condenser.encoder
    config = copy.deepcopy(encoder.config)
    if config.model_type not in ENCODERS_WITH_DECODER:
        raise ValueError(
            f"The encoder is of model_type {config.model_type!r}, of which transformers has no "
            "decoder with cross-attention, which objective tsdae needs: choose an encoder of type "
            f"{', '.join(ENCODERS_WITH_DECODER)}, or another objective."
        )
    masked_lm: Any = AutoModelForMaskedLM.from_config(config)
    take_lm_head(masked_lm)[0].load_state_dict(model.lm_head.state_dict())
    setattr(masked_lm, masked_lm.base_model_prefix, encoder)
    config.is_decoder = config.add_cross_attention = True
    decoder_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    state = copy.deepcopy(masked_lm.state_dict())
    with quiet_loading():
        decoder = decoder_class.from_pretrained(None, config=config, state_dict=state)
    tied = _tie(decoder, encoder)
    model.head = decoder
    # A checkpoint has these as the encoder's.
    model._keys_to_ignore_on_save = {f"head.{name}" for name in tied} | {*model._tied_weights_keys}

    # Replaces the forward pass of the instance; checkpoints name and copy its class. The Trainer
    # gives `num_items_in_batch` only to a forward pass that takes `**kwargs`.
    def forward(
        input_ids: torch.Tensor,
        labels: torch.Tensor,
        noisy_input_ids: torch.Tensor,
        noisy_attention_mask: torch.Tensor,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Any,
    ) -> dict[str, torch.Tensor]:
        """The loss of a `DenoisingCollator`'s batch, its sum divided by `num_items_in_batch`."""
        read = encoder(input_ids=noisy_input_ids, attention_mask=noisy_attention_mask)
        logits = decoder(
            input_ids=input_ids[:, :-1],
            encoder_hidden_states=read.last_hidden_state[:, :1],  # (B, 1, H)
            encoder_attention_mask=noisy_attention_mask[:, :1],
            use_cache=False,
        ).logits  # (B, T - 1, V)
        targets = labels[:, 1:].flatten()
        mean = cross_entropy(logits.flatten(0, 1), targets, ignore_index=IGNORE_INDEX)
        n_items = (targets != IGNORE_INDEX).sum()
        return {"loss": mean * n_items / (num_items_in_batch or n_items)}

    model.forward = forward


def remove_decoder(model: Any) -> None:
    """Make a model with a decoder a plain masked LM again."""
    model._keys_to_ignore_on_save = None
    del model.head, model.forward


def _tie(decoder: Any, encoder: torch.nn.Module) -> list[str]:
    """Replace weights of a decoder by its encoder's, and return their names in the decoder."""
    layers = dict(decoder.base_model.named_modules())
    for name, weight in encoder.named_parameters():
        layer, _, attribute = name.rpartition(".")
        if layer in layers:  # all but the pooler
            setattr(layers[layer], attribute, weight)
    decoder.tie_weights()  # its LM head to its new embeddings
    of_encoder = {id(weight) for weight in encoder.parameters()}
    weights = decoder.named_parameters(remove_duplicate=False)
    return [name for name, weight in weights if id(weight) in of_encoder]
