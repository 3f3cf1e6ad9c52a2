"""The study stage: one start, several arms, one table that says whether they differ."""

import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformerTrainingArguments
from transformers import TrainingArguments

from modeling_condenser.analysis.settings import Measuring, read_wanted
from modeling_condenser.analysis.while_training import pretrain_and_measure
from modeling_condenser.biencoder.finetune import FinetuningRecipe, finetune
from modeling_condenser.collection.beir import CORPUS_FILE
from modeling_condenser.collection.builtin import build_builtin_collection
from modeling_condenser.collection.load import load_collection
from modeling_condenser.evaluation.card_results import report_on_card
from modeling_condenser.evaluation.system_results import SystemResult, evaluate_system
from modeling_condenser.measures.measures import Evaluation
from modeling_condenser.pretraining.pretrain import READINESS, PretrainingRecipe
from modeling_condenser.pretraining.recipe import CONTRASTIVE
from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.repository.card import PLACEHOLDER
from modeling_condenser.repository.curves import plot_curves
from modeling_condenser.retrieval.dense import EMBEDDINGS_FOLDER
from modeling_condenser.retrieval.systems import BM25
from modeling_condenser.runs.recipe import fill
from modeling_condenser.runs.run_folder import (
    MODEL_FOLDER,
    RUN_FILE,
    claim_run_folder,
    describe_machine,
    read_log,
)
from modeling_condenser.runs.whole_files import write_json

from .readiness import READINESS_FOLDER, ReadinessOfArms, measure_arms, write_readiness
from .results import StudyResults
from .starting_encoder import make_starting_encoder

logger = logging.getLogger(__name__)

SEARCH_FILE = "search.json"
BUILTIN = "builtin"
DEPTH = 100  # passages for a query
_RESERVED = frozenset(
    {BM25, "collection", "start", READINESS_FOLDER}
)  # folders of the study itself
# What decides how many tokens an arm sees, and which.
_BUDGET = frozenset(
    "blocks_seed corpus data_seed gradient_accumulation_steps max_length max_steps "
    "num_train_epochs per_device_train_batch_size seed short_block_probability "
    "tokens_per_batch".split()
)
# What a contrastive arm may set for itself, because its batch is part of its loss; the tokens that
# it saw are counted and stated.
_OWN_BUDGET = frozenset({"max_steps", "per_device_train_batch_size"})
_MORE_TOKENS = 1.01  # beyond the control's, as a factor, what is warned of


@dataclass(frozen=True)
class StudyRecipe:
    """What a study's recipe says.

    Attributes:
        arms: name -> pre-training settings in which the arms differ.
        control: the arm that the others are compared with.
        pretraining: settings that all arms share, the number of steps among them.
        finetuning: settings of the fine-tuning, alike for all arms.
        output_dir: folder of the study.
        collection: "builtin", or a BEIR folder; its passages are the pre-training corpus too.
        encoder: to start from, such as "starter"; by default one is made, with `encoder_config` and
            `start`.
        encoder_config: fields of `BertConfig` of the encoder that is made.
        start: settings of that encoder's own MLM pre-training.
        finetuning_seeds: each arm is fine-tuned once with each of these, which decides labels and
            order; figures are means over them.
        split: whose queries are judged.
    """

    arms: dict[str, Any]
    control: str
    pretraining: dict[str, Any]
    finetuning: dict[str, Any]
    output_dir: str
    collection: str = BUILTIN
    encoder: str | None = None
    encoder_config: dict[str, Any] = field(default_factory=dict)
    start: dict[str, Any] = field(default_factory=dict)
    finetuning_seeds: list[int] = field(default_factory=lambda: [0])
    split: str = "test"


