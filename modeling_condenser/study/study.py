"""The study stage: one start, several arms, one table that says whether they differ."""

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from sentence_transformers import SentenceTransformerTrainingArguments
from transformers import TrainingArguments

from modeling_condenser.analysis.settings import Measuring, read_wanted
from modeling_condenser.analysis.while_training import pretrain_and_measure
from modeling_condenser.biencoder.finetune import FinetuningRecipe, finetune
from modeling_condenser.collection.beir import CORPUS_FILE
from modeling_condenser.collection.builtin import build_builtin_collection
from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.load import load_collection
from modeling_condenser.evaluation.card_results import report_on_card
from modeling_condenser.evaluation.system_results import SystemResult, evaluate_system, measure_run
from modeling_condenser.measures.measures import check_measures
from modeling_condenser.pretraining.arguments import CONTRASTIVE
from modeling_condenser.pretraining.pretrain import READINESS, PretrainingRecipe
from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.repository.card import PLACEHOLDER
from modeling_condenser.repository.curves import draw_curves
from modeling_condenser.retrieval.dense import EMBEDDINGS_FOLDER
from modeling_condenser.retrieval.fusion import Fusion
from modeling_condenser.retrieval.runs import Run, read_run
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
from .results import FUSED, StudyResults, mean_evaluation, swap_costs
from .starting_encoder import make_starting_encoder

logger = logging.getLogger(__name__)

SEARCH_FILE = "search.json"
BUILTIN = "builtin"
DEPTH = 100  # passages for a query
# Folders of the study itself.
_RESERVED = frozenset({BM25, "collection", "start", READINESS_FOLDER})
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

_T = TypeVar("_T")


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
        measures: the first is the one that the verdict is about; by default MRR@10, nDCG@10, R@100.
        fusion: fields of `Fusion`: each arm is also measured fused with BM25 in this way. By
            default none is.
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
    measures: list[str] | None = None
    fusion: dict[str, Any] | None = None


