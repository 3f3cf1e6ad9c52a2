"""How many tokens an encoder has positions for."""

import torch


def n_positions(encoder: torch.nn.Module) -> int | None:
    """The longest sequence that an encoder takes; None where there is no limit."""
    for module in encoder.modules():
        table = getattr(module, "position_embeddings", None)
        if isinstance(table, torch.nn.Embedding):
            # RoBERTa and its kin count from behind the padding token's position.
            padding = getattr(module, "padding_idx", None)
            return table.num_embeddings - (padding + 1 if isinstance(padding, int) else 0)
    longest = getattr(encoder.config, "max_position_embeddings", None)
    return longest if isinstance(longest, int) and longest > 0 else None
