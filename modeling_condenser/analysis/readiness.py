"""Measure the readiness of a model: attention entropy, head, geometry and retrieval."""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from transformers import AutoTokenizer, PreTrainedModel

from modeling_condenser.encoding.retriever import Retriever, make_batches, tokenize_texts
from modeling_condenser.evaluation.measures import measure_in_memory
from modeling_condenser.files import models
from modeling_condenser.files.models import states_encoding
from modeling_condenser.files.run_folder import show_bars
from modeling_condenser.modeling_condenser import CondenserForMaskedLM, CondenserForPreTraining
from modeling_condenser.pretraining.collator import CondenserDataCollator
from modeling_condenser.pretraining.counter_random import random_keys
from modeling_condenser.pretraining.data import with_keys
from modeling_condenser.pretraining.probe import probe
from modeling_condenser.publishing.training_log import PREFIX

from .sample import Sample

TOKENS_PER_BATCH = 2048


@show_bars(False)  # because a training may show its own
def measure_model(name: str | Path, sample: Sample) -> dict[str, float]:
    """Measure a pre-training checkpoint, an export, a retriever or any encoder.

    If the files of an encoder do not state its pooling, it is CLS.
    """
    folder = models.find_model_folder(name)
    if not models.is_checkpoint(folder):
        return measure_retriever(_open(folder, sample.measuring.max_length), sample)
    classes = models.read_config(folder).get("architectures", ())
    is_plain = CondenserForMaskedLM.__name__ in classes
    model_class: Any = CondenserForMaskedLM if is_plain else CondenserForPreTraining
    with models.quiet_loading():
        model = model_class.from_pretrained(folder)
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    return measure_checkpoint(model, AutoTokenizer.from_pretrained(folder), sample)


@show_bars(False)
def measure_checkpoint(model: Any, tokenizer: Any, sample: Sample) -> dict[str, float]:
    """Measure a `CondenserForPreTraining` or `CondenserForMaskedLM` in memory.

    The encoder is measured as its export. The model, its mode and global random states are kept.
    """
    entry: dict[str, float] = {}
    with _exported(model, tokenizer, sample.measuring.max_length) as retriever:
        if hasattr(model, "run_head"):  # not by its class, because remote code has its own
            probed = probe(model, mask_texts(model, retriever, sample))
            names = {"head_loss", "zero_cost", "swap_cost"} & probed.keys()
            entry = {f"{PREFIX}{name}": probed[name] for name in names}
        return {**entry, **measure_retriever(retriever, sample)}


def measure_retriever(retriever: Retriever, sample: Sample) -> dict[str, float]:
    """Measure attention, geometry and retrieval.

    Returns:
        An entry of a training log; `titles.py` explains its names.
    """
    transformer: Any = retriever.model[0]
    tokenizer, max_length = retriever.model.tokenizer, retriever.contract.passage_max_length
    tokens = tokenize_texts(tokenizer, sample.texts, max_length=max_length)
    batches = make_batches(tokens, tokenizer=tokenizer, token_budget=TOKENS_PER_BATCH)
    layers, even = measure_attention_entropy(transformer.model, (b for _, b in batches))
    values = {"entropy": fmean(layers), "entropy_even": even}
    values |= {f"entropy_layer_{k}": entropy for k, entropy in enumerate(layers, start=1)}
    encode_first = retriever.encode_queries if sample.small else retriever.encode_passages
    first = encode_first(sample.matches["query"][:])
    values["alignment"] = alignment(first, retriever.encode_passages(sample.matches))
    values["uniformity"] = uniformity(retriever.encode_passages(sample.texts))
    if sample.small is not None and retriever.contract.similarity != "euclidean":
        for measure, mean in measure_in_memory(retriever, sample.small).means.items():
            values[f"zero_shot_{measure}"] = mean
    return {f"{PREFIX}{name}": value for name, value in values.items()}


def _open(folder: Path, max_length: int, device: Any = None) -> Retriever:
    """Open an encoder or a retriever, for texts of at most this many tokens."""
    pooling = None if states_encoding(folder) else "cls"
    retriever = Retriever(folder, device=device, pooling=pooling)
    retriever.contract = replace(
        retriever.contract,
        query_max_length=min(retriever.contract.query_max_length, max_length),
        passage_max_length=min(retriever.contract.passage_max_length, max_length),
    )
    return retriever


