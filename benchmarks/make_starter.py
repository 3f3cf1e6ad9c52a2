"""Make the encoder that comes with the package from the runs that trained it.

    python -m benchmarks.make_starter RUN... OUT --corpus train.jsonl --validation FILE

A RUN is a finished run folder, or a checkpoint within one; each but the first started from the one
before it, and the last one's model is taken. OUT becomes the folder of a plain `BertForMaskedLM`
with its weights in float16, tokenizer, provenance and card. FILE is what
`benchmarks.starter_validation` has written.
"""

import argparse
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, BertForMaskedLM

from benchmarks.starter_card import Facts, write_starter_card
from benchmarks.starter_validation import STATE_FILE, Progress, read_progress
from modeling_condenser import masked_lm_from_encoder
from modeling_condenser.pretraining.trainer import train_seconds
from modeling_condenser.publishing.export import save_tokenizer
from modeling_condenser.repository.contract import EncodingContract
from modeling_condenser.repository.provenance import (
    PRETRAINING,
    Stage,
    read_stage,
    write_provenance,
)
from modeling_condenser.repository.training_log import thin_log
from modeling_condenser.runs.run_folder import MODEL_FOLDER, whole_folder

WEIGHTS_FILE = "model.safetensors"
MOST_BYTES = 14_000_000
DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}  # BERT's own


class Part(NamedTuple):
    """A run, or as much of it as was used."""

    model: Path
    progress: Progress
    stage: Stage


def main() -> None:
    """Make the folder and say how large its weights are."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--corpus", required=True, type=Path, help="the text of the training")
    parser.add_argument("--validation", required=True, type=Path, metavar="FILE")
    arguments = parser.parse_args()
    out = make_starter(
        arguments.runs, arguments.out, corpus=arguments.corpus, validation=arguments.validation
    )
    print(f"{out}: {(out / WEIGHTS_FILE).stat().st_size:,} bytes of weights")


def make_starter(runs: Sequence[Path], out: Path, *, corpus: Path, validation: Path) -> Path:
    """Write the folder of the encoder, whole or not at all.

    Args:
        runs: run folders, or checkpoints within them, first to last.
        out: folder that does not exist yet.
        corpus: JSON lines with a `text`, whose words are counted.
        validation: figures of `benchmarks.starter_validation`.

    Raises:
        ValueError: `out` exists, a run or the corpus does not fit, the last model was not
            validated, or the weights are too large.
    """
    if out.exists():
        raise ValueError(f"{out} exists: remove it first, or name another folder.")
    parts = [read_part(run) for run in runs]
    measured = json.loads(validation.read_text())
    losses = validation_losses([part.progress for part in parts], measured["measured"])
    stages = [part.stage for part in parts]
    n_articles, n_words = _count_text(corpus)
    for stage in stages:
        if stage.run.get("n_documents", n_articles) != n_articles:
            raise ValueError(
                f"{corpus} has {n_articles} documents, but a run was trained on "
                f"{stage.run['n_documents']}: name the text that it was trained on."
            )
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
        write_starter_card(
            partial,
            Facts(
                config=model.config.to_dict(),
                n_parameters=model.num_parameters(),
                stages=stages,
                n_articles=n_articles,
                n_words=n_words,
                validation=measured["settings"],
                losses=losses,
            ),
        )
    return out


def read_part(run: Path) -> Part:
    """Read a finished run folder, or a checkpoint within a run.

    Raises:
        ValueError: it is neither.
    """
    is_finished = (run / MODEL_FOLDER).is_dir()
    model = run / MODEL_FOLDER if is_finished else run
    progress = read_progress(model)
    stage = read_stage(model.resolve().parent, PRETRAINING)
    if stage is None:
        raise ValueError(f"{model} lies in no run folder: name a run, or a checkpoint within one.")
    if is_finished:
        return Part(model, progress, stage)
    log = json.loads((run / STATE_FILE).read_text())["log_history"]
    so_far = {
        "steps": progress.step,
        "tokens_seen": progress.tokens_seen,
        "train_seconds": round(train_seconds(log), 1),
    }
    stage = dataclasses.replace(stage, run={**stage.run, **so_far}, log=thin_log(log))
    return Part(model, progress, stage)


def validation_losses(
    used: Sequence[Progress], measured: Sequence[Mapping[str, Any]]
) -> list[tuple[int, float]]:
    """Validation losses over the tokens seen, counted from the first run on.

    Args:
        used: how far each run was used, first to last.
        measured: entries of a validation file; of other runs and later steps too.

    Raises:
        ValueError: the last model is not among them.
    """
    losses, before = [], 0
    for progress in used:
        own = [e for e in measured if e["run"] == progress.run and e["step"] <= progress.step]
        losses += [(before + e["tokens_seen"], e["loss"]) for e in own]
        before += progress.tokens_seen
    if before not in dict(losses):
        last = used[-1]
        raise ValueError(
            f"The validation loss of run {last.run} at step {last.step} is not measured: run "
            "benchmarks.starter_validation on it first."
        )
    return sorted(losses)


def _open_bert(folder: Path) -> BertForMaskedLM:
    """A checkpoint's backbone and LM head as transformers' own class, in float32."""
    ours: Any = masked_lm_from_encoder(str(folder), config_changes=DROPOUT)
    config = ours.config.encoder_config
    if config.model_type != "bert":
        raise ValueError(f"{folder} is of type {config.model_type}, expected bert.")
    model = BertForMaskedLM(config)
    encoder = ours.condenser.encoder.state_dict()
    model.bert.load_state_dict({k: v for k, v in encoder.items() if not k.startswith("pooler.")})
    model.cls.load_state_dict(ours.lm_head.state_dict())
    model.tie_weights()
    return model


def _halve_weights(file: Path) -> None:
    """Store weights in float16; config.json still says that they are opened in float32."""
    weights = {name: tensor.half() for name, tensor in load_file(file).items()}
    save_file(weights, file, metadata={"format": "pt"})
    size = file.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(
            f"{WEIGHTS_FILE} has {size:,} bytes, but may have {MOST_BYTES:,}: train a smaller "
            "encoder, or one with fewer word pieces."
        )


def _count_text(corpus: Path) -> tuple[int, int]:
    """Documents, and words between blanks."""
    with corpus.open(encoding="utf-8") as lines:
        counts = [len(json.loads(line)["text"].split()) for line in lines]
    return len(counts), sum(counts)


if __name__ == "__main__":
    main()
