"""Readiness of one model: the model and the instruments in, all measures out."""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any

from datasets import Dataset, IterableDataset

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.fingerprint import fingerprint_judgements, fingerprint_passages
from modeling_condenser.repository.readiness import (
    ENTROPY,
    EVEN_ENTROPY,
    FEW_SHOT,
    PREFIX,
    SAMPLE,
    ZERO_SHOT,
    name_layer,
)

from .attention_entropy import AttentionEntropy, measure_attention_entropy
from .condensing import Condensing, mask_texts, measure_condensing
from .few_shot import check_labels, measure_few_shot
from .geometry import alignment, uniformity
from .sample import HALVES, Sample, make_sample
from .settings import Measuring
from .small_retrieval import load_small, measure_retrieval
from .subject import Subject, undisturbed
from .vectors import token_batches


@dataclass(frozen=True)
class Readiness:
    """What was measured of a model.

    Attributes:
        condensing: what its head takes from the dense vector; None without a head.
        entropy: of the CLS token's attention.
        alignment: of the vectors of texts that belong together (Wang & Isola 2020).
        uniformity: of the vectors of the sample's texts.
        zero_shot: measure -> value on the small collection, where there is one.
        few_shot: the same after fine-tuning on few labels, where that was asked for.
        seconds: that the measuring took.
    """

    condensing: Condensing | None
    entropy: AttentionEntropy
    alignment: float
    uniformity: float
    zero_shot: Mapping[str, float] = field(default_factory=dict)
    few_shot: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def logs(self) -> dict[str, float]:
        """As an entry of a training log (`repository/readiness.py`)."""
        condensing = {} if self.condensing is None else asdict(self.condensing)
        layers = enumerate(self.entropy.layers, start=1)
        return {
            **{f"{PREFIX}{name}": value for name, value in condensing.items()},
            ENTROPY: self.entropy.mean,
            **{name_layer(number): value for number, value in layers},
            EVEN_ENTROPY: self.entropy.even,
            f"{PREFIX}alignment": self.alignment,
            f"{PREFIX}uniformity": self.uniformity,
            **{f"{ZERO_SHOT}{name}": value for name, value in self.zero_shot.items()},
            **{f"{FEW_SHOT}{name}": value for name, value in self.few_shot.items()},
            f"{PREFIX}seconds": self.seconds,
        }


@dataclass(frozen=True)
class Instruments:
    """What every model of a comparison is measured with.

    Attributes:
        measuring: the settings.
        sample: texts and pairs.
        small: a small collection to search; None for none.
    """

    measuring: Measuring
    sample: Sample
    small: Collection | None

    @classmethod
    def prepare(cls, measuring: Measuring, documents: Dataset | IterableDataset) -> "Instruments":
        """Choose the sample and the small collection.

        Args:
            measuring: the settings.
            documents: with a column `text`, that the sample is taken from.

        Raises:
            FileNotFoundError: there is no such collection.
            ValueError: text or collection is too little to measure on.
        """
        check_labels(measuring)
        small = load_small(measuring)
        sample = make_sample(
            documents,
            measuring.texts,
            seed=measuring.sample_seed,
            collection=small,
            n_pairs=measuring.queries,
        )
        return cls(measuring, sample, small)

    def facts(self) -> dict[str, Any]:
        """What was measured on, for a record."""
        facts: dict[str, Any] = {
            "texts": len(self.sample.texts),
            "pairs": len(self.sample.pairs),
            "pairs_are": self.sample.kind,
            "sample_sha256": self.sample.fingerprint,
        }
        if self.small is not None:
            facts["collection"] = {
                "name": self.small.name,
                "queries": len(self.small.queries),
                "passages": len(self.small.passages),
                "passages_sha256": fingerprint_passages(self.small.passages),
                "judgements_sha256": fingerprint_judgements(self.small),
            }
        return facts

    @cached_property
    def number(self) -> int:
        """Tells whether two entries of a log were measured with the same instruments."""
        content = json.dumps([asdict(self.measuring), self.facts()], sort_keys=True)
        return int(sha256(content.encode()).hexdigest()[:12], 16)

    def logs(self, readiness: Readiness) -> dict[str, float]:
        """An entry of a training log, marked with the instruments' number."""
        return {**readiness.logs(), SAMPLE: self.number}


def measure_readiness(subject: Subject, instruments: Instruments) -> Readiness:
    """Measure a model, leaving it and all random states as they were.

    Raises:
        ValueError: something cannot be measured of it; the message says what and why.
    """
    started = time.perf_counter()
    measuring, sample = instruments.measuring, instruments.sample
    with undisturbed(subject.condenser or subject.encoder):
        condensing = None
        if subject.condenser is not None:
            blocks = mask_texts(
                sample.texts,
                subject.tokenizer,
                max_length=subject.max_length,
                seed=sample.seed,
                head_mlm_probability=subject.condenser.config.head_mlm_probability,
            )
            device = subject.encoder.device
            moved = [{name: part.to(device) for name, part in b.items()} for b in blocks]
            condensing = measure_condensing(subject.condenser, moved)
        batches = token_batches(
            subject.encoder, subject.tokenizer, sample.texts, max_length=subject.max_length
        )
        entropy = measure_attention_entropy(subject.encoder, [batch for _, batch in batches])
        firsts, seconds = _encode_pairs(subject, sample)
        texts = subject.vectors.encode_passages(_passages([("", text) for text in sample.texts]))
        zero_shot, few_shot = {}, {}
        if instruments.small is not None:
            zero_shot = measure_retrieval(subject.vectors, instruments.small)
            if measuring.labels:
                few_shot = measure_few_shot(subject, measuring)
        aligned, uniform = alignment(firsts, seconds), uniformity(texts)
    taken = round(time.perf_counter() - started, 2)
    return Readiness(condensing, entropy, aligned, uniform, zero_shot, few_shot, taken)


def _encode_pairs(subject: Subject, sample: Sample) -> tuple[Any, Any]:
    """The vectors of texts that belong together, (N, D) each."""
    vectors, pairs = subject.vectors, sample.pairs
    firsts = [pair.first for pair in pairs]
    if sample.kind == HALVES:
        first = vectors.encode_passages(_passages([("", text) for text in firsts]))
    else:
        first = vectors.encode_queries(firsts)
    return first, vectors.encode_passages(_passages([(p.title, p.second) for p in pairs]))


def _passages(titled: list[tuple[str, str]]) -> Dataset:
    titles, texts = zip(*titled, strict=True)
    return Dataset.from_dict({"title": list(titles), "text": list(texts)})
