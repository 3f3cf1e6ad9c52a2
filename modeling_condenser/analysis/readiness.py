"""Readiness of one model: all measures on one sample."""

import copy
import os
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from datasets import Dataset

from modeling_condenser.biencoder.finetune import finetune
from modeling_condenser.collection.collection import Collection
from modeling_condenser.hub.contract import EncodingContract
from modeling_condenser.hub.export import write_repository
from modeling_condenser.hub.training_log import (
    ENTROPY,
    EVEN_ENTROPY,
    FEW_SHOT,
    PREFIX,
    ZERO_SHOT,
    name_layer,
)
from modeling_condenser.measures.measures import evaluate_run
from modeling_condenser.retrieval.exact import search_exact_arrays
from modeling_condenser.runs.child_process import call_apart
from modeling_condenser.runs.recipe import read_recipe

from .measures import (
    alignment,
    mask_texts,
    measure_attention_entropy,
    measure_condensing,
    uniformity,
)
from .models import Subject, states_pooling, undisturbed
from .sample import Measuring, Sample, load_small

_MEASURES = ("MRR@10", "nDCG@10", "R@100")
_DEPTH = 100
# Environment variables of a process that is one of several.
_RANK_VARIABLES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("ACCELERATE_", "TORCHELASTIC_", "FSDP_"),
)


def measure_readiness(subject: Subject, sample: Sample) -> dict[str, float]:
    """Measure a model; weights, modes and global random states stay as they are.

    Returns:
        An entry of a training log; `modeling_condenser.hub.training_log` explains its names.

    Raises:
        ValueError: the model cannot be measured.
    """
    started = time.perf_counter()
    with undisturbed(subject.condenser or subject.encoder):
        batches = (batch for _, batch in subject.batches(sample.texts))
        layers, even = measure_attention_entropy(subject.encoder, batches)
        first, second, titles = map(list, zip(*sample.matches, strict=True))
        firsts = subject.encode_queries(first) if sample.small else _encode(subject, first)
        entry = {
            **_measure_head(subject, sample),
            ENTROPY: fmean(layers),
            **{name_layer(number): entropy for number, entropy in enumerate(layers, start=1)},
            EVEN_ENTROPY: even,
            f"{PREFIX}alignment": alignment(firsts, _encode(subject, second, titles)),
            f"{PREFIX}uniformity": uniformity(_encode(subject, list(sample.texts))),
        }
        if sample.small is not None:
            found = measure_retrieval(subject, sample.small)
            entry |= {f"{ZERO_SHOT}{measure}": mean for measure, mean in found.items()}
        if sample.measuring.labels:
            found = measure_few_shot(subject, sample.measuring)
            entry |= {f"{FEW_SHOT}{measure}": mean for measure, mean in found.items()}
    return {**entry, f"{PREFIX}seconds": round(time.perf_counter() - started, 2)}


def _measure_head(subject: Subject, sample: Sample) -> dict[str, float]:
    if subject.condenser is None:
        return {}
    blocks = mask_texts(
        sample.texts,
        subject.tokenizer,
        max_length=subject.max_length,
        seed=sample.measuring.sample_seed,
        head_mlm_probability=subject.condenser.config.head_mlm_probability,
    )
    device = subject.encoder.device
    moved = [{name: part.to(device) for name, part in block.items()} for block in blocks]
    costs = measure_condensing(subject.condenser, moved)
    return {f"{PREFIX}{name}": value for name, value in costs.items()}


def _encode(subject: Subject, texts: list[str], titles: list[str] | None = None) -> np.ndarray:
    columns = {"title": titles or [""] * len(texts), "text": texts}
    return subject.encode_passages(Dataset.from_dict(columns))


def measure_retrieval(subject: Subject, small: Collection) -> dict[str, float]:
    """Search a small collection by inner product: measure -> mean over the queries."""
    run = search_exact_arrays(
        subject.encode_passages(small.passages),
        small.passages["_id"][:],
        query_embeddings=subject.encode_queries(list(small.queries.values())),
        query_ids=list(small.queries),
        depth=_DEPTH,
    )
    return dict(evaluate_run(small.qrels, run, measures=_MEASURES).means)


def measure_few_shot(subject: Subject, measuring: Measuring) -> dict[str, float]:
    """Fine-tune a model's encoder on few labels and measure it: measure -> mean.

    A new process does this, because it would change a training that is running in this one.
    """
    environment = {n: v for n, v in os.environ.items() if not n.startswith(_RANK_VARIABLES)}
    with tempfile.TemporaryDirectory(prefix="condenser-few-shot-") as scratch:
        arguments = {
            "encoder": str(_save_encoder(subject, Path(scratch, "encoder"))),
            "out": str(Path(scratch, "run")),
            "use_cpu": subject.encoder.device.type == "cpu",
            "max_length": subject.max_length,
            "measuring": asdict(measuring),
        }
        failed = f"the fine-tuning on {measuring.labels} labels failed"
        answer: dict[str, float] = call_apart(
            _finetune_and_measure, arguments, failed=failed, environment=environment
        )
    return answer


def _save_encoder(subject: Subject, folder: Path) -> Path:
    if subject.retriever is not None:
        return subject.retriever.folder
    folder.mkdir()
    # Copies, because saving changes configuration and tokenizer.
    encoder, tokenizer = copy.deepcopy(subject.encoder), copy.deepcopy(subject.tokenizer)
    contract = EncodingContract(subject.max_length, subject.max_length)
    write_repository(folder, encoder, tokenizer, contract, [])
    return folder


def _finetune_and_measure(
    *, encoder: str, out: str, use_cpu: bool, max_length: int, measuring: dict[str, Any]
) -> dict[str, float]:
    settings = Measuring(**measuring)
    recipe = read_recipe("finetune/contrastive")
    lengths = ("query_max_length", "passage_max_length")
    model = finetune(
        {
            **recipe,
            **{name: min(recipe[name], max_length) for name in lengths},
            **({} if states_pooling(Path(encoder)) else {"pooling": "cls"}),
            "disable_tqdm": True,
            "seed": settings.sample_seed,
            "subset_seed": settings.sample_seed,
            **settings.finetuning,
            "encoder": encoder,
            "collection": settings.collection,
            "split": "train",
            "train_size": settings.labels,
            "use_cpu": use_cpu,
            "output_dir": out,
        }
    )
    return measure_retrieval(Subject.open(model, max_length=max_length), load_small(settings))
