"""The Inverse Cloze Task: a sentence as a pseudo-query, the passage around it as its context.

Lee, Chang & Toutanova (2019), "Latent Retrieval for Weakly Supervised Open Domain Question
Answering": a random sentence of a passage is the query; it is removed from its context in 90 % of
the examples, so that the task is mostly about meaning, and kept in the others, so that word overlap
counts too. It is the task-specific rival that Condenser is compared with (Gao & Callan 2021, Tables
3 and 5). One deviation: there, query and context have an encoder each, a projection to fewer
dimensions and the context its title; here one encoder serves both, as everywhere in this package,
and its CLS vector is compared as it is.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from datasets import Dataset

from .blocks import BlockBuilder
from .collator import CondenserDataCollator, special_frame
from .counter_random import uniforms
from .masking import IGNORE_INDEX
from .packed_batches import pack
from .spans import CutText, KeyedCutTexts

REMOVAL_PROBABILITY = 0.9
QUERY_LENGTH = 64  # the authors' implementation's query_seq_len


class PassageBuilder:
    """Cuts documents into passages of whole sentences, and leaves out those of one sentence.

    Args:
        blocks: whose blocks are the passages.
    """

    def __init__(self, blocks: BlockBuilder):
        self.blocks = blocks

    def build(self, texts: Sequence[str | None], numbers: Sequence[int]) -> list[CutText]:
        cut = []
        for number, (ids, lengths) in zip(numbers, self.blocks.tokenize(texts), strict=True):
            if len(ids) == 0:
                continue
            sentences = np.concatenate([[0], np.cumsum(lengths)[:-1]])
            bounds = [0, *self.blocks.cut(lengths, number), len(ids)]
            for start, end in pairwise(bounds):
                own = sentences[(sentences >= start) & (sentences < end)] - start
                if len(own) > 1:
                    cut.append(CutText(ids[start:end], own.astype(np.int32), number))
        return cut

    @property
    def fingerprint(self) -> str:
        return f"passages {self.blocks.fingerprint}"


class ClozePairs(KeyedCutTexts):
    """A random sentence of each passage, and the passage, mostly without it.

    Args:
        blocks: passages, with the columns of `CutText`, whose parts are sentences.
        seed: of the run.
        query_room: tokens of a query that are kept, its first, without special ones.
        removal_probability: share of the contexts without their query.
    """

    def __init__(
        self,
        blocks: Dataset,
        *,
        seed: int,
        query_room: int,
        removal_probability: float = REMOVAL_PROBABILITY,
    ):
        super().__init__(blocks, seed=seed)
        self.query_room = query_room
        self.removal_probability = removal_probability

    def draw(self, text: CutText, key: np.ndarray) -> dict[str, Any]:
        which, removal = uniforms(key, 2)[0]
        number = int(which * len(text.starts))
        query = text.part(number)
        context = text.input_ids
        if removal < self.removal_probability:
            start = int(text.starts[number])
            context = np.delete(context, np.s_[start : start + len(query)])
        return {"texts": [query[: self.query_room], context]}


class ClozeCollator:
    """Pads or packs queries and contexts without masking, a query beside its context.

    Args:
        collator: whose tokenizer and special tokens are used, and which says whether to pack.
        query_length: longest query in tokens, with special tokens.

    Raises:
        ValueError: `query_length` is out of range.
    """

    def __init__(self, collator: CondenserDataCollator, *, query_length: int = QUERY_LENGTH):
        n_special = sum(len(part) for part in special_frame(collator.tokenizer))
        if not n_special < query_length <= collator.max_length:
            raise ValueError(
                f"query_length is {query_length}, but must lie above the {n_special} special "
                f"tokens and within max_length, {collator.max_length}."
            )
        self.collator = collator
        self.tokenizer = collator.tokenizer
        self.query_room = query_length - n_special

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Make a batch of `ClozePairs` examples.

        Returns:
            `input_ids`, `attention_mask` and `labels`, each (2N, T) int64; no label is to predict.
            `bow_targets` too where the collator makes them.
            Packed, what `packed_batches.pack` makes of these.
        """
        texts = [np.asarray(text, dtype=np.int64) for e in examples for text in e["texts"]]
        ids, is_text, is_token = self.collator.frame(texts)
        batch = {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(is_token.astype(np.int64)),
            "labels": torch.full(ids.shape, IGNORE_INDEX, dtype=torch.int64),
        }
        if self.collator.bag_of_words:
            batch["bow_targets"] = torch.from_numpy(self.collator.bags_of_words(ids, is_text))
        if not self.collator.packed:
            return batch
        return pack(batch, pad_token_id=self.tokenizer.pad_token_id)