@contextmanager
def _exported(model: Any, tokenizer: Any, max_length: int) -> Iterator[Retriever]:
    """The encoder of a checkpoint in memory as a retriever, from a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="condenser-readiness-") as scratch:
        with models.quiet_loading():
            model.save_encoder(scratch, tokenizer=tokenizer)
        yield _open(Path(scratch), max_length, model.device)


@torch.no_grad()
def measure_attention_entropy(
    encoder: PreTrainedModel, batches: Iterable[Mapping[str, torch.Tensor]]
) -> tuple[list[float], float]:
    """Measure CLS attention entropy: Gao & Callan (2021), section 5 and Figure 2.

    Args:
        encoder: in evaluation mode. Its attention back-end is changed and restored.
        batches: `input_ids` and `attention_mask`, each (B, T), on any device.

    Returns:
        The entropy of the CLS row of each layer, from the first to the last, and that of even
        attention to all tokens, in nats, mean over heads and texts.
    """
    entropies, even = [], []
    back_end = encoder.config._attn_implementation
    try:
        encoder.set_attn_implementation("eager")
        for batch in batches:
            batch = {name: part.to(encoder.device) for name, part in batch.items()}
            mask = batch["attention_mask"]
            attentions = encoder(**batch, output_attentions=True).attentions
            if not attentions or any(layer is None for layer in attentions):
                raise ValueError(
                    f"A {encoder.config.model_type} encoder does not return the attention of its "
                    "layers, so its entropy cannot be measured."
                )
            layers = [cls_entropies(layer, mask) for layer in attentions]
            entropies.append(torch.stack(layers, dim=1).cpu())  # (B, layers)
            even.append(mask.sum(1).double().log().cpu())  # (B,)
    finally:
        encoder.set_attn_implementation(back_end)
    return torch.cat(entropies).mean(0).tolist(), torch.cat(even).mean().item()


def cls_entropies(attention: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Entropy of each text's CLS row over its tokens, in nats, mean over heads: (B,) float64.

    Args:
        attention: (B, heads, T, T); each row is a distribution.
        mask: (B, T), 1 for tokens and 0 for padding. The first token is CLS.
    """
    rows = attention[:, :, 0].double()  # (B, heads, T)
    rows = rows * mask[:, None]
    rows = rows / rows.sum(-1, keepdim=True)
    return torch.special.entr(rows).sum(-1).mean(-1)


def mask_texts(model: Any, retriever: Retriever, sample: Sample) -> list[dict[str, torch.Tensor]]:
    """Make masked batches of texts; the masks depend on the seed and a text's place only."""
    tokenizer, max_length = retriever.model.tokenizer, retriever.contract.passage_max_length
    collator = CondenserDataCollator(
        tokenizer, max_length=max_length, head_mlm_probability=model.config.head_mlm_probability
    )
    limits: Any = {"add_special_tokens": False, "truncation": True, "max_length": max_length}
    ids = tokenizer(sample.texts, **limits)["input_ids"]
    keys = random_keys(sample.measuring.sample_seed, np.arange(len(ids)))
    blocks, n = with_keys(ids, keys), max(TOKENS_PER_BATCH // max_length, 1)
    batches = [collator(blocks[first : first + n]) for first in range(0, len(blocks), n)]
    return [{name: part.to(model.device) for name, part in batch.items()} for batch in batches]


def alignment(first: np.ndarray, second: np.ndarray) -> float:
    """Mean of |x - y|^2 over matching rows, normalised (Wang & Isola 2020, alpha = 2): 0 to 4."""
    return float((_unit(first) - _unit(second)).square().sum(1).mean())


def uniformity(vectors: np.ndarray) -> float:
    """log of the mean of exp(-2 |x - y|^2) over pairs of normalised rows (Wang & Isola, t = 2)."""
    return float(torch.pdist(_unit(vectors)).square().mul(-2).exp().mean().log())


def _unit(vectors: np.ndarray) -> torch.Tensor:
    return F.normalize(torch.from_numpy(np.asarray(vectors, dtype=np.float64)), dim=1)
