"""What all sides of `benchmarks.pretraining` share: text, weights, blocks and masks."""

import argparse
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from datasets import load_from_disk
from torch.nn import functional as F
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from benchmarks.harness import docstrings, make_encoder
from modeling_condenser import CondenserDataCollator
from modeling_condenser.pretraining.data import (
    BlockBuilder,
    KeyedBlocks,
    Source,
    build_blocks,
    load_documents,
)

_TEXTS_FOR_VOCABULARY = 50_000


def prepare(arguments: argparse.Namespace) -> str:
    """Write blocks of real text, and an encoder with random weights; describe them in a line."""
    folder: Path = arguments.folder
    if arguments.text is None:
        docstrings(folder / "text")
    source = arguments.text or folder / "text" / "corpus.jsonl"
    documents = load_documents([Source(str(source))])
    texts = (row["text"] for row in islice(documents, _TEXTS_FOR_VOCABULARY))
    length = arguments.max_length
    make_encoder(texts, folder / "encoder", arguments, positions=max(length, 128))
    tokenizer = AutoTokenizer.from_pretrained(folder / "encoder")
    blocks = build_blocks(documents, BlockBuilder(tokenizer, max_length=length))
    n_needed = (arguments.warm_up + arguments.steps) * arguments.batch
    if len(blocks) < n_needed:
        raise SystemExit(
            f"The text has {len(blocks)} blocks, but {n_needed} are needed: lower --steps or "
            "--batch, or give more text."
        )
    order = torch.randperm(len(blocks), generator=torch.Generator().manual_seed(0))
    blocks.select(order[:n_needed].tolist()).save_to_disk(folder / "blocks")
    mean = sum(min(len(ids) + 2, length) for ids in blocks["input_ids"]) / len(blocks)
    return f"{source.name}: {len(blocks)} blocks of {mean:.0f} tokens on average; random weights"


@dataclass(frozen=True)
class Batches:
    """The blocks of each step, and the one set of masks that all sides train on.

    Attributes:
        tokenizer: of the encoder.
        examples: of each step: `input_ids` and `mask_key` of its blocks.
        masked: of each step: `input_ids`, `attention_mask` and `labels`, (B, T) int64, padded.
    """

    tokenizer: PreTrainedTokenizerBase
    examples: list[list[dict[str, Any]]]
    masked: list[dict[str, torch.Tensor]]

    @classmethod
    def read(cls, arguments: argparse.Namespace, *, bag_of_words: bool = False) -> "Batches":
        """Read what `prepare` wrote."""
        tokenizer = AutoTokenizer.from_pretrained(arguments.folder / "encoder")
        blocks = KeyedBlocks(load_from_disk(str(arguments.folder / "blocks")), seed=0)
        collator = CondenserDataCollator(
            tokenizer, max_length=arguments.max_length, bag_of_words=bag_of_words
        )
        examples = [
            blocks.__getitems__(list(range(first, first + arguments.batch)))
            for first in range(0, len(blocks), arguments.batch)
        ]
        return cls(tokenizer, examples, [collator(batch) for batch in examples])

    def widened(self, width: int | None) -> list[dict[str, torch.Tensor]]:
        """The masked batches padded to a width; to each batch's longest block for None."""
        fill = {"input_ids": self.tokenizer.pad_token_id, "attention_mask": 0, "labels": -100}
        widened = []
        for batch in self.masked:
            longest = int(batch["attention_mask"].sum(1).max())
            size = (0, (width or longest) - batch["labels"].shape[1])  # negative to cut off
            widened.append({name: F.pad(t, size, value=fill[name]) for name, t in batch.items()})
        return widened

    def texts(self) -> list[dict[str, str]]:
        """The blocks as text, which tokenizes to the same or nearly the same tokens."""
        blocks = [example["input_ids"] for step in self.examples for example in step]
        return [{"text": text} for text in self.tokenizer.batch_decode(blocks)]