def run_study(settings: Mapping[str, Any]) -> StudyResults:
    """Run a study from where it stopped last time.

    An arm that fails is named in the results, and the other arms are reported without it; the next
    run tries it again. Only the failure of the control ends the study, because nothing can be
    compared without it.

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
    folder = _prepare_collection(recipe)
    study = _Study(recipe, out, folder, load_collection(folder, split=recipe.split))
    logger.info("Searching with BM25")
    bm25 = study.evaluate(BM25, out / BM25)
    encoder = study.prepare_encoder()
    trained = study.for_each(recipe.arms, lambda arm: study.train_arm(arm, encoder))
    tokens = study.count_tokens(trained)
    unlabelled = study.for_each(trained, lambda arm: [study.measure_unlabelled(arm, trained[arm])])
    finetuned = study.for_each(unlabelled, lambda arm: study.measure_finetuned(arm, trained[arm]))
    logger.info("Measuring readiness of start and arms")
    readiness = study.measure_readiness(encoder, finetuned)
    logs = {arm: read_log(out / arm / "pretrain") for arm in trained}
    results = StudyResults(
        bm25=bm25,
        groups={
            "no labels": study.summarise(unlabelled, bm25),
            study.labels: study.summarise(finetuned, bm25),
        },
        control=recipe.control,
        facts={
            **describe_machine(),
            "session_seconds": round(time.perf_counter() - started, 1),
            "tokens_seen": tokens,
            "n_passages": len(study.collection.passages),
            "n_queries": len(next(iter(bm25.evaluation.per_query.values()))),
            "recipe": dict(settings),
        },
        fusion=study.fusion,
        swap_costs={arm: costs for arm, log in logs.items() if (costs := swap_costs(log))},
        failures=study.failures,
        readiness=write_readiness(readiness, out),
    )
    results.write(out)
    (out / "curves.png").write_bytes(draw_curves(logs))
    study.finish(results, {arm: of_seeds[0] for arm, of_seeds in finetuned.items()})
    return results


def _check_arms(recipe: StudyRecipe) -> None:
    if recipe.control not in recipe.arms:
        raise ValueError(
            f"The control arm {recipe.control!r} is none of the arms {', '.join(recipe.arms)}."
        )
    for arm, changes in recipe.arms.items():
        if arm in _RESERVED or arm.startswith(FUSED):
            raise ValueError(
                f"An arm cannot be called {arm!r}, because the study uses that name itself: choose "
                "another."
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
    if recipe.measures is not None:
        check_measures(recipe.measures)
    if recipe.fusion is not None:
        fill(recipe.fusion, Fusion)


def _prepare_collection(recipe: StudyRecipe) -> Path:
    if recipe.collection != BUILTIN:
        return Path(recipe.collection)
    logger.info("Building the built-in collection from the installed packages' docstrings")
    return build_builtin_collection(Path(recipe.output_dir) / "collection")


@dataclass(frozen=True)
class _Study:
    """The steps of a study, each of which leaves a folder and is skipped if it is there.

    Attributes:
        recipe: of the study.
        out: its folder.
        folder: of the collection.
        collection: the same, loaded.
        failures: arm that failed -> its error.
    """

    recipe: StudyRecipe
    out: Path
    folder: Path
    collection: Collection
    failures: dict[str, str] = field(default_factory=dict)

    def for_each(self, arms: Iterable[str], step: Callable[[str], _T]) -> dict[str, _T]:
        """Run a step for each arm. Leave out arms that fail, unless it is the control."""
        done = {}
        for arm in arms:
            try:
                done[arm] = step(arm)
            except Exception as error:
                if arm == self.recipe.control:
                    raise
                logger.exception("Arm %s failed; the study goes on without it", arm)
                self.failures[arm] = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return done

    def prepare_encoder(self) -> str:
        """The encoder that every arm starts from."""
        if self.recipe.encoder is not None:
            return self.recipe.encoder
        logger.info("Training a vocabulary and a starting encoder by plain MLM")
        with (self.folder / CORPUS_FILE).open(encoding="utf-8") as lines:
            blank = make_starting_encoder(
                (json.loads(line)["text"] for line in lines),
                self.out / "start" / "blank",
                encoder_config=self.recipe.encoder_config,
            )
        settings = {"objective": "mlm", "encoder": str(blank), **self.recipe.start}
        return str(self._pretrain(settings, self.out / "start" / "pretrain"))

    def train_arm(self, arm: str, encoder: str) -> Path:
        """Pre-train an arm and export its encoder."""
        logger.info("Pre-training arm %s", arm)
        settings = {"encoder": encoder, **self.recipe.pretraining, **self.recipe.arms[arm]}
        checkpoint = self._pretrain(settings, self.out / arm / "pretrain")
        exported = self.out / arm / "encoder"
        return exported if exported.is_dir() else export_encoder(checkpoint, exported)

    def count_tokens(self, arms: Iterable[str]) -> dict[str, int]:
        """Tokens that each arm has seen; an arm that saw more than the control is named."""
        runs = {arm: self.out / arm / "pretrain" / RUN_FILE for arm in arms}
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

    def _pretrain(self, settings: dict[str, Any], folder: Path) -> Path:
        corpus = str(self.folder / CORPUS_FILE)
        return pretrain_and_measure({"corpus": corpus, **settings, "output_dir": str(folder)})

    @property
    def labels(self) -> str:
        """How many labelled pairs the arms are fine-tuned on, in words."""
        return f"{self.recipe.finetuning.get('train_size') or 'all'} labels"

    @property
    def fusion(self) -> Fusion | None:
        return None if self.recipe.fusion is None else fill(self.recipe.fusion, Fusion)[0]

    def evaluate(self, system: str | Path, folder: Path, name: str | None = None) -> SystemResult:
        """Search with a system and measure it; a search that was made before is read."""
        return evaluate_system(
            system,
            self.collection,
            folder,
            split=self.recipe.split,
            depth=DEPTH,
            measures=self.recipe.measures,
            name=name,
        )

    def measure_unlabelled(self, arm: str, encoder: Path) -> SystemResult:
        """Measure an arm's encoder as it is, without fine-tuning."""
        logger.info("Evaluating arm %s without labels", arm)
        return self.evaluate(encoder, self.out / arm / "evaluation", arm)

    def measure_finetuned(self, arm: str, encoder: Path) -> list[SystemResult]:
        """Fine-tune an arm's encoder with each seed and measure the retrievers."""
        results = []
        for seed in self.recipe.finetuning_seeds:
            logger.info("Fine-tuning and evaluating arm %s, seed %d", arm, seed)
            settings = {
                "encoder": str(encoder),
                "collection": str(self.folder),
                "seed": seed,
                "subset_seed": seed,
                **self.recipe.finetuning,
                "output_dir": str(self._finetuned(arm, seed)),
            }
            model = finetune(settings)
            results.append(self.evaluate(model, self._finetuned(arm, seed) / "evaluation", arm))
        return results

    def summarise(
        self, arms: Mapping[str, Sequence[SystemResult]], bm25: SystemResult
    ) -> dict[str, SystemResult]:
        """The mean of each arm over its seeds, and of each arm fused with BM25 if that is asked."""
        means = {
            arm: mean_evaluation([result.evaluation for result in of_seeds])
            for arm, of_seeds in arms.items()
        }
        if self.fusion is not None:
            logger.info("Fusing %d arms with BM25", len(arms))
            bm25_run = _read_run(bm25)
            for arm, of_seeds in arms.items():
                runs = [self.fusion.fuse(bm25_run, _read_run(r), depth=DEPTH) for r in of_seeds]
                means[FUSED + arm] = mean_evaluation(
                    [measure_run(self.collection, r, measures=self.recipe.measures) for r in runs]
                )
        return {
            name: SystemResult(name, bm25.collection, bm25.split, evaluation)
            for name, evaluation in means.items()
        }

    def _finetuned(self, arm: str, seed: int) -> Path:
        return self.out / arm / f"finetuned-{seed}"

    def measure_readiness(self, encoder: str, arms: Iterable[str]) -> ReadinessOfArms:
        """Measure the start, each arm as pre-trained, and its first seed as fine-tuned."""
        seed = self.recipe.finetuning_seeds[0]
        return measure_arms(
            encoder,
            {
                arm: (
                    self.out / arm / "pretrain" / MODEL_FOLDER,
                    self._finetuned(arm, seed) / MODEL_FOLDER,
                )
                for arm in arms
            },
            self.folder,
            split=self.recipe.split,
            max_length=int(self.recipe.pretraining.get("max_length", Measuring.max_length)),
        )

    def finish(self, results: StudyResults, first_seeds: Mapping[str, SystemResult]) -> None:
        """Put results on the cards of the first seed's retrievers, and say what to search with."""
        seed = self.recipe.finetuning_seeds[0]
        for arm, own in first_seeds.items():
            words = f"condenser evaluate {PLACEHOLDER} {own.collection} --baseline bm25"
            report_on_card(
                self._finetuned(arm, seed) / MODEL_FOLDER,
                own,
                [results.bm25],
                collection=self.collection,
                source=self.folder,
                depth=DEPTH,
                command=f"{words} --split {own.split}",
            )
        best = self._finetuned(results.best_arm, seed)
        content = {
            "model": str((best / "model").relative_to(self.out)),
            "embeddings": str((best / "evaluation" / EMBEDDINGS_FOLDER).relative_to(self.out)),
            "collection": os.path.relpath(self.folder, self.out),
        }
        write_json(self.out / SEARCH_FILE, content)


def _read_run(result: SystemResult) -> Run:
    assert result.run_file is not None  # evaluate_system always writes one
    return read_run(result.run_file)
