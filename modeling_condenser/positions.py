"""How many tokens an encoder has positions for."""

from torch import nn


def position_offset(encoder: nn.Module) -> int:
    """The position of a text's first token: in RoBERTa and its kin behind the padding token's."""
    table = _position_table(encoder)
    return 0 if table is None or table.padding_idx is None else table.padding_idx + 1


def n_positions(encoder: nn.Module) -> int | None:
    """The longest sequence that an encoder takes; None where there is no limit."""
    if (table := _position_table(encoder)) is not None:
        return table.num_embeddings - position_offset(encoder)
    longest = getattr(encoder.config, "max_position_embeddings", None)
    return longest if isinstance(longest, int) and longest > 0 else None


def _position_table(encoder: nn.Module) -> nn.Embedding | None:
    tables = (getattr(module, "position_embeddings", None) for module in encoder.modules())
    return next((table for table in tables if isinstance(table, nn.Embedding)), None)
