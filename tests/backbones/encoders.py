"""One tiny, random encoder of each supported architecture, and a tokenizer of the kind it has.

docs/pretraining.md lists the steps to add an architecture.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AlbertConfig,
    AlbertTokenizer,
    AutoModelForMaskedLM,
    BertConfig,
    BertTokenizerFast,
    CamembertConfig,
    DebertaV2Config,
    DebertaV2Tokenizer,
    DistilBertConfig,
    ElectraConfig,
    ModernBertConfig,
    MPNetConfig,
    MPNetTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    RobertaConfig,
    XLMRobertaConfig,
    set_seed,
)

from tests.vocabularies import byte_pairs, unigrams, word_pieces

LAYERS, HEADS, WIDTH, VOCABULARY, POSITIONS = 4, 2, 16, 60, 32

_WIDTHS: dict[str, Any] = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
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
}


@dataclass(frozen=True)
class Backbone:
    """How a tiny encoder of one architecture is made.

    Attributes:
        title: its name in the docs.
        config_class: its configuration.
        settings: of the configuration, beside vocabulary and positions.
        tokenizer: makes a tokenizer of its kind from texts.
        padding: id of its padding token.
        offset: positions that no token can have, because they are counted from behind that id.
    """

    title: str
    config_class: type[PreTrainedConfig]
    settings: dict[str, Any]
    tokenizer: Callable[[Sequence[str]], PreTrainedTokenizerBase]
    padding: int = 0
    offset: int = 0

    def config(
        self, *, vocab_size: int = VOCABULARY, positions: int = POSITIONS, **changes: Any
    ) -> Any:
        """The configuration of a tiny encoder without dropout, far from linear."""
        return self.config_class(
            **{
                "vocab_size": vocab_size,
                "max_position_embeddings": positions + self.offset,
                "pad_token_id": self.padding,
                "initializer_range": 0.3,
                **self.settings,
                **changes,
            }
        )

    def save(
        self, folder: Path, texts: Sequence[str], *, positions: int = 64, **changes: Any
    ) -> Path:
        """Save a random encoder with its masked-LM head and a tokenizer trained on the texts."""
        tokenizer = self.tokenizer(texts)
        tokenizer.model_max_length = positions
        config = self.config(vocab_size=len(tokenizer), positions=positions, **changes)
        set_seed(0)
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
        mask = (torch.arange(width) < lengths).long()
        chosen = (torch.rand(shape, generator=generator) < 0.3) & (mask == 1)
        chosen[:, 0], chosen[0, 2] = False, True
        originals = torch.randint(5, VOCABULARY, shape, generator=generator)
        return {
            "input_ids": ids.where(mask == 1, self.padding),
            "attention_mask": mask,
            "labels": originals.where(chosen, -100),
        }


_SIZE = 400


def _word_pieces(texts: Sequence[str], special: list[str]) -> dict[str, int]:
    normalizer = BertTokenizerFast().backend_tokenizer.normalizer
    return word_pieces(texts, special, size=_SIZE, normalizer=normalizer)


def _bert_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerBase:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return BertTokenizerFast(vocab=_word_pieces(texts, special))


def _mpnet_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerBase:
    """WordPiece between RoBERTa's special tokens, both kinds of which are in the vocabulary."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "<mask>"]
    return MPNetTokenizer(vocab=_word_pieces(texts, special))


def _albert_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerBase:
    special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    lowered = [text.lower() for text in texts]
    return AlbertTokenizer(vocab=unigrams(lowered, special, size=_SIZE))


def _deberta_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerBase:
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    return DebertaV2Tokenizer(vocab=unigrams(texts, special, size=_SIZE), unk_id=3)


def _sentencepiece_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerBase:
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = Tokenizer(models.Unigram(unigrams(texts, special, size=_SIZE), unk_id=3))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    tokenizer.decoder = decoders.Metaspace()
    return _framed(tokenizer, *special)


def _byte_pairs(texts: Sequence[str], special: list[str]) -> PreTrainedTokenizerBase:
    tokenizer = byte_pairs(texts, special, size=_SIZE)
    tokenizer.decoder = decoders.ByteLevel()
    return _framed(tokenizer, *special)


def _roberta_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerBase:
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    return _byte_pairs(texts, special)


def _modernbert_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerBase:
    """Byte-level BPE between BERT's special tokens, with runs of blanks as tokens of their own."""
    special = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]
    tokenizer = _byte_pairs(texts, special)
    tokenizer.add_tokens(["  ", "   "])
    return tokenizer


def _framed(
    tokenizer: Tokenizer, cls: str, pad: str, sep: str, unknown: str, mask: str
) -> PreTrainedTokenizerBase:
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B {sep}",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (cls, sep)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        cls_token=cls,
        pad_token=pad,
        sep_token=sep,
        unk_token=unknown,
        mask_token=mask,
    )


_NARROW = {"embedding_size": 8, **_SIZES}  # embeddings narrower than the hidden states
BACKBONES = {
    backbone.title: backbone
    for backbone in (
        Backbone("ALBERT", AlbertConfig, {"num_hidden_groups": 2, **_NARROW}, _albert_tokenizer),
        Backbone("BERT", BertConfig, _SIZES, _bert_tokenizer),
        Backbone("CamemBERT", CamembertConfig, _SIZES, _sentencepiece_tokenizer, 1, 2),
        Backbone(
            "DeBERTa-v2",
            DebertaV2Config,
            {**_RELATIVE, "conv_kernel_size": 3, "conv_act": "gelu", **_SIZES},
            _deberta_tokenizer,
        ),
        Backbone("DeBERTa-v3", DebertaV2Config, {**_RELATIVE, **_SIZES}, _deberta_tokenizer),
        Backbone(
            "DistilBERT",
            DistilBertConfig,
            {
                "dim": WIDTH,
                "n_layers": LAYERS,
                "n_heads": HEADS,
                "hidden_dim": 24,
                "dropout": 0.0,
                "attention_dropout": 0.0,
            },
            _bert_tokenizer,
        ),
        Backbone("ELECTRA", ElectraConfig, _NARROW, _bert_tokenizer),
        Backbone(
            "ModernBERT",
            ModernBertConfig,
            {
                **_WIDTHS,
                "local_attention": 4,
                # The last layer is local: the head must be like the last but one.
                "layer_types": ["full_attention", "sliding_attention"] * 2,
                "bos_token_id": 0,
                "cls_token_id": 0,
                "eos_token_id": 2,
                "sep_token_id": 2,
            },
            _modernbert_tokenizer,
            1,
        ),
        Backbone("MPNet", MPNetConfig, _SIZES, _mpnet_tokenizer, 1, 2),
        Backbone("RoBERTa", RobertaConfig, _SIZES, _roberta_tokenizer, 1, 2),
        Backbone("XLM-RoBERTa", XLMRobertaConfig, _SIZES, _sentencepiece_tokenizer, 1, 2),
    )
}
