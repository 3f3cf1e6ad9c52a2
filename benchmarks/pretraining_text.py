"""Text, weights and blocks of all sides of `benchmarks.pretraining`."""

import argparse
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from datasets import load_from_disk
from transformers import AutoTokenizer

from benchmarks.harness import docstrings, make_encoder
from modeling_condenser.pretraining.corpus import load_documents
from modeling_condenser.pretraining.data import BlockBuilder, KeyedBlocks, build_blocks

_TEXTS_FOR_VOCABULARY = 50_000

Steps = list[list[dict[str, Any]]]
"""`input_ids` (int array, without special tokens) and `mask_key` of each step's blocks."""


def prepare(arguments: argparse.Namespace) -> None:
    """Write blocks of real text, and an encoder with random weights; print what they are."""
    folder: Path = arguments.folder
    if arguments.text is None:
        docstrings(folder / "text")
    source = arguments.text or folder / "text" / "corpus.jsonl"
    documents = load_documents(source)
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
    print(f"{source.name}: {len(blocks)} blocks of {mean:.0f} tokens on average; random weights")


def read_steps(arguments: argparse.Namespace) -> Steps:
    """The blocks that `prepare` wrote."""
    blocks = KeyedBlocks(load_from_disk(str(arguments.folder / "blocks")), seed=0)
    places = list(range(len(blocks)))
    size = arguments.batch
    return [blocks.__getitems__(places[first : first + size]) for first in places[::size]]
