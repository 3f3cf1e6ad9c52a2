"""Pre-training objectives for equal tokens, without labels and fine-tuned with few.

    python -m benchmarks.objectives COLLECTION OUT --arms mlm condenser ict-bow

Each arm starts from the same encoder, `starter` or another one, and reads about two million tokens
of the collection's passages, in blocks of 64; the arm `untouched` reads nothing. It is evaluated on
the split test without labels, and fine-tuned with each number of labels and seed. Figures are means
over seeds; p is that of the mean over seeds of each query's difference from the first arm, with
Holm's correction over all tests of the call.
"""

import argparse
from pathlib import Path
from statistics import fmean
from typing import Any

from modeling_condenser import evaluate, export_encoder, finetune, pretrain
from modeling_condenser.evaluation.measures import Evaluation, correct, make_evaluation
from modeling_condenser.files.settings import is_bfloat16_fast

UNTOUCHED = "untouched"
TOKENS: dict[str, Any] = {"tokens_per_batch": 2048, "max_steps": 986}
PAIRS: dict[str, Any] = {
    "similarity": "cosine",
    "temperature": 0.05,
    "per_device_train_batch_size": 64,
}
CONDENSER: dict[str, Any] = {"new_head": True, "n_head_layers": 1}
ARMS: dict[str, dict[str, Any]] = {
    "mlm": {"objective": "mlm", **TOKENS},
    "condenser": {"objective": "condenser", **CONDENSER, **TOKENS},
    "retromae": {  # the head's inputs are masked more, as in Xiao et al. 2022 (arXiv 2205.12035)
        "objective": "condenser",
        **CONDENSER,
        **TOKENS,
        "mlm_probability": 0.3,
        "head_mlm_probability": 0.5,
    },
    "cocondenser": {"objective": "cocondenser", **CONDENSER, **PAIRS, "max_steps": 325},
    "ict": {"objective": "ict", **PAIRS, "max_steps": 500},
}
ARMS |= {f"{name}-bow": {**arm, "bow_weight": 1.0} for name, arm in ARMS.items()}
ARMS[UNTOUCHED] = {}
MEASURE = "MRR@10"
POOLING = {UNTOUCHED: "cls"}  # which the exports of the other arms state
ENCODING = {"similarity": "cosine", "query_max_length": 32, "passage_max_length": 64}


def pretrain_arm(arm: str, options: argparse.Namespace) -> Path:
    if arm == UNTOUCHED:
        return Path(options.encoder)
    out = options.out / arm
    settings: dict[str, Any] = {
        "encoder": options.encoder,
        "corpus": options.collection,
        "encoder_changes": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        "max_length": 64,
        "learning_rate": options.rates[0],
        "warmup_steps": 0.1,
        "weight_decay": 0.01,
        "bf16": is_bfloat16_fast(),
        "seed": 2,
        **ARMS[arm],
        "output_dir": str(out / "pretraining"),
    }
    settings["max_steps"] = max(1, round(options.fraction * settings["max_steps"]))
    return export_encoder(pretrain(**settings), out / "encoder")


def finetune_arm(
    arm: str, encoder: Path, labels: int, seed: int, options: argparse.Namespace
) -> Path:
    return finetune(
        encoder=str(encoder),
        collection=options.collection,
        train_size=labels,
        subset_seed=seed,
        **ENCODING,
        pooling=POOLING.get(arm),
        temperature=0.05,
        per_device_train_batch_size=64,
        num_train_epochs=10,
        learning_rate=options.rates[1],
        warmup_steps=0.1,
        bf16=is_bfloat16_fast(),
        load_best_model_at_end=False,
        seed=seed,
        output_dir=str(options.out / arm / f"{labels}-{seed}"),
    )


def average(evaluations: list[Evaluation]) -> Evaluation:
    """The mean over seeds of each query's values."""
    values: dict[str, dict[str, float]] = {}
    for measure, first in evaluations[0].per_query.items():
        values[measure] = {}
        for query in first:
            values[measure][query] = fmean(each.per_query[measure][query] for each in evaluations)
    return make_evaluation(values)


def measure_arms(options: argparse.Namespace) -> dict[tuple[str, int], Evaluation]:
    """Arm and number of labels -> its figures; BM25 has 0 labels."""
    retrievers: dict[tuple[str, int], list[Path]] = {}
    for arm in options.arms:
        encoder = pretrain_arm(arm, options)
        retrievers[arm, 0] = [encoder]
        for labels in options.labels:
            folders = [finetune_arm(arm, encoder, labels, seed, options) for seed in options.seeds]
            retrievers[arm, labels] = folders
    report = evaluate(
        systems=[
            {
                "model": str(folder),
                "name": f"{arm}-{folder.parent.name}",
                "pooling": POOLING.get(arm),
                "dtype": options.dtype,
                **ENCODING,
            }
            for (arm, _), folders in retrievers.items()
            for folder in folders
        ],
        collection=options.collection,
        split=options.split,
        baseline="bm25",
        measures=[MEASURE],
        output_dir=str(options.out / "evaluation"),
    )
    bm25, *results = [result.evaluation for result in report.results]
    measured = {("bm25", 0): bm25}
    for key, folders in retrievers.items():
        measured[key] = average([results.pop(0) for _ in folders])
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("collection")
    parser.add_argument("out", type=Path)
    parser.add_argument("--encoder", default="starter")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["mlm", "condenser", "ict-bow"])
    parser.add_argument("--labels", type=int, nargs="*", default=[128, 512])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rates", type=float, nargs=2, default=[5e-4, 1e-3], help="of learning")
    parser.add_argument("--split", default="test")
    parser.add_argument("--dtype", default="float32", help="of the evaluation")
    parser.add_argument("--fraction", type=float, default=1.0, help="of the steps")
    options = parser.parse_args()
    measured = measure_arms(options)
    control, *others = options.arms
    tests = {}
    for arm in others:
        for labels in [0, *options.labels]:
            tests[arm, labels] = measured[arm, labels].compare(MEASURE, measured[control, labels])
    tests = correct(tests)
    for (arm, labels), evaluation in measured.items():
        line = f"{arm}, {labels} labels: {MEASURE} {evaluation.means[MEASURE]:.3f}"
        if test := tests.get((arm, labels)):
            line += f" ({test.difference:+.3f}, p = {test.p_adjusted:.3f})"
        print(line)


if __name__ == "__main__":
    main()
