"""Make the encoder that comes with the package from the runs that trained it.

    python -m benchmarks.make_starter RUN... OUT --corpus train.jsonl --validation FILE

A RUN is a finished run folder; each run but the first started from the one before. OUT becomes the
folder of the last run's model as a plain `BertForMaskedLM`, with its weights in float16, tokenizer,
provenance and card. FILE was written by `benchmarks.starter_validation`.
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from benchmarks.harness import as_bert
from modeling_condenser import masked_lm_from_encoder
from modeling_condenser.encoder_parts import save_tokenizer
from modeling_condenser.files.atomic import atomic_folder
from modeling_condenser.files.contract import EncodingContract
from modeling_condenser.files.run_folder import MODEL_FOLDER
from modeling_condenser.publishing.card import CARD_FILE, cite
from modeling_condenser.publishing.provenance import Stage, read_provenance, write_provenance

WEIGHTS_FILE = "model.safetensors"
MOST_ROWS = 25  # of the card's table of losses
DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}  # BERT's own


def main() -> None:
    """Make the folder and print the size of its weights."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--corpus", required=True, type=Path, help="the text of the training")
    parser.add_argument("--validation", required=True, type=Path, metavar="FILE")
    options = vars(parser.parse_args())
    out = make_starter(options.pop("runs"), options.pop("out"), **options)
    print(f"{out}: {(out / WEIGHTS_FILE).stat().st_size:,} bytes of weights")


def make_starter(runs: Sequence[Path], out: Path, *, corpus: Path, validation: Path) -> Path:
    """Write the folder of the encoder, completely or not at all.

    Raises:
        ValueError: `out` exists, a folder is no run, or the last model was not validated.
    """
    if out.exists():
        raise ValueError(f"{out} exists: remove it first, or name another folder.")
    stages = [_read_stage(run) for run in runs]
    measured = json.loads(validation.read_text())
    losses = _validation_losses(runs, stages, measured["measured"])
    step = math.ceil(len(losses) / MOST_ROWS)
    with corpus.open(encoding="utf-8") as lines:
        n_words = [len(json.loads(line)["text"].split()) for line in lines]
    trained = runs[-1] / MODEL_FOLDER
    model = as_bert(masked_lm_from_encoder(str(trained), config_changes=DROPOUT))
    tokenizer = AutoTokenizer.from_pretrained(trained)
    longest = model.config.max_position_embeddings
    with_segments = "token_type_ids" in tokenizer.model_input_names
    data = ModelCardData(
        license="cc-by-sa-3.0",
        language="en",
        library_name="transformers",
        pipeline_tag="fill-mask",
        tags=["condenser", "bert", "masked-lm"],
    )
    card = ModelCard.from_template(
        data,
        template_path=str(Path(__file__).with_name("starter_card.md.jinja")),
        config=model.config.to_dict(),
        n_parameters=model.num_parameters(),
        n_articles=len(n_words),
        n_words=sum(n_words),
        validation=measured["settings"],
        losses=losses[::-step][::-1],
        citation=cite(stages),
    )
    with atomic_folder(out) as partial:
        model.save_pretrained(partial)
        weights = load_file(partial / WEIGHTS_FILE)  # config.json still says float32
        halved = {name: tensor.half() for name, tensor in weights.items()}
        save_file(halved, partial / WEIGHTS_FILE, metadata={"format": "pt"})
        contract = EncodingContract(longest, longest, token_type_ids=with_segments)
        save_tokenizer(tokenizer, asdict(contract), partial)
        write_provenance(partial, stages)
        card.save(partial / CARD_FILE)
    return out


def _read_stage(run: Path) -> Stage:
    stages = read_provenance(run / MODEL_FOLDER)
    if not stages:
        raise ValueError(f"{run} is not a finished run: {MODEL_FOLDER} has no provenance.")
    return stages[-1]


def _validation_losses(
    runs: Sequence[Path], stages: Sequence[Stage], measured: list[dict]
) -> list[tuple[int, float]]:
    """Validation losses by the tokens seen, counted from the first run on."""
    losses, before = [], 0
    for run, stage in zip(runs, stages, strict=True):
        own = [entry for entry in measured if entry["run"] == run.resolve().name]
        losses += [(before + entry["tokens_seen"], entry["loss"]) for entry in own]
        before += stage.run["tokens_seen"]
    if before not in dict(losses):
        raise ValueError(
            f"The model of run {runs[-1].name} is not measured: run benchmarks.starter_validation "
            "on it first."
        )
    return sorted(losses)


if __name__ == "__main__":
    main()
