"""Warn of text that a tokenizer does not know."""

import logging

from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)


def warn_of_unknown(
    tokenizer: PreTrainedTokenizerBase, *, n_unknown: int, n_tokens: int, n_texts: int
) -> bool:
    """Log a warning, and return True, if more than a fifth of the tokens is the unknown one."""
    ends = (tokenizer.sep_token_id, tokenizer.eos_token_id)  # that some vocabularies use as unknown
    if tokenizer.unk_token_id in ends or n_unknown <= n_tokens / 5:
        return False
    logger.warning(
        "%.0f %% of the tokens (texts: %d) are %s, the tokenizer's token for what it does not know,"
        " which the model cannot read: choose an encoder for the language and script of these"
        " texts.",
        100 * n_unknown / n_tokens,
        n_texts,
        tokenizer.unk_token,
    )
    return True
