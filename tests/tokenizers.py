"""Tokenizers of every kind, trained on a few texts and the same each time they are made.

The tokenizers library's own trainers for WordPiece and Unigram break ties by the order of a hash
map, so a test could pass in one process and fail in the next.
"""

import json
import math
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import (
    AlbertTokenizer,
    BertTokenizerFast,
    DebertaV2Tokenizer,
    MPNetTokenizer,
    PreTrainedTokenizerBase,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)

SIZE = 500
_OF_ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def bert_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerBase:
    """As of bert-base-uncased: lower case, no accents, `##` before pieces that continue."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return BertTokenizerFast(vocab=_word_pieces(texts, special))


def mpnet_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerBase:
    """WordPiece between RoBERTa's special tokens, both kinds of which are in the vocabulary."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "<mask>"]
    return MPNetTokenizer(vocab=_word_pieces(texts, special))


def albert_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerBase:
    special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    return AlbertTokenizer(vocab=_unigrams([text.lower() for text in texts], special))


def deberta_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerBase:
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    return DebertaV2Tokenizer(vocab=_unigrams(texts, special), unk_id=3)


def sentencepiece_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerBase:
    """As of xlm-roberta-base: Unigram, `▁` before tokens that follow a blank."""
    return XLMRobertaTokenizer(vocab=_unigrams(texts, _OF_ROBERTA))


def roberta_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerBase:
    """As of roberta-base: byte-level BPE, `Ġ` before tokens that follow a blank."""
    return RobertaTokenizer(**_byte_pairs(texts, _OF_ROBERTA))


def modernbert_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerBase:
    """Byte-level BPE between BERT's special tokens, with runs of blanks as tokens of their own."""
    special = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]
    kinds = ("cls_token", "pad_token", "sep_token", "unk_token", "mask_token")
    names = dict(zip(kinds, special, strict=True))
    ends = {"bos_token": "[CLS]", "eos_token": "[SEP]"}
    tokenizer = RobertaTokenizer(**_byte_pairs(texts, special), **names, **ends)
    tokenizer.add_tokens(["  ", "   "])
    return tokenizer


def _word_pieces(texts: Sequence[str], special: list[str]) -> dict[str, int]:
    """Tokens of WordPiece and their ids, special tokens first."""
    normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    # The letters that continue a word would be numbered by chance; named before, they are not.
    letters = set().union(*(normalizer.normalize_str(text) for text in texts))
    inner = [f"##{letter}" for letter in sorted(letters) if not letter.isspace()]
    trainer = trainers.WordPieceTrainer(
        vocab_size=SIZE, special_tokens=special + inner, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.get_vocab()


def _byte_pairs(texts: Sequence[str], special: list[str]) -> dict[str, Any]:
    """Vocabulary and merges of a byte-level BPE tokenizer, special tokens first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return {"vocab": model["vocab"], "merges": [tuple(pair) for pair in model["merges"]]}


def _unigrams(texts: Sequence[str], special: list[str]) -> list[tuple[str, float]]:
    """Pieces of Unigram and log probabilities: what BPE finds, by Zipf's law in its order."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=SIZE - len(special), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    in_order = sorted(tokenizer.get_vocab().items(), key=lambda piece: piece[1])
    # Letters stand first there, and last here, so that words are not spelled.
    pieces = sorted((piece for piece, _ in in_order), key=lambda piece: len(piece) == 1)
    scored = [(piece, -math.log(rank)) for rank, piece in enumerate(pieces, start=2)]
    return [*((token, 0.0) for token in special), *scored]