def run_study(settings: Mapping[str, Any]) -> StudyResults:
    """Run a study from where it stopped last time.

    Args:
        settings: fields of `StudyRecipe`.

    Returns:
        The table of results, also written to the study's folder as results.json and results.md,
        beside curves.png, attention_entropy.png and the folders of all stages.

    Raises:
        ValueError: a setting does not fit.
    """
    (recipe,) = fill(settings, StudyRecipe)
    _check_arms(recipe)
    _check_stages(recipe)
    out = Path(recipe.output_dir)
    claim_run_folder(out, settings)
    started = time.perf_counter()
    study = _Study(recipe, out)
    collection = study.prepare_collection()
    encoder = study.prepare_encoder(collection)
    trained = {arm: study.train_arm(arm, encoder, collection) for arm in recipe.arms}
    tokens = study.count_tokens()
    unlabelled = {arm: study.measure_unlabelled(arm, trained[arm], collection) for arm in trained}
    finetuned = {arm: study.measure_finetuned(arm, trained[arm], collection) for arm in trained}
    logger.info("Measuring readiness of start and arms")
    readiness = study.measure_readiness(encoder, collection)
    logger.info("Searching with BM25")
    bm25 = evaluate_system(BM25, collection, out / BM25, split=recipe.split)
    results = StudyResults(
        bm25=bm25,
        groups={"no labels": unlabelled, study.labels: finetuned},
        control=recipe.control,
        facts={
            **describe_machine(),
            "session_seconds": round(time.perf_counter() - started, 1),
            "tokens_seen": tokens,
            "n_passages": _count_lines(collection / CORPUS_FILE),
            "n_queries": len(bm25.evaluation.per_query["MRR@10"]),
            "recipe": dict(settings),
        },
        readiness=write_readiness(readiness, out),
    )
    results.write(out)
    logs = {arm: read_log(out / arm / "pretrain") for arm in recipe.arms}
    plot_curves(logs, out / "curves.png")
    study.finish(results, collection)
    return results


def _check_arms(recipe: StudyRecipe) -> None:
    if recipe.control not in recipe.arms:
        raise ValueError(
            f"The control arm {recipe.control!r} is none of the arms {', '.join(recipe.arms)}."
        )
    for arm, changes in recipe.arms.items():
        if arm in _RESERVED:
            raise ValueError(
                f"An arm cannot be called {arm!r}: the study has a folder of that name."
            )
        own = _OWN_BUDGET if changes.get("objective") in CONTRASTIVE else frozenset()
        unequal = sorted((_BUDGET - own) & changes.keys())
        if unequal:
            raise ValueError(
                f"The arm {arm!r} changes {', '.join(unequal)}, but arms are compared at equal "
                "tokens: set it under `pretraining`, for all of them."
            )


def _check_stages(recipe: StudyRecipe) -> None:
    """Refuse a wrong setting of a late stage before an early one takes its hour."""
    given = {"encoder": "", "output_dir": recipe.output_dir}  # the study's own business
    starts = [] if recipe.encoder is not None else [recipe.start]
    arms = [{**recipe.pretraining, **changes} for changes in recipe.arms.values()]
    for settings in (*starts, *arms):
        settings = dict(settings)
        if settings.get(READINESS) is not None:
            read_wanted(settings[READINESS])
        settings.pop(READINESS, None)
        fill({**given, "corpus": "", **settings}, PretrainingRecipe, TrainingArguments)
    fill(
        {**given, "collection": "", **recipe.finetuning},
        FinetuningRecipe,
        SentenceTransformerTrainingArguments,
    )


