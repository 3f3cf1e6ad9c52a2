"""What all sides of `benchmarks.pretraining` share: text, weights, blocks, batches and masks."""

import argparse
import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from datasets import load_from_disk
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from modeling_condenser.collection.builtin import build_builtin_collection, find_package_roots
from modeling_condenser.pretraining.blocks import BlockBuilder, KeyedBlocks, build_blocks
from modeling_condenser.pretraining.collator import CondenserDataCollator
from modeling_condenser.pretraining.corpus import Source, load_documents
from modeling_condenser.study.starting_encoder import make_starting_encoder

_TEXTS_FOR_VOCABULARY = 50_000


def prepare(arguments: argparse.Namespace) -> str:
    """Write the blocks, and an encoder of the wanted size with random weights.

    Returns:
        What was made, in a line: real text of real lengths, and how much of the vocabulary it has.
    """
    folder: Path = arguments.folder
    if arguments.text is None:
        root = find_package_roots()["python"]
        collection = build_builtin_collection(folder / "text", roots={"python": root})
        source, what = collection / "corpus.jsonl", "docstrings of the standard library"
    else:
        source, what = arguments.text, arguments.text.name
    documents = load_documents([Source(str(source))])
    make_starting_encoder(
        (row["text"] for row in islice(documents, _TEXTS_FOR_VOCABULARY)),
        folder / "encoder",
        encoder_config={
            "vocab_size": arguments.vocabulary,
            "hidden_size": arguments.hidden,
            "num_hidden_layers": arguments.layers,
            "num_attention_heads": max(arguments.hidden // 64, 1),
            "intermediate_size": 4 * arguments.hidden,
            "max_position_embeddings": max(arguments.max_length, 128),
        },
    )
    tokenizer = AutoTokenizer.from_pretrained(folder / "encoder")
    blocks = build_blocks(documents, BlockBuilder(tokenizer, max_length=arguments.max_length))
    n_needed = (arguments.warm_up + arguments.steps) * arguments.batch
    if len(blocks) < n_needed:
        raise SystemExit(
            f"The text has {len(blocks)} blocks, but {n_needed} are needed: lower --steps or "
            "--batch, or give more text."
        )
    order = torch.randperm(len(blocks), generator=torch.Generator().manual_seed(0))
    blocks.select(order[:n_needed].tolist()).save_to_disk(folder / "blocks")
    lengths = [min(len(ids) + 2, arguments.max_length) for ids in blocks["input_ids"]]
    mean = sum(lengths) / len(lengths)
    return (
        f"{what}: {len(blocks)} blocks of {mean:.0f} tokens on average; random weights, with "
        f"{arguments.vocabulary} embeddings, {len(tokenizer)} of which the text's vocabulary uses"
    )


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
        """Read what `prepare` wrote; the masked batches with `bow_targets`, where asked for."""
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
        """The masked batches padded to another width; to each one's longest block for None."""
        return [_widen(batch, width, self.tokenizer.pad_token_id) for batch in self.masked]


def _widen(
    batch: dict[str, torch.Tensor], width: int | None, pad_token_id: int
) -> dict[str, torch.Tensor]:
    longest = int(batch["attention_mask"].sum(1).max())
    fill = {"input_ids": pad_token_id, "attention_mask": 0, "labels": -100}
    return {
        name: torch.nn.functional.pad(
            tensor[:, :longest], (0, (width or longest) - longest), value=fill[name]
        )
        for name, tensor in batch.items()
    }


def write_result(result: dict[str, Any]) -> None:
    """Print a result so that the parent process finds it."""
    print("RESULT " + json.dumps(result), flush=True)


def read_result(output: str) -> dict[str, Any]:
    """The result in a process's output."""
    [line] = [line for line in output.splitlines() if line.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT "))
