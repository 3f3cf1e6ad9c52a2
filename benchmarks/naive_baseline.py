"""The dense way to pre-train a Condenser, as a baseline: written from the paper and plain Python.

Every block is padded to the maximum length, words are masked in a loop over tokens, and every
position is projected to the vocabulary, twice.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase

from modeling_condenser import CondenserForPreTraining


class LoopCollator:
    """Whole-word masking in a Python loop, padded to `max_length`."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int):
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.random = random.Random(0)

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        rows = [self._row([int(i) for i in example["input_ids"]]) for example in examples]
        ids, mask, labels = (torch.tensor(column) for column in zip(*rows, strict=True))
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    def _row(self, block: list[int]) -> tuple[list[int], list[int], list[int]]:
        tokenizer = self.tokenizer
        block = block[: self.max_length - 2]
        words: list[list[int]] = []
        for place, token in enumerate(tokenizer.convert_ids_to_tokens(block)):
            if token in tokenizer.all_special_tokens:
                continue
            if words and token.startswith("##"):
                words[-1].append(place)
            else:
                words.append([place])
        self.random.shuffle(words)
        budget = max(1, round(len(block) * 0.15))
        chosen: list[int] = []
        for word in words:
            if len(chosen) + len(word) <= budget:
                chosen.extend(word)
        labels = [-100] * len(block)
        masked = list(block)
        for place in chosen:
            labels[place] = block[place]
            fate = self.random.random()
            if fate < 0.8:
                masked[place] = tokenizer.mask_token_id
            elif fate < 0.9:
                masked[place] = self.random.randrange(len(tokenizer))
        ids = [tokenizer.cls_token_id, *masked, tokenizer.sep_token_id]
        padding = self.max_length - len(ids)
        return (
            ids + [tokenizer.pad_token_id] * padding,
            [1] * len(ids) + [0] * padding,
            [-100, *labels, -100] + [-100] * padding,
        )


def dense_loss(model: CondenserForPreTraining, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The Condenser's loss with every position projected to the vocabulary."""
    late, early, _ = model.encode(batch["input_ids"], batch["attention_mask"])
    cd = model.run_head(late[:, :1], early, batch["attention_mask"])
    labels = batch["labels"].reshape(-1)
    losses = [
        F.cross_entropy(model.lm_head(hidden).reshape(len(labels), -1), labels, ignore_index=-100)
        for hidden in (cd, late)
    ]
    return losses[0] + losses[1]
