"""Vocabularies for the tests' tokenizers, the same each time they are made.

The tokenizers library's own trainers for WordPiece and Unigram break ties as a hash map happens to
stand in memory, so a test could pass in one process and fail in the next.
"""

import math
from collections.abc import Sequence

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers


def word_pieces(
    texts: Sequence[str], special: list[str], *, size: int, normalizer: normalizers.Normalizer
) -> dict[str, int]:
    """Tokens of WordPiece and their ids, special tokens first."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    # The letters that continue a word would be numbered by chance; named before, they are not.
    letters = set().union(*(normalizer.normalize_str(text) for text in texts))
    inner = [f"##{letter}" for letter in sorted(letters) if not letter.isspace()]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=special + inner, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.get_vocab()


def byte_pairs(texts: Sequence[str], special: list[str], *, size: int) -> Tokenizer:
    """A byte-level BPE tokenizer, special tokens first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def unigrams(texts: Sequence[str], special: list[str], *, size: int) -> list[tuple[str, float]]:
    """Pieces of Unigram and log probabilities: what BPE finds, by Zipf's law in its order."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=size - len(special), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    in_order = sorted(tokenizer.get_vocab().items(), key=lambda piece: piece[1])
    # Letters stand first there, and last here, so that words are not spelled.
    pieces = sorted((piece for piece, _ in in_order), key=lambda piece: len(piece) == 1)
    scored = [(piece, -math.log(rank)) for rank, piece in enumerate(pieces, start=2)]
    return [*((token, 0.0) for token in special), *scored]
