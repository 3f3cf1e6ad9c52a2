"""Make the encoder that comes with the package from the runs that trained it.

    python -m benchmarks.make_starter RUN... OUT --corpus train.jsonl --validation FILE

A RUN is a finished run folder, or a checkpoint within one; each but the first started from the one
before it, and the last one's model is taken. OUT becomes the folder of a plain `BertForMaskedLM`
with its weights in float16, tokenizer, provenance and card. FILE was written by
`benchmarks.starter_validation`.
"""

import argparse
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import ModelCard, ModelCardData
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, BertForMaskedLM

from benchmarks.starter_validation import STATE_FILE, Progress, read_progress
from modeling_condenser import masked_lm_from_encoder
from modeling_condenser.hub.card import CARD_FILE, CURVES_FILE, training_section
from modeling_condenser.hub.citations import cite
from modeling_condenser.hub.contract import EncodingContract
from modeling_condenser.hub.curves import draw_curves
from modeling_condenser.hub.export import save_tokenizer
from modeling_condenser.hub.provenance import (
    PRETRAINING,
    Stage,
    label_stages,
    read_stage,
    write_provenance,
)
from modeling_condenser.hub.training_log import thin_log
from modeling_condenser.pretraining.trainer import train_seconds
from modeling_condenser.runs.run_folder import MODEL_FOLDER, whole_folder

WEIGHTS_FILE = "model.safetensors"
MOST_BYTES = 14_000_000
MOST_ROWS = 25  # of the card's table of losses
DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}  # BERT's own


class Part(NamedTuple):
    """A run, or as much of it as was used."""

    model: Path
    progress: Progress
    stage: Stage


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
        ValueError: `out` exists, the last model was not validated, or the weights are too large.
    """
    if out.exists():
        raise ValueError(f"{out} exists: remove it first, or name another folder.")
    parts = [_read_part(run) for run in runs]
    measured = json.loads(validation.read_text())
    losses = _validation_losses([part.progress for part in parts], measured["measured"])
    step = math.ceil(len(losses) / MOST_ROWS)
    stages = [part.stage for part in parts]
    model = _open_bert(parts[-1].model)
    with whole_folder(out) as partial:
        model.save_pretrained(partial)
        _halve_weights(partial / WEIGHTS_FILE)
        tokenizer = AutoTokenizer.from_pretrained(parts[-1].model)
        longest = model.config.max_position_embeddings
        with_segments = "token_type_ids" in tokenizer.model_input_names
        contract = EncodingContract(longest, longest, token_type_ids=with_segments)
        save_tokenizer(tokenizer, contract, partial)
        write_provenance(partial, stages)
        with corpus.open(encoding="utf-8") as lines:
            n_words = [len(json.loads(line)["text"].split()) for line in lines]
        card = ModelCard.from_template(
            ModelCardData(
                license="cc-by-sa-3.0",
                language="en",
                library_name="transformers",
                pipeline_tag="fill-mask",
                tags=["condenser", "bert", "masked-lm"],
            ),
            template_path=str(Path(__file__).with_name("starter_card.md.jinja")),
            config=model.config.to_dict(),
            n_parameters=model.num_parameters(),
            n_articles=len(n_words),
            n_words=sum(n_words),
            validation=measured["settings"],
            losses=losses[::-step][::-1],
            training=training_section(stages),
            citation=cite(stages),
        )
        card.save(partial / CARD_FILE)
        logs = {label: stage.log for label, stage in label_stages(stages).items()}
        (partial / CURVES_FILE).write_bytes(draw_curves(logs))
    return out


def _read_part(run: Path) -> Part:
    """Read a finished run folder, or a checkpoint within a run."""
    is_finished = (run / MODEL_FOLDER).is_dir()
    model = run / MODEL_FOLDER if is_finished else run
    progress = read_progress(model)
    stage = read_stage(model.resolve().parent, PRETRAINING)
    if stage is None:
        raise ValueError(f"{model} is in no run folder: name a run, or a checkpoint within one.")
    if not is_finished:
        log = json.loads((run / STATE_FILE).read_text())["log_history"]
        so_far = {
            "steps": progress.step,
            "tokens_seen": progress.tokens_seen,
            "train_seconds": round(train_seconds(log), 1),
        }
        stage = dataclasses.replace(stage, run={**stage.run, **so_far}, log=thin_log(log))
    return Part(model, progress, stage)


def _validation_losses(
    used: Sequence[Progress], measured: Sequence[Mapping[str, Any]]
) -> list[tuple[int, float]]:
    """Validation losses by the tokens seen, counted from the first run on."""
    losses, before = [], 0
    for progress in used:
        own = [e for e in measured if e["run"] == progress.run and e["step"] <= progress.step]
        losses += [(before + e["tokens_seen"], e["loss"]) for e in own]
        before += progress.tokens_seen
    if before not in dict(losses):
        raise ValueError(
            f"The validation loss of run {used[-1].run} at step {used[-1].step} is not measured: "
            "run benchmarks.starter_validation on it first."
        )
    return sorted(losses)


def _open_bert(folder: Path) -> BertForMaskedLM:
    """A checkpoint's backbone and LM head as transformers' own class, in float32."""
    ours: Any = masked_lm_from_encoder(str(folder), config_changes=DROPOUT)
    model = BertForMaskedLM(ours.config.encoder_config)
    model.bert.load_state_dict(ours.condenser.encoder.state_dict(), strict=False)
    model.cls.load_state_dict(ours.lm_head.state_dict())
    model.tie_weights()
    return model


def _halve_weights(file: Path) -> None:
    """Store weights in float16; config.json still says that they are opened in float32."""
    weights = {name: tensor.half() for name, tensor in load_file(file).items()}
    save_file(weights, file, metadata={"format": "pt"})
    if (size := file.stat().st_size) > MOST_BYTES:
        raise ValueError(f"{file.name} has {size:,} bytes, but may have {MOST_BYTES:,}.")


if __name__ == "__main__":
    main()
