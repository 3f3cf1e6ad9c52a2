"""The published way to pre-train a Condenser, in plain Python, as a baseline.

Every block is padded to the maximum length, words are found and shuffled in a Python loop over
token strings, and every position is projected to the vocabulary, twice.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase

from modeling_condenser import CondenserForPreTraining


class LoopCollator:
    """Whole-word masking as the reference implementation does it, padded to `max_length`.

    It is faster than the reference: token strings come from a fast tokenizer in one call a block,
    where the reference asks a slow tokenizer token by token (five times as long).
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int):
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.specials = set(tokenizer.all_special_tokens)
        self.random = random.Random(0)
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        rows, attention, choices = [], [], []
        tokenizer = self.tokenizer
        for example in examples:
            block = self._window(list(example["input_ids"]))
            chosen = self._choose(tokenizer.convert_ids_to_tokens(block))
            padding = self.max_length - len(block) - 2
            framed = [tokenizer.cls_token_id, *block, tokenizer.sep_token_id]
            rows.append(framed + [tokenizer.pad_token_id] * padding)
            attention.append([1] * len(framed) + [0] * padding)
            choices.append([0, *chosen, 0] + [0] * padding)
        ids, labels = self._replace(torch.tensor(rows), torch.tensor(choices).bool())
        return {"input_ids": ids, "attention_mask": torch.tensor(attention), "labels": labels}

    def _window(self, ids: list[int]) -> list[int]:
        start = self.random.randint(0, max(len(ids) - (self.max_length - 2), 0))
        return ids[start : start + self.max_length - 2]

    def _choose(self, tokens: list[str]) -> list[int]:
        """1 at each token of a chosen word, else 0."""
        words: list[list[int]] = []
        for place, token in enumerate(tokens):
            if token in self.specials:
                continue
            if words and token.startswith("##"):
                words[-1].append(place)
            else:
                words.append([place])
        self.random.shuffle(words)
        budget = max(1, round(len(tokens) * 0.15))
        chosen: set[int] = set()
        for word in words:
            if len(chosen) >= budget:
                break
            if len(chosen) + len(word) <= budget:
                chosen.update(word)
        return [int(place in chosen) for place in range(len(tokens))]

    def _replace(
        self, ids: torch.Tensor, chosen: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Model input and labels: of the chosen, 80 % [MASK], 10 % random, 10 % unchanged."""

        def draw(share: float) -> torch.Tensor:
            return torch.bernoulli(torch.full(ids.shape, share), generator=self.generator).bool()

        labels = ids.masked_fill(~chosen, -100)
        masked = chosen & draw(0.8)
        replaced = chosen & ~masked & draw(0.5)
        others = torch.randint(len(self.tokenizer), ids.shape, generator=self.generator)
        ids = ids.masked_fill(masked, self.tokenizer.mask_token_id)
        return torch.where(replaced, others, ids), labels


def dense_losses(
    model: CondenserForPreTraining, batch: Mapping[str, torch.Tensor]
) -> list[torch.Tensor]:
    """The Condenser's head loss and late loss, with every position projected to the vocabulary."""
    late, early, output = model.encode(batch["input_ids"], batch["attention_mask"])
    cd = model.run_head(late[:, :1], early, output.layer_call)
    labels = batch["labels"].reshape(-1)
    return [
        F.cross_entropy(model.lm_head(hidden).reshape(len(labels), -1), labels, ignore_index=-100)
        for hidden in (cd, late)
    ]
