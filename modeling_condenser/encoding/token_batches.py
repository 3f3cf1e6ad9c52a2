"""Texts in, batches of token ids out, by length and within a budget of tokens.

Texts of one collection differ in length by a factor of a hundred. Batches of a fixed number of
texts in their order are mostly padding, and a batch size that suits the longest texts leaves the
device idle on the short ones. Here every text is tokenized once, the texts are sorted by their
number of tokens, and a batch holds as many neighbours as fit into the budget.

The batches follow from the texts alone: encoded again, the same texts lie in the same batches and
get the same bits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from .precision import rounded_rows

# The tokenizer holds offsets and strings of all tokens of a call, those that are cut off too.
_CHARACTERS_A_CALL = 1_000_000


@dataclass(frozen=True)
class TokenizedTexts:
    """The tokens of N texts, one text behind the other.

    Attributes:
        ids: (tokens,) int32.
        starts: (N + 1,) int64, where each text begins, and the end.
        type_ids: (tokens,) int32 segment ids, or None.
    """

    ids: np.ndarray
    starts: np.ndarray
    type_ids: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each text, (N,) int64."""
        return np.diff(self.starts)

    def tokens_of(self, rows: np.ndarray) -> np.ndarray:
        """Where the tokens of some texts, (B,), lie among all, one text behind the other."""
        lengths = self.lengths[rows]
        place_in_text = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return np.repeat(self.starts[rows], lengths) + place_in_text


def tokenize_texts(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    *,
    max_length: int,
    token_type_ids: bool = False,
) -> TokenizedTexts:
    """Tokenize texts without padding.

    Args:
        tokenizer: adds its special tokens.
        texts: N texts.
        max_length: tokens to keep of each, special ones included.
        token_type_ids: whether to keep the tokenizer's segment ids, too.
    """
    names = ["input_ids", "token_type_ids"] if token_type_ids else ["input_ids"]
    parts: dict[str, list[np.ndarray]] = {name: [np.empty(0, np.int32)] for name in names}
    lengths = [0]
    for some in _by_characters(texts):
        encoded = tokenizer(
            some,
            truncation=True,
            max_length=max_length,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=token_type_ids,
        )
        lengths.extend(map(len, encoded["input_ids"]))
        for name in names:
            parts[name].append(np.fromiter(chain.from_iterable(encoded[name]), np.int32))
    columns = {name: np.concatenate(part) for name, part in parts.items()}
    starts = np.cumsum(lengths, dtype=np.int64)
    return TokenizedTexts(columns["input_ids"], starts, columns.get("token_type_ids"))


def _by_characters(texts: Sequence[str]) -> Iterator[list[str]]:
    """Consecutive texts, of some number of characters together."""
    some: list[str] = []
    characters = 0
    for text in texts:
        some.append(text)
        characters += len(text) + 1
        if characters >= _CHARACTERS_A_CALL:
            yield some
            some, characters = [], 0
    if some:
        yield some


def padded_batches(
    texts: TokenizedTexts,
    *,
    tokenizer: PreTrainedTokenizerBase,
    token_budget: int,
    max_length: int,
    multiple: int = 1,
) -> Iterator[tuple[np.ndarray, dict[str, torch.Tensor]]]:
    """Make padded batches of all texts.

    Args:
        texts: N texts.
        tokenizer: says what to pad with, and where.
        token_budget: see `plan_batches`.
        max_length: of a text, beyond which none is padded.
        multiple: what the longest text's length is rounded up to. Where it is above 1, the number
            of a batch's texts is rounded up, too, by copies of its own.

    Yields:
        The rows of a batch, (B,) int64, and what `pad_batch` makes of them; copies are at its end.
    """
    for rows in plan_batches(texts.lengths, token_budget=token_budget, multiple=multiple):
        length = min(rounded_up(int(texts.lengths[rows].max()), multiple), max_length)
        filled = rows
        if multiple > 1:
            filled = np.resize(rows, rounded_rows(len(rows), most=token_budget // length))
        yield rows, pad_batch(texts, filled, tokenizer=tokenizer, length=length)


def plan_batches(lengths: np.ndarray, *, token_budget: int, multiple: int = 1) -> list[np.ndarray]:
    """Put texts of like length together.

    A batch's shape follows from its longest text, but for the last batch; so there are not many
    different shapes, each of which costs some libraries the making of a kernel.

    Args:
        lengths: tokens of each of N texts, (N,) whole numbers.
        token_budget: the most tokens of a batch with its padding, which is its number of texts
            times its longest text. A single text that is longer has a batch of its own.
        multiple: what the longest text's length is rounded up to.

    Returns:
        The rows of each batch, (B,) int64, in the order of `longest_first`.

    Raises:
        ValueError: the budget is below 1.
    """
    order = longest_first(lengths, token_budget)
    batches, first = [], 0
    while first < len(order):
        longest = rounded_up(max(int(lengths[order[first]]), 1), multiple)
        last = first + max(token_budget // longest, 1)
        batches.append(order[first:last])
        first = last
    return batches


def longest_first(lengths: np.ndarray, token_budget: int) -> np.ndarray:
    """The rows of N texts in the order in which batches take them, (N,) int64.

    The longest come first, so that a batch that does not fit into memory fails at the start; of
    equal lengths the lower row comes first.

    Raises:
        ValueError: the budget is below 1.
    """
    if token_budget < 1:
        raise ValueError(f"token_budget is {token_budget}, expected at least 1, e.g. 4096.")
    return np.argsort(-lengths, kind="stable")


def rounded_up(number: int, multiple: int) -> int:
    """The next multiple."""
    return -(-number // multiple) * multiple


def pad_batch(
    texts: TokenizedTexts,
    rows: np.ndarray,
    *,
    tokenizer: PreTrainedTokenizerBase,
    length: int | None = None,
) -> dict[str, torch.Tensor]:
    """Make a batch, padded to its longest text, on the tokenizer's side.

    Args:
        texts: N texts.
        rows: (B,) int64, which of them.
        tokenizer: says what to pad with, and where.
        length: to pad to, T, if not the longest text's; at least that.

    Returns:
        `input_ids`, `attention_mask` and, where the texts have them, `token_type_ids`, each (B, T)
        int64 on the CPU.
    """
    lengths = texts.lengths[rows]  # (B,)
    longest = max(int(lengths.max()), length or 0)
    places = np.arange(longest)
    if tokenizer.padding_side == "left":
        mask = places >= longest - lengths[:, None]  # (B, T)
    else:
        mask = places < lengths[:, None]  # (B, T)
    tokens = texts.tokens_of(rows)
    batch = {"input_ids": _filled(mask, texts.ids[tokens], tokenizer.pad_token_id)}
    batch["attention_mask"] = mask.astype(np.int64)
    if texts.type_ids is not None:
        padding = tokenizer.pad_token_type_id
        batch["token_type_ids"] = _filled(mask, texts.type_ids[tokens], padding)
    return {name: torch.from_numpy(column) for name, column in batch.items()}


def _filled(mask: np.ndarray, tokens: np.ndarray, padding: int) -> np.ndarray:
    filled = np.full(mask.shape, padding, dtype=np.int64)  # (B, T)
    filled[mask] = tokens
    return filled
