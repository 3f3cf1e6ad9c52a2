"""A starting encoder where none is given: a vocabulary from the corpus, and random weights."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertTokenizerFast, set_seed

from modeling_condenser.configuration_condenser import CondenserConfig
from modeling_condenser.modeling_condenser import CondenserForMaskedLM
from modeling_condenser.pretraining.pretrain import save_model


def make_starting_encoder(
    texts: Iterable[str], out: Path, *, encoder_config: Mapping[str, Any], seed: int = 0
) -> Path:
    """Train a WordPiece vocabulary and draw a BERT's weights.

    Args:
        texts: to train the vocabulary on.
        out: folder for tokenizer and weights; left alone if it exists.
        encoder_config: fields of `BertConfig`; `vocab_size` is the size of the vocabulary.
        seed: of the weights.

    Returns:
        `out`, which pre-training starts from like from any encoder.

    Raises:
        ValueError: `encoder_config` does not state the sizes of vocabulary and positions.
    """
    missing = {"vocab_size", "max_position_embeddings"} - encoder_config.keys()
    if missing:
        raise ValueError(
            f"encoder_config lacks {', '.join(sorted(missing))}: state them, or name an encoder to "
            "start from."
        )
    if out.is_dir():
        return out
    trainer = BertWordPieceTokenizer(lowercase=True)
    trainer.train_from_iterator(texts, vocab_size=encoder_config["vocab_size"], show_progress=False)
    tokenizer = BertTokenizerFast(tokenizer_object=trainer._tokenizer)
    tokenizer.model_max_length = encoder_config["max_position_embeddings"]
    set_seed(seed)
    config = CondenserConfig(encoder_config=BertConfig(**encoder_config))
    save_model(CondenserForMaskedLM(config), tokenizer, out)
    return out
