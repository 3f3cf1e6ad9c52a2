"""Few-shot retrieval: an encoder fine-tuned on few labels, measured like the encoder itself.

In a process of its own, because two trainings in one process share more than their memory: a
training that is being watched must not notice.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modeling_condenser.biencoder.finetune import finetune
from modeling_condenser.collection.load import load_collection
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.hub.model_folder import MODULES_FILE
from modeling_condenser.repository.contract import CONTRACT_FILE
from modeling_condenser.runs.recipe import read_recipe

from .settings import Measuring
from .small_retrieval import load_small, measure_retrieval
from .subject import Subject

_RECIPE = "finetune/contrastive"
_TRAINED_ON = "train"
_ROOT = Path(__file__).parents[2]
_CHILD = "from modeling_condenser.analysis.few_shot import _run_child; _run_child()"
# What tells a process that it is one of several.
_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def check_labels(measuring: Measuring) -> None:
    """Check that a collection has the labels that few-shot retrieval is to be trained on.

    Raises:
        ValueError: it has fewer.
    """
    if measuring.collection is None or not measuring.labels:
        return
    qrels = load_collection(measuring.collection, split=_TRAINED_ON).qrels
    n_labels = sum(grade > 0 for grades in qrels.values() for grade in grades.values())
    if n_labels < measuring.labels:
        raise ValueError(
            f"labels is {measuring.labels}, but {measuring.collection} has {n_labels} in its split "
            f"{_TRAINED_ON!r}: choose at most that."
        )


def measure_few_shot(subject: Subject, measuring: Measuring) -> dict[str, float]:
    """Fine-tune a subject's encoder on few labels and measure it: measure -> mean.

    Raises:
        RuntimeError: the fine-tuning failed; the message has its last words.
    """
    with tempfile.TemporaryDirectory(prefix="condenser-few-shot-") as scratch:
        encoder = subject.save_encoder(Path(scratch, "encoder"))
        request = {
            "encoder": str(encoder),
            "out": str(Path(scratch, "run")),
            "is_cpu": subject.encoder.device.type == "cpu",
            "max_length": subject.max_length,
            "measuring": dataclasses.asdict(measuring),
        }
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in _RANKS and not name.startswith(("ACCELERATE_", "TORCHELASTIC_", "FSDP_"))
        }
        paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
        process = subprocess.run(
            [sys.executable, "-c", _CHILD],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )
    if process.returncode != 0:
        raise RuntimeError(
            f"The fine-tuning on {measuring.labels} labels ended with status {process.returncode}: "
            f"{process.stderr[-1000:].strip()}"
        )
    answer: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return answer


def _run_child() -> None:
    """Fine-tune and measure what the request on stdin says; the answer is stdout's last line."""
    answer = _measure_here(json.load(sys.stdin))
    sys.stdout.write(f"\n{json.dumps(answer)}\n")


def _measure_here(request: Mapping[str, Any]) -> dict[str, float]:
    measuring = Measuring(**request["measuring"])
    model = finetune(_finetuning(request, measuring))
    retriever = Retriever(model, device="cpu" if request["is_cpu"] else None)
    small = load_small(measuring)
    assert small is not None
    return measure_retrieval(retriever, small)


def _finetuning(request: Mapping[str, Any], measuring: Measuring) -> dict[str, Any]:
    """The settings of the fine-tuning: the shipped recipe's, with what is said here."""
    encoder = Path(request["encoder"])
    is_said = any((encoder / file).is_file() for file in (CONTRACT_FILE, MODULES_FILE))
    recipe = read_recipe(_RECIPE)
    lengths = ("query_max_length", "passage_max_length")
    return {
        **recipe,
        **{name: min(recipe[name], request["max_length"]) for name in lengths},
        **({} if is_said else {"pooling": "cls"}),
        "use_cpu": request["is_cpu"],
        "disable_tqdm": True,
        "seed": measuring.sample_seed,
        "subset_seed": measuring.sample_seed,
        **measuring.finetuning,
        "encoder": str(encoder),
        "collection": measuring.collection,
        "split": _TRAINED_ON,
        "train_size": measuring.labels,
        "output_dir": request["out"],
    }
