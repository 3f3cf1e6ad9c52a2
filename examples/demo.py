"""Measure what pre-training gains: the recommended objective against plain MLM, for equal tokens.

    make demo

Both start from the encoder `starter`, and are pre-trained on the passages of the collection
`health`, which come with the package. They are compared as they are and fine-tuned with 512 labels,
each alone and together with BM25. A second call continues an interrupted one.
"""

import argparse
import logging
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

from modeling_condenser import evaluate, export_encoder, finetune
from modeling_condenser.evaluation.report import Report
from modeling_condenser.files.settings import is_bfloat16_fast
from modeling_condenser.pretraining.pretrain import pretrain

MEASURES = ["MRR@10", "R@5", "R@100"]
COLLECTION = "health"
# 530 steps of plain MLM have as many tokens as 269 of the recommended objective.
STEPS = {"mlm": 530, "recommended": 269}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "mlm": {"objective": "mlm", "tokens_per_batch": 2048},
    "recommended": {
        "objective": "ict",  # the Inverse Cloze Task: a sentence finds the text it was taken from
        "bow_weight": 1.0,  # bag-of-words prediction
        "similarity": "cosine",
        "temperature": 0.05,
        "per_device_train_batch_size": 64,
        "cache_chunk_size": 64,
    },
}
# How a retriever compares a query with passages; texts are cut to these numbers of tokens.
ENCODING = {"similarity": "cosine", "query_max_length": 32, "passage_max_length": 64}


def pretrain_encoder(objective: str, out: Path, *, fraction: float) -> Path:
    """Pre-train `starter` on the passages of the collection; return the exported encoder."""
    settings = {
        "encoder": "starter",
        "corpus": str(files("modeling_condenser") / COLLECTION / "corpus.jsonl.gz"),
        "encoder_changes": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        "max_length": 64,
        "max_steps": max(1, round(fraction * STEPS[objective])),
        "learning_rate": 5e-4,
        "warmup_steps": 0.1,
        "weight_decay": 0.01,
        "bf16": is_bfloat16_fast(),
        "preprocessing_workers": 2,
        "seed": 2,
        **OBJECTIVES[objective],
        "output_dir": str(out / f"{objective}-pretraining"),
    }
    return export_encoder(pretrain(settings), out / f"{objective}-0")


def finetune_encoder(encoder: Path, out: Path, *, labels: int, epochs: int) -> Path:
    """Fine-tune an encoder on some of the collection's labels; return the retriever."""
    settings = {
        "encoder": str(encoder),
        "collection": COLLECTION,
        "train_size": labels,
        **ENCODING,
        "temperature": 0.05,
        "per_device_train_batch_size": 64,
        "num_train_epochs": epochs,
        "learning_rate": 1e-3,
        "warmup_steps": 0.1,
        "bf16": is_bfloat16_fast(),
        "load_best_model_at_end": False,  # fixed settings; the dev queries choose the fusion only
        "seed": 0,
        "subset_seed": 0,
        "output_dir": str(out),
    }
    return finetune(settings)


def compare(retrievers: dict[tuple[str, str], Path], out: Path) -> tuple[Report, dict[Any, str]]:
    """Compare BM25, each retriever, and both together, in one report.

    Also returns the name of each system in the report, by its row and its column in the tables.
    """
    systems: dict[Any, Any] = {}
    for row, prefix in (("", ""), ("bm25 + ", "hybrid:")):
        for (objective, labels), folder in retrievers.items():
            systems[f"{row}{objective}", labels] = {"model": f"{prefix}{folder}", **ENCODING}
    report = evaluate(
        list(systems.values()),
        COLLECTION,
        baseline="bm25",
        measures=MEASURES,
        dtype="bfloat16" if is_bfloat16_fast() else "float32",
        output_dir=out,
    )
    _, *names = report.means  # the baseline, and the systems in their order
    return report, dict(zip(systems, names, strict=True))


def make_table(report: Report, names: dict[Any, str], measure: str) -> pd.DataFrame:
    """Make the table of a measure; the main one has the difference from mlm and its p-value."""
    pairs = {(pair["system"], pair["other"]): pair for pair in report.content["pairs"]}
    table = pd.DataFrame(index=["bm25"])
    for (row, labels), name in names.items():
        table.loc["bm25", labels] = f"{report.means['bm25'][measure]:.3f}"
        table.loc[row, labels] = f"{report.means[name][measure]:.3f}"
        control = names[row.replace("recommended", "mlm"), labels]
        if measure == MEASURES[0] and name != control:
            pair = pairs[name, control]
            table.loc[row, labels] += f" ({pair['difference']:+.3f}, p = {pair['p_adjusted']:.3f})"
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output_dir", type=Path, default=Path("runs/demo"))
    parser.add_argument("--fraction", type=float, default=1.0, help="of the pre-training steps")
    parser.add_argument("--labels", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=10, help="of fine-tuning")
    options = parser.parse_args()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("modeling_condenser").setLevel(logging.INFO)
    started, out, labelled = time.perf_counter(), options.output_dir, f"{options.labels} labels"
    retrievers = {}
    for objective in OBJECTIVES:
        encoder = pretrain_encoder(objective, out, fraction=options.fraction)
        run = out / f"{objective}-{options.labels}"
        retriever = finetune_encoder(encoder, run, labels=options.labels, epochs=options.epochs)
        retrievers |= {(objective, "no labels"): encoder, (objective, labelled): retriever}
    report, names = compare(retrievers, out / "evaluation")
    for measure in MEASURES:
        print(f"\n{measure}\n{make_table(report, names, measure).to_string()}")
    print(
        "\nIn brackets: the difference from mlm. p is corrected over all pairs of systems (Holm)."
    )
    best = max(names, key=lambda place: report.means[names[place]][MEASURES[0]])
    gain = report.comparisons[names[best], MEASURES[0]]
    print(
        f"{best[0]} with {best[1]} against bm25: {gain.difference:+.3f}, p = {gain.p_adjusted:.3f}"
    )
    minutes = (time.perf_counter() - started) / 60
    print(f"\n{minutes:.1f} minutes. Groups of queries, pictures, run files: {report.file}")
    model = retrievers["recommended", labelled]
    print(f'Search: condenser search hybrid:{model} {COLLECTION} "how is asthma treated"')


if __name__ == "__main__":
    main()
