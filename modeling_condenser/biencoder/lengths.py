"""Token lengths: texts of a batch in, tensors cut to the query's and the passage's own length out.

sentence-transformers cuts all texts of a batch at one length (per-task lengths came with 6.2, for
encoding). A contract has two, and training has to cut where encoding will.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from modeling_condenser.repository.contract import EncodingContract

QUERY = "query"  # the one column that is cut at the query's length
LABEL = "label"


@dataclass
class LengthCollator:
    """Tokenizes a batch, each column at its own greatest length.

    Attributes:
        tokenizer: the encoder's.
        contract: its lengths, and whether segment ids are passed.
        valid_label_columns: what the trainer asks a collator for.
    """

    tokenizer: PreTrainedTokenizerBase
    contract: EncodingContract
    valid_label_columns: list[str] = field(default_factory=lambda: [LABEL])

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Make a batch.

        Args:
            examples: B rows of text columns and, for some objectives, a `label` (numbers).

        Returns:
            For each text column `<column>_input_ids` and `<column>_attention_mask`, (B, T) int64,
            in the order of the columns; and `label`, (B,) or (B, n) float32.
        """
        batch: dict[str, torch.Tensor] = {}
        for column in examples[0]:
            values = [example[column] for example in examples]
            if column == LABEL:
                batch[LABEL] = torch.tensor(values, dtype=torch.float32)
                continue
            encoded = self.tokenizer(
                values,
                padding=True,
                truncation=True,
                max_length=self.max_length(column),
                return_tensors="pt",
                return_attention_mask=True,
                return_token_type_ids=self.contract.token_type_ids,
            )
            batch |= {f"{column}_{name}": tensor for name, tensor in encoded.items()}
        return batch

    def max_length(self, column: str) -> int:
        """The greatest length of a column's texts, in tokens."""
        is_query = column == QUERY
        return self.contract.query_max_length if is_query else self.contract.passage_max_length


def longest_input(encoder: nn.Module) -> int | None:
    """How many tokens an encoder has positions for; None where there is no such limit."""
    for module in encoder.modules():
        table = getattr(module, "position_embeddings", None)
        if isinstance(table, nn.Embedding):
            # RoBERTa and its kin count positions from behind the padding token's.
            first = 0 if table.padding_idx is None else table.padding_idx + 1
            return table.num_embeddings - first
    longest = getattr(encoder.config, "max_position_embeddings", None)
    return longest if isinstance(longest, int) and longest > 0 else None


def check_lengths(
    contract: EncodingContract, encoder: nn.Module, tokenizer: PreTrainedTokenizerBase, *, name: str
) -> None:
    """Check that texts of the contract's lengths have a place in an encoder.

    Args:
        contract: with the lengths.
        encoder: whose positions are counted.
        tokenizer: its tokenizer.
        name: of the encoder, for errors.

    Raises:
        ValueError: a length beyond the encoder's positions, or without room for a text's token; or
            a tokenizer that cannot pad.
    """
    longest = longest_input(encoder)
    n_special = tokenizer.num_special_tokens_to_add()
    for field_name in ("query_max_length", "passage_max_length"):
        length = getattr(contract, field_name)
        if longest is not None and length > longest:
            raise ValueError(
                f"{field_name} is {length}, but {name} has positions for {longest} tokens only: "
                f"choose at most {longest}."
            )
        if length <= n_special:
            raise ValueError(
                f"{field_name} is {length}, expected at least {n_special + 1}, so that a token of "
                f"the text has room beside the {n_special} special ones."
            )
    if tokenizer.pad_token_id is None:
        raise ValueError(
            f"The tokenizer of {name} has no padding token, so texts cannot share a batch: set "
            "pad_token in its tokenizer_config.json."
        )
