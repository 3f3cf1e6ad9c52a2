"""Few-shot retrieval: an encoder fine-tuned on few labels, measured like the encoder itself.

In a process of its own, because two trainings in one process share more than their memory: a
training that is being watched must not notice.
"""

import dataclasses
import os
import tempfile
from pathlib import Path
from typing import Any

from modeling_condenser.biencoder.finetune import finetune
from modeling_condenser.collection.load import load_collection
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.hub.model_folder import MODULES_FILE
from modeling_condenser.repository.contract import CONTRACT_FILE
from modeling_condenser.runs.child_process import call_apart
from modeling_condenser.runs.recipe import read_recipe

from .settings import Measuring
from .small_retrieval import load_small, measure_retrieval
from .subject import Subject

_RECIPE = "finetune/contrastive"
_TRAINED_ON = "train"
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
        ValueError: the settings of the fine-tuning are bad.
        RuntimeError: the fine-tuning failed otherwise; the message says how.
    """
    with tempfile.TemporaryDirectory(prefix="condenser-few-shot-") as scratch:
        encoder = subject.save_encoder(Path(scratch, "encoder"))
        answer: dict[str, float] = call_apart(
            _measure_here,
            {
                "encoder": str(encoder),
                "out": str(Path(scratch, "run")),
                "is_cpu": subject.encoder.device.type == "cpu",
                "max_length": subject.max_length,
                "fields": dataclasses.asdict(measuring),
            },
            failed=f"the fine-tuning on {measuring.labels} labels failed",
            environment=_environment_of_one(),
        )
    return answer


def _environment_of_one() -> dict[str, str]:
    """The environment without what tells a process that it is one of several."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _RANKS and not name.startswith(("ACCELERATE_", "TORCHELASTIC_", "FSDP_"))
    }


def _measure_here(
    *, encoder: str, out: str, is_cpu: bool, max_length: int, fields: dict[str, Any]
) -> dict[str, float]:
    measuring = Measuring(**fields)
    settings = _finetuning(Path(encoder), measuring, max_length=max_length)
    model = finetune({**settings, "use_cpu": is_cpu, "output_dir": out})
    retriever = Retriever(model, device="cpu" if is_cpu else None)
    small = load_small(measuring)
    assert small is not None
    return measure_retrieval(retriever, small)


def _finetuning(encoder: Path, measuring: Measuring, *, max_length: int) -> dict[str, Any]:
    """The settings of the fine-tuning: the shipped recipe's, with what is said here."""
    is_said = any((encoder / file).is_file() for file in (CONTRACT_FILE, MODULES_FILE))
    recipe = read_recipe(_RECIPE)
    lengths = ("query_max_length", "passage_max_length")
    return {
        **recipe,
        **{name: min(recipe[name], max_length) for name in lengths},
        **({} if is_said else {"pooling": "cls"}),
        "disable_tqdm": True,
        "seed": measuring.sample_seed,
        "subset_seed": measuring.sample_seed,
        **measuring.finetuning,
        "encoder": str(encoder),
        "collection": measuring.collection,
        "split": _TRAINED_ON,
        "train_size": measuring.labels,
    }
