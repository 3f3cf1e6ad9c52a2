"""Measure what pre-training gains: the recommended objective against plain MLM, for equal tokens.

Both start from `starter` and read the passages of the collection `health`, which come with the
package. They are compared without labels and fine-tuned with 512, alone and together with BM25.
`make demo` runs it, and continues an interrupted call.
"""

import argparse
import logging
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from modeling_condenser import evaluate, export_encoder, finetune, pretrain
from modeling_condenser.evaluation.measures import Comparison, correct
from modeling_condenser.evaluation.report import Report
from modeling_condenser.files.settings import is_bfloat16_fast

MEASURES = ["MRR@10", "R@5", "R@100"]
ENCODING = {"similarity": "cosine", "query_max_length": 32, "passage_max_length": 64}
CONTRAST = {"similarity": "cosine", "temperature": 0.05, "per_device_train_batch_size": 64}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "mlm": {"objective": "mlm", "tokens_per_batch": 2048, "max_steps": 480},
    # The Inverse Cloze Task with bag-of-words prediction; 244 of its steps have as many tokens.
    "recommended": {"objective": "ict", "bow_weight": 1.0, **CONTRAST, "max_steps": 244},
}


def pretrain_encoder(objective: str, options: argparse.Namespace) -> Path:
    """Pre-train `starter` on the passages of the collection; return the exported encoder."""
    n_steps = max(1, round(options.fraction * OBJECTIVES[objective]["max_steps"]))
    checkpoint = pretrain(
        encoder="starter",
        corpus=options.collection,
        encoder_changes={"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        max_length=64,
        learning_rate=5e-4,
        warmup_steps=0.1,
        weight_decay=0.01,
        bf16=is_bfloat16_fast(),
        seed=2,
        **{**OBJECTIVES[objective], "max_steps": n_steps},
        output_dir=str(options.output_dir / f"{objective}-pretraining"),
    )
    return export_encoder(checkpoint, options.output_dir / f"{objective}-0")


def finetune_encoder(encoder: Path, objective: str, options: argparse.Namespace) -> Path:
    """Fine-tune an encoder on some of the collection's labels; return the retriever."""
    return finetune(
        encoder=str(encoder),
        collection=options.collection,
        train_size=options.labels,
        **(ENCODING | CONTRAST),
        num_train_epochs=8 * options.fraction,
        learning_rate=1e-3,
        warmup_steps=0.1,
        bf16=is_bfloat16_fast(),
        load_best_model_at_end=False,  # the dev queries choose the fusion only
        seed=0,
        output_dir=str(options.output_dir / f"{objective}-{options.labels}"),
    )


def train(objective: str, options: argparse.Namespace) -> dict[Any, Path]:
    """Make the two retrievers of an objective and search with them, on half of the cores."""
    logging.basicConfig(format=f"{objective}: %(message)s")
    logging.getLogger("modeling_condenser").setLevel(logging.INFO)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 2))
    encoder = pretrain_encoder(objective, options)
    retriever = finetune_encoder(encoder, objective, options)
    search([encoder, retriever], options)  # the report of all systems reads these runs
    return {(objective, "no labels"): encoder, (objective, f"{options.labels} labels"): retriever}


def search(models: list[Any], options: argparse.Namespace, baseline: str | None = None) -> Report:
    dtype = "bfloat16" if is_bfloat16_fast() else "float32"
    return evaluate(
        systems=[{"model": str(model), **ENCODING, "dtype": dtype} for model in models],
        collection=options.collection,
        baseline=baseline,
        measures=MEASURES,
        output_dir=str(options.output_dir / "evaluation"),
    )


def search_all(retrievers: dict[Any, Path], options: argparse.Namespace) -> tuple[Report, dict]:
    """Measure BM25, each retriever, and both; return also the system in each row and column."""
    models = {}
    for row, prefix in (("", ""), ("bm25 + ", "hybrid:")):
        for (objective, labels), folder in retrievers.items():
            models[f"{row}{objective}", labels] = f"{prefix}{folder}"
    report = search([*models.values()], options, baseline="bm25")
    return report, dict(zip(models, [*report.means][1:], strict=True))  # the first is bm25


def compare(report: Report, names: dict) -> dict[tuple[str, str, str], Comparison]:
    """Test systems against plain MLM and BM25, with Holm's correction over all tests."""
    evaluations = {result.system: result.evaluation for result in report.results}
    tests = {}
    for (row, labels), name in names.items():
        for control in ("bm25", names[row.replace("recommended", "mlm"), labels]):
            for measure in MEASURES if control != name else []:
                test = evaluations[name].compare(measure, evaluations[control])
                tests[name, control, measure] = test
    return correct(tests)


def make_table(measure: str, report: Report, names: dict, tests: Any) -> pd.DataFrame:
    table = pd.DataFrame(index=["bm25"])
    for (row, labels), name in names.items():
        table.loc["bm25", labels] = f"{report.means['bm25'][measure]:.3f}"
        table.loc[row, labels] = f"{report.means[name][measure]:.3f}"
        control = names[row.replace("recommended", "mlm"), labels]
        if test := tests.get((name, control, measure)):
            table.loc[row, labels] += f" ({test.difference:+.3f}, p = {test.p_adjusted:.3f})"
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output_dir", type=Path, default=Path("runs/demo"))
    parser.add_argument("--collection", default="health", help="or a folder (default: health)")
    parser.add_argument("--fraction", type=float, default=1.0, help="of all steps")
    parser.add_argument("--labels", type=int, default=512)
    options = parser.parse_args()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("modeling_condenser").setLevel(logging.INFO)
    started = time.perf_counter()
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        mlm, recommended = pool.map(partial(train, options=options), OBJECTIVES)
    report, names = search_all(mlm | recommended, options)
    tests = compare(report, names)
    for measure in MEASURES:
        print(f"\n{measure}\n{make_table(measure, report, names, tests).to_string()}")
    print(f"\nIn brackets: the difference from mlm; p by Holm's correction of {len(tests)} tests.")
    test = tests[names["recommended", f"{options.labels} labels"], "bm25", MEASURES[0]]
    print(f"recommended against bm25: {test.difference:+.3f}, p = {test.p_adjusted:.3f}.")
    print(f"{(time.perf_counter() - started) / 60:.1f} minutes; the whole report: {report.file}")


if __name__ == "__main__":
    main()
