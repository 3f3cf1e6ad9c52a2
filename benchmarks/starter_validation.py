"""Validation loss of a run's checkpoints: masked-LM loss on fixed blocks with fixed masks.

    python -m benchmarks.starter_validation CHECKPOINT... --corpus validation.jsonl --out FILE

A CHECKPOINT is a run's `checkpoint-N` folder; the run may still be training, and an incomplete
checkpoint is left out. The figures are added to FILE, or replaced there.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from modeling_condenser import CondenserDataCollator, CondenserForMaskedLM
from modeling_condenser.pretraining.data import (
    BlockBuilder,
    KeyedBlocks,
    build_blocks,
    fingerprint_blocks,
)
from modeling_condenser.pretraining.documents import load_documents
from modeling_condenser.runs.run_folder import is_complete
from modeling_condenser.runs.whole_files import write_json

MAX_LENGTH, MLM_PROBABILITY, BATCH = 128, 0.3, 32


def main() -> None:
    """Measure the checkpoints, one after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoints", nargs="+", type=Path, metavar="CHECKPOINT")
    parser.add_argument("--corpus", required=True, help="text that no checkpoint was trained on")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="JSON")
    parser.add_argument("--blocks", type=int, default=2000, help="how many (default: 2000)")
    options = parser.parse_args()
    measure(options.checkpoints, options.corpus, out=options.out, n_blocks=options.blocks)


def measure(checkpoints: list[Path], corpus: str, *, out: Path, n_blocks: int) -> None:
    """Measure checkpoints with one tokenizer; add run, step, tokens seen and loss of each to `out`.

    Raises:
        ValueError: `out` holds figures of other blocks.
    """
    tokenizer = AutoTokenizer.from_pretrained(checkpoints[0])
    settings, batches = make_batches(corpus, tokenizer, n_blocks=n_blocks)
    before = json.loads(out.read_text()) if out.is_file() else {"settings": settings}
    if before["settings"] != settings:
        raise ValueError(
            f"{out} holds figures measured with {before['settings']}, now it would be {settings}: "
            "use the same text, tokenizer and number of blocks, or name another file."
        )
    figures = {(entry["run"], entry["step"]): entry for entry in before.get("measured", ())}
    for checkpoint in filter(is_complete, checkpoints):
        state = json.loads((checkpoint / "trainer_state.json").read_text())
        model = CondenserForMaskedLM.from_pretrained(checkpoint, dtype=torch.float32)
        entry = {
            "run": checkpoint.resolve().parent.name,
            "step": state["global_step"],
            "tokens_seen": int(state["num_input_tokens_seen"]),
            "loss": masked_lm_loss(model, batches),
        }
        figures[entry["run"], entry["step"]] = entry
        write_json(out, {"settings": settings, "measured": list(figures.values())})
        print(entry, flush=True)


def make_batches(
    corpus: str, tokenizer: PreTrainedTokenizerBase, *, n_blocks: int
) -> tuple[dict[str, Any], list[dict[str, torch.Tensor]]]:
    """Draw blocks of a corpus and mask them: what identifies the measurement, and the batches."""
    max_length = min(MAX_LENGTH, tokenizer.model_max_length)
    documents = load_documents(corpus)
    blocks = build_blocks(documents, BlockBuilder(tokenizer, max_length=max_length))
    order = torch.randperm(len(blocks), generator=torch.Generator().manual_seed(0))
    blocks = blocks.select(order[:n_blocks].tolist())
    collator = CondenserDataCollator(
        tokenizer, max_length=max_length, mlm_probability=MLM_PROBABILITY
    )
    keyed, places = KeyedBlocks(blocks, seed=0), list(range(len(blocks)))
    batches = [
        collator(keyed.__getitems__(places[first : first + BATCH])) for first in places[::BATCH]
    ]
    settings = {
        "blocks_sha256": fingerprint_blocks(blocks),
        "max_length": max_length,
        "mlm_probability": MLM_PROBABILITY,
        "n_blocks": len(blocks),
        "n_documents": len(documents),
        "n_masked": sum(int((batch["labels"] != -100).sum()) for batch in batches),
    }
    return settings, batches


@torch.no_grad()
def masked_lm_loss(model: Any, batches: list[dict[str, torch.Tensor]]) -> float:
    """Mean loss of a `CondenserForMaskedLM` over all masked tokens, in nats."""
    model.eval()
    sums = [
        model(**batch, num_items_in_batch=1).loss.item()
        for batch in tqdm(batches, desc="Validating", leave=False)
    ]
    return sum(sums) / sum(int((batch["labels"] != -100).sum()) for batch in batches)


if __name__ == "__main__":
    main()
