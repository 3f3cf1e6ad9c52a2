"""One tiny, random encoder of each supported architecture, and a tokenizer of the kind it has.

CONTRIBUTING.md lists the steps to add an architecture.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedTokenizerBase

from tests.tokenizers import (
    albert_tokenizer,
    bert_tokenizer,
    deberta_tokenizer,
    modernbert_tokenizer,
    mpnet_tokenizer,
    roberta_tokenizer,
    sentencepiece_tokenizer,
)

LAYERS, VOCABULARY, POSITIONS = 4, 60, 32

_WIDTHS: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
_SIZES = {**_WIDTHS, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_RELATIVE: dict[str, Any] = {
    "relative_attention": True,
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
    "type_vocab_size": 0,
    **_SIZES,
}
_CONVOLUTION = {"conv_kernel_size": 3, "conv_act": "gelu", **_RELATIVE}
_NARROW = {"embedding_size": 8, **_SIZES}  # embeddings narrower than the hidden states
_SHARED = {"num_hidden_groups": 2, **_NARROW}
_DISTIL = {**_WIDTHS, "hidden_dim": 24, "dropout": 0.0, "attention_dropout": 0.0}
_EURO = {**_WIDTHS, "bos_token_id": 0, "eos_token_id": 2}
_EURO["mask_token_id"] = 4
# The last layer is local: the head must be like the last but one.
_LOCAL = {**_WIDTHS, "local_attention": 4}
_LOCAL["layer_types"] = ["full_attention", "sliding_attention"] * 2


@dataclass(frozen=True)
class Backbone:
    """How a tiny encoder of one architecture is made."""

    title: str  # in the docs
    model_type: str
    settings: dict[str, Any]  # beside vocabulary and positions
    tokenizer: Callable[[Sequence[str]], PreTrainedTokenizerBase]
    padding: int = 0  # id of the padding token
    offset: int = 0  # positions that no token has, where they are counted from behind that id
    # Which rows the last layer computes of a packed batch, if batches can be packed.
    packed: Literal["rows that are read", "all rows"] | None = "rows that are read"
    tolerance: float = 1e-7  # of losses and gradients in double precision

    def config(
        self, *, vocab_size: int = VOCABULARY, positions: int = POSITIONS, **changes: Any
    ) -> Any:
        """The configuration of a tiny encoder without dropout, far from linear."""
        settings = {
            "vocab_size": vocab_size,
            "max_position_embeddings": positions + self.offset,
            "pad_token_id": self.padding,
            "initializer_range": 0.3,
        }
        return AutoConfig.for_model(self.model_type, **{**settings, **self.settings, **changes})

    def save(
        self, folder: Path, texts: Sequence[str], *, positions: int = 64, **changes: Any
    ) -> Path:
        """Save a random encoder with its masked-LM head and a tokenizer trained on the texts."""
        tokenizer = self.tokenizer(texts)
        tokenizer.model_max_length = positions
        config = self.config(vocab_size=len(tokenizer), positions=positions, **changes)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            AutoModelForMaskedLM.from_config(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    def batch(self, n_blocks: int = 5, width: int = 12) -> dict[str, torch.Tensor]:
        """Blocks of random tokens and lengths, padded, a third of their tokens to be predicted."""
        generator = torch.Generator().manual_seed(0)
        shape = (n_blocks, width)
        ids = torch.randint(5, VOCABULARY, shape, generator=generator)
        lengths = torch.randint(4, width + 1, (n_blocks, 1), generator=generator)
        lengths[0], lengths[1] = width, 4
        lengths[2:4] = lengths[2:3].clone()  # some of equal length
        mask = (torch.arange(width) < lengths).long()
        chosen = (torch.rand(shape, generator=generator) < 0.3) & (mask == 1)
        chosen[:, 0], chosen[0, 2] = False, True
        originals = torch.randint(5, VOCABULARY, shape, generator=generator)
        return {
            "input_ids": ids.where(mask == 1, self.padding),
            "attention_mask": mask,
            "labels": originals.where(chosen, -100),
        }


BACKBONES = {
    backbone.title: backbone
    for backbone in (
        # Calls one layer again and again.
        Backbone("ALBERT", "albert", _SHARED, albert_tokenizer, packed="all rows"),
        Backbone("BERT", "bert", _SIZES, bert_tokenizer),
        Backbone("CamemBERT", "camembert", _SIZES, sentencepiece_tokenizer, 1, 2),
        Backbone("DeBERTa-v2", "deberta-v2", _CONVOLUTION, deberta_tokenizer, packed=None),
        Backbone("DeBERTa-v3", "deberta-v2", _RELATIVE, deberta_tokenizer, packed=None),
        Backbone("DistilBERT", "distilbert", _DISTIL, bert_tokenizer),
        Backbone("ELECTRA", "electra", _NARROW, bert_tokenizer),
        Backbone("ERNIE", "ernie", _SIZES, bert_tokenizer),
        # Its norms compute in single precision.
        Backbone("EuroBERT", "eurobert", _EURO, modernbert_tokenizer, 1, 0, "all rows", 1e-5),
        # Turn queries and keys by their positions.
        Backbone("GTE", "gte", _SIZES, sentencepiece_tokenizer, 1, packed="all rows"),
        Backbone(
            "Jina v3", "jina_embeddings_v3", _SIZES, sentencepiece_tokenizer, 1, packed="all rows"
        ),
        # Projects queries and keys together.
        Backbone("ModernBERT", "modernbert", _LOCAL, modernbert_tokenizer, 1, packed="all rows"),
        Backbone("MPNet", "mpnet", _SIZES, mpnet_tokenizer, 1, 2, packed=None),
        Backbone("Nomic BERT", "nomic_bert", _SIZES, bert_tokenizer, packed="all rows"),
        Backbone("RoBERTa", "roberta", _SIZES, roberta_tokenizer, 1, 2),
        Backbone("XLM-RoBERTa", "xlm-roberta", _SIZES, sentencepiece_tokenizer, 1, 2),
    )
}
