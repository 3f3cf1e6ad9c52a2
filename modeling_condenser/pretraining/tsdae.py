"""TSDAE: a decoder reconstructs a text from the vector of a copy without most of its words.

Wang, Reimers & Gurevych (2021), "TSDAE: Using Transformer-based Sequential Denoising Auto-Encoder
for Unsupervised Sentence Embedding Learning": each word of a text is deleted with a probability of
0.6, the encoder reads the rest, and a decoder, whose cross-attention sees the dense vector only,
predicts the whole text from left to right. Encoder and decoder share their weights. Loss and
decoder are those of sentence-transformers (`DenoisingAutoEncoderLoss`), but words are those of
whole-word masking, and the loss is averaged over the tokens of an optimiser step.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_model
from transformers import AutoModelForMaskedLM, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import SAFE_WEIGHTS_NAME

from modeling_condenser.configuration_condenser import SUPPORTED_ENCODERS
from modeling_condenser.losses import IGNORE_INDEX
from modeling_condenser.model_files.model_folder import quiet_loading
from modeling_condenser.modeling_condenser import CondenserForMaskedLM, take_lm_head

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
        """`input_ids`, `attention_mask` and `labels` of blocks, (B, T) int64, and of their copies.

        `labels` is -100 at padding and at the first token, which is not predicted. The copies are
        `noisy_input_ids` and `noisy_attention_mask`, each (B, N) int64.
        """
        blocks, keys = self.collator.read(examples)
        ids, is_text, is_token = self.collator.frame(blocks, prompted=False)
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
    """Tokens of the words that are not deleted, (B, T) bool; a token outside words is a word."""
    begins = is_text & ((words < 0) | (words != np.roll(words, 1, axis=1)))
    numbers = np.maximum(begins.cumsum(axis=1) - 1, 0)
    draws = uniforms(keys, int(numbers.max()) + 1, stream=DELETION_STREAM)
    draws = np.where(is_text, np.take_along_axis(draws, numbers, axis=1), -1)  # (B, T)
    # The word with the largest draw is always kept, so at least one random word remains.
    return is_text & ((draws >= deletion_probability) | (draws == draws.max(axis=1, keepdims=True)))


def add_decoder(
    model: CondenserForMaskedLM, tokenizer: PreTrainedTokenizerBase, *, seed: int = 0
) -> None:
    """Add TSDAE's decoder, tied to the encoder, and make TSDAE's loss the model's forward pass.

    The decoder starts from the encoder and a copy of the LM head; its cross-attention is drawn by
    the seed. It is the model's `head`, so checkpoints hold its untied weights, which an
    encoder or a masked LM that is opened from one ignores.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import DenoisingAutoEncoderLoss
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    encoder: Any = model.condenser.encoder
    config = encoder.config
    if config.model_type not in ENCODERS_WITH_DECODER:
        raise ValueError(
            "Objective tsdae needs a decoder with cross-attention, but transformers has none for "
            f"model_type {config.model_type!r}: choose an encoder of type "
            f"{', '.join(ENCODERS_WITH_DECODER)}, or another objective."
        )
    with TemporaryDirectory() as folder, quiet_loading(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # The library loads the decoder from the folder that the encoder's configuration names.
        _save_plain(model, folder)
        tokenizer.save_pretrained(folder)
        transformer = Transformer(folder)
        transformer.model = encoder
        start, config.name_or_path = config.name_or_path, folder
        pooling = Pooling(config.hidden_size, pooling_mode=model.config.pooling)
        loss = DenoisingAutoEncoderLoss(SentenceTransformer(modules=[transformer, pooling]))
        config.name_or_path = start
    model.head = loss.decoder
    _declare_ties(model)
    model.tie_weights()  # the library has put the decoder's embeddings into the encoder
    _replace_forward(model, loss)


def remove_decoder(model: Any) -> None:
    """Make a model with a decoder a plain masked LM again."""
    ties = model._tied_weights_keys
    model._tied_weights_keys = {n: ties[n] for n in ties if not n.startswith("head.")}
    del model.head, model.forward


def _save_plain(model: CondenserForMaskedLM, folder: str) -> None:
    """Save encoder and LM head as a masked LM of their model type, in every process."""
    masked_lm: Any = AutoModelForMaskedLM.from_config(copy.deepcopy(model.config.encoder_config))
    take_lm_head(masked_lm)[0].load_state_dict(model.lm_head.state_dict())
    setattr(masked_lm, masked_lm.base_model_prefix, model.condenser.encoder)
    masked_lm.config.save_pretrained(folder)
    # Not save_pretrained: of several processes only the first would write.
    save_model(masked_lm, str(Path(folder, SAFE_WEIGHTS_NAME)), metadata={"format": "pt"})


def _declare_ties(model: Any) -> None:
    """Declare which weights of the decoder are the encoder's, so that they are saved once."""
    sources = {id(p): name for name, p in model.condenser.encoder.named_parameters()}
    tied = {
        f"head.{name}": f"condenser.encoder.{sources[id(p)]}"
        for name, p in model.head.named_parameters(remove_duplicate=False)
        if id(p) in sources
    }
    model._tied_weights_keys |= tied

    def forget_tied(_: torch.nn.Module, keys: Any) -> None:
        """Do not report tied weights as missing: a checkpoint holds them as the encoder's."""
        keys.missing_keys[:] = [key for key in keys.missing_keys if key not in tied]

    model.head.register_load_state_dict_post_hook(forget_tied)


def _replace_forward(model: Any, loss: torch.nn.Module) -> None:
    """Replace the forward pass of the instance, because checkpoints copy its class."""

    def forward(
        labels: torch.Tensor, num_items_in_batch: Any = None, **columns: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """The loss of a `DenoisingCollator`'s batch, its sum divided by `num_items_in_batch`."""
        names = ("input_ids", "attention_mask")
        noisy, whole = ({n: columns[f"{kind}{n}"] for n in names} for kind in ("noisy_", ""))
        mean = loss([noisy, whole], None)
        n_items = (labels != IGNORE_INDEX).sum()
        n_all = n_items if num_items_in_batch is None else num_items_in_batch
        return {"loss": mean * n_items / n_all}

    model.forward = forward