@dataclass(frozen=True)
class _Study:
    """The steps of a study, each of which leaves a folder and is skipped if it is there."""

    recipe: StudyRecipe
    out: Path

    def prepare_collection(self) -> Path:
        if self.recipe.collection != BUILTIN:
            return Path(self.recipe.collection)
        logger.info("Building the built-in collection from the installed packages' docstrings")
        return build_builtin_collection(self.out / "collection")

    def prepare_encoder(self, collection: Path) -> str:
        """The encoder that every arm starts from."""
        if self.recipe.encoder is not None:
            return self.recipe.encoder
        logger.info("Training a vocabulary and a starting encoder by plain MLM")
        with (collection / CORPUS_FILE).open(encoding="utf-8") as lines:
            blank = make_starting_encoder(
                (json.loads(line)["text"] for line in lines),
                self.out / "start" / "blank",
                encoder_config=self.recipe.encoder_config,
            )
        settings = {"objective": "mlm", "encoder": str(blank), **self.recipe.start}
        return str(self._pretrain(settings, self.out / "start" / "pretrain", collection))

    def train_arm(self, arm: str, encoder: str, collection: Path) -> Path:
        """Pre-train an arm and export its encoder."""
        logger.info("Pre-training arm %s", arm)
        settings = {"encoder": encoder, **self.recipe.pretraining, **self.recipe.arms[arm]}
        checkpoint = self._pretrain(settings, self.out / arm / "pretrain", collection)
        exported = self.out / arm / "encoder"
        return exported if exported.is_dir() else export_encoder(checkpoint, exported)

    def count_tokens(self) -> dict[str, int]:
        """Tokens that each arm has seen; an arm that saw more than the control is named."""
        runs = {arm: self.out / arm / "pretrain" / RUN_FILE for arm in self.recipe.arms}
        seen = {arm: int(json.loads(run.read_text())["tokens_seen"]) for arm, run in runs.items()}
        most = seen[self.recipe.control] * _MORE_TOKENS
        for arm in (arm for arm, n in seen.items() if n > most):
            logger.warning(
                "Arm %s has seen %d tokens, the control %d: lower its max_steps for a comparison "
                "at equal tokens.",
                arm,
                seen[arm],
                seen[self.recipe.control],
            )
        return seen

    def _pretrain(self, settings: dict[str, Any], folder: Path, collection: Path) -> Path:
        corpus = str(collection / CORPUS_FILE)
        return pretrain_and_measure({"corpus": corpus, **settings, "output_dir": str(folder)})

    @property
    def labels(self) -> str:
        """How many labelled pairs the arms are fine-tuned on, in words."""
        return f"{self.recipe.finetuning.get('train_size') or 'all'} labels"

    def measure_unlabelled(self, arm: str, encoder: Path, collection: Path) -> SystemResult:
        """Measure an arm's encoder as it is, without fine-tuning."""
        logger.info("Evaluating arm %s without labels", arm)
        folder = self.out / arm / "evaluation"
        split = self.recipe.split
        return evaluate_system(encoder, collection, folder, split=split, name=arm)

    def measure_finetuned(self, arm: str, encoder: Path, collection: Path) -> SystemResult:
        """Fine-tune an arm's encoder with each seed and measure the retrievers."""
        results = []
        for seed in self.recipe.finetuning_seeds:
            logger.info("Fine-tuning and evaluating arm %s, seed %d", arm, seed)
            settings = {
                "encoder": str(encoder),
                "collection": str(collection),
                "seed": seed,
                "subset_seed": seed,
                **self.recipe.finetuning,
                "output_dir": str(self._finetuned(arm, seed)),
            }
            model = finetune(settings)
            folder = self._finetuned(arm, seed) / "evaluation"
            split = self.recipe.split
            results.append(evaluate_system(model, collection, folder, split=split, name=arm))
        return _mean_result(results)

    def _finetuned(self, arm: str, seed: int) -> Path:
        return self.out / arm / f"finetuned-{seed}"

    def measure_readiness(self, encoder: str, collection: Path) -> ReadinessOfArms:
        """Measure the start, each arm as pre-trained, and its first seed as fine-tuned."""
        seed = self.recipe.finetuning_seeds[0]
        return measure_arms(
            encoder,
            {
                arm: (
                    self.out / arm / "pretrain" / MODEL_FOLDER,
                    self._finetuned(arm, seed) / MODEL_FOLDER,
                )
                for arm in self.recipe.arms
            },
            collection,
            split=self.recipe.split,
            max_length=int(self.recipe.pretraining.get("max_length", Measuring.max_length)),
        )

    def finish(self, results: StudyResults, collection: Path) -> None:
        """Put results on the cards of the first seed's retrievers, and say what to search with."""
        seed = self.recipe.finetuning_seeds[0]
        loaded = load_collection(collection, split=self.recipe.split)
        for arm in self.recipe.arms:
            model = self._finetuned(arm, seed) / "model"
            own = evaluate_system(
                model,
                loaded,
                self._finetuned(arm, seed) / "evaluation",
                split=self.recipe.split,
                depth=DEPTH,
                name=arm,
            )
            words = f"condenser evaluate {PLACEHOLDER} {own.collection} --baseline bm25"
            report_on_card(
                model,
                own,
                [results.bm25],
                collection=loaded,
                source=collection,
                depth=DEPTH,
                command=f"{words} --split {own.split}",
            )
        best = self._finetuned(results.best_arm, seed)
        content = {
            "model": str((best / "model").relative_to(self.out)),
            "embeddings": str((best / "evaluation" / EMBEDDINGS_FOLDER).relative_to(self.out)),
            "collection": os.path.relpath(collection, self.out),
        }
        write_json(self.out / SEARCH_FILE, content)


def _count_lines(file: Path) -> int:
    with file.open("rb") as lines:
        return sum(1 for _ in lines)


def _mean_result(results: list[SystemResult]) -> SystemResult:
    """Per-query means over several runs of one system."""
    evaluations = [result.evaluation for result in results]
    per_query = {
        measure: {
            query: float(np.mean([e.per_query[measure][query] for e in evaluations]))
            for query in evaluations[0].per_query[measure]
        }
        for measure in evaluations[0].per_query
    }
    means = {measure: float(np.mean(list(v.values()))) for measure, v in per_query.items()}
    first = results[0]
    unanswerable = first.evaluation.unanswerable
    return SystemResult(
        first.system, first.collection, first.split, Evaluation(means, per_query, unanswerable)
    )
