"""A starting encoder where none is given: a vocabulary from the corpus, and random weights."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertTokenizer, set_seed

from modeling_condenser.configuration_condenser import CondenserConfig
from modeling_condenser.modeling_condenser import CondenserForMaskedLM
from modeling_condenser.runs.run_folder import whole_folder

_SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def make_starting_encoder(
    texts: Iterable[str], out: Path, *, encoder_config: Mapping[str, Any], seed: int = 0
) -> Path:
    """Train a WordPiece vocabulary and draw the weights of a BERT, unless `out` exists.

    `encoder_config` has fields of `BertConfig`.
    """
    if out.is_dir():
        return out
    encoder = BertConfig(**encoder_config)
    vocabulary = _train_vocabulary(list(texts), encoder.vocab_size)
    pieces = BertWordPieceTokenizer(vocabulary, lowercase=True)
    tokenizer = BertTokenizer(tokenizer_object=pieces._tokenizer)
    tokenizer.model_max_length = encoder.max_position_embeddings
    set_seed(seed)
    model = CondenserForMaskedLM(CondenserConfig(encoder_config=encoder))
    with whole_folder(out) as partial:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
    return out


def _train_vocabulary(texts: Sequence[str], size: int) -> dict[str, int]:
    """Train a WordPiece vocabulary that is the same in each process.

    The library numbers single characters in the order of a hash map, and this order decides ties
    between pieces. So a first training finds the characters, and the second gets them sorted.
    """
    characters = BertWordPieceTokenizer(lowercase=True)
    characters.train_from_iterator(texts, vocab_size=1, show_progress=False)
    given = [*_SPECIAL_TOKENS, *sorted(characters.get_vocab().keys() - set(_SPECIAL_TOKENS))]
    pieces = BertWordPieceTokenizer(lowercase=True)
    pieces.train_from_iterator(texts, vocab_size=size, special_tokens=given, show_progress=False)
    return pieces.get_vocab()
