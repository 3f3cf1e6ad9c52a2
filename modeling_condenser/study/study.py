"""Run a study: compare several arms of pre-training from one start.

A stage is skipped if its folder exists. So a study that was interrupted, or that has new arms or
sizes, continues with what is missing.
"""

import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from modeling_condenser.analysis.analyze import measure_models, write_analysis
from modeling_condenser.analysis.callback import readiness_callbacks
from modeling_condenser.analysis.recipe import Measuring
from modeling_condenser.analysis.sample import Sample
from modeling_condenser.collection.beir import CORPUS_FILE
from modeling_condenser.collection.load import load_dev, load_reported, resolve_collection_name
from modeling_condenser.collection.text_files import need_file
from modeling_condenser.encoding.embeddings import Embeddings
from modeling_condenser.evaluation.plots import plot_curves, plot_map
from modeling_condenser.evaluation.system_results import Evaluator, SystemResult, report_on_card
from modeling_condenser.finetuning.finetune import finetune
from modeling_condenser.model_files.contract import states_encoding
from modeling_condenser.model_files.model_folder import find_model_folder, read_json
from modeling_condenser.pretraining.pretrain import pretrain
from modeling_condenser.publishing import training_log
from modeling_condenser.publishing.card import PLACEHOLDER
from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.publishing.pictures import as_png
from modeling_condenser.retrieval.dense import EMBEDDINGS_FOLDER, SearchSettings
from modeling_condenser.retrieval.systems import BM25, HYBRID, System
from modeling_condenser.runs.recipe import fill
from modeling_condenser.runs.run_folder import (
    MODEL_FOLDER,
    RUN_FILE,
    RunIdentity,
    check_run_folder,
    describe_machine,
    read_identity,
    read_log,
    write_settings,
)
from modeling_condenser.runs.whole_files import write_json

from .recipe import ON_DEV, StudyRecipe
from .results import FUSED, StudyResults, choose_topics, copy_page, is_fused, mean_evaluation

logger = logging.getLogger(__name__)

SEARCH_FILE = "search.json"
UNLABELLED = "no labels"
LABELS_FILE, CURVES_FILE, FINETUNING_FILE = "labels.png", "curves.png", "finetuning.png"
MAP_FILE = "map.png"
ZERO_SHOT = f"{training_log.PREFIX}zero_shot_"
_MOST_STEPS = 6  # of an arm in a table of a measure while training

_Arm = Mapping[str, Mapping[str, Sequence[SystemResult]]]
"""The results of one arm: "no labels" or "512 labels" -> system -> those of all seeds."""


def run_study(settings: Mapping[str, Any], *, command: str = "") -> StudyResults:
    """Run a study, or continue it; results are also written to its folder and its page.

    The results name an arm that fails and leave it out; the next call tries it again. If the
    control fails, the study ends.

    Args:
        settings: fields of `StudyRecipe`. If one is wrong, nothing is written.
        command: the command that was called, for the page.
    """
    (recipe,) = fill(settings, StudyRecipe)
    out = Path(recipe.output_dir)
    # A study continues with other settings, too: each of its runs is checked by itself.
    check_run_folder(out, read_identity(out) or RunIdentity(settings))
    write_settings(out, settings)
    stated = {name: value for name, value in settings.items() if name != "output_dir"}
    return _Study(recipe).run({"recipe": stated, "command": command})


class _Study:
    """The stages of a study."""

    def __init__(self, recipe: StudyRecipe) -> None:
        self.recipe, self.out = recipe, Path(recipe.output_dir)
        self.groups = recipe.groups
        *_, self.last_group = self.groups
        self.place = resolve_collection_name(recipe.collection)
        self.collection = load_reported(self.place, split=recipe.split)
        (self.search,) = fill(recipe.search, SearchSettings)
        self.dev = None
        if recipe.fusion == ON_DEV:
            self.dev = load_dev(self.place, judged=recipe.split, reported=self.collection)
            if self.dev is None:
                raise ValueError(
                    f"{self.place} has no dev queries of its own to choose the fusion on: set"
                    " fusion to rrf or to a weight."
                )

    def evaluator(self, folder: Path) -> Evaluator:
        """Evaluates the systems of one retriever into a folder, and BM25 into its own."""
        places = {"bm25": self.out / BM25, "encoder": folder, "hybrid": folder / "fused"}
        return Evaluator(
            self.collection,
            lambda system: (places[system.kind], places[system.kind]),
            split=self.recipe.split,
            measures=self.recipe.measures,
            search=self.search,
            dev=self.dev,
        )

    def run(self, facts: Mapping[str, Any]) -> StudyResults:
        out = self.out
        self.bm25 = self.evaluator(out).evaluate(System(BM25))
        arms, failures = self.run_arms()
        groups, fusions = {}, {}
        for group in (UNLABELLED, *self.groups):
            systems = {name: seeds for own in arms.values() for name, seeds in own[group].items()}
            groups[group] = {
                name: mean_evaluation([result.evaluation for result in systems[name]])
                for name in sorted(systems, key=is_fused)
            }
            for name in filter(is_fused, systems):
                found = [result.record["fusion"] for result in systems[name]]
                fusions[f"{name.removeprefix(FUSED)}, {group}"] = found
        trained = [arm for arm in arms if self.recipe.arms[arm] is not None]
        results = StudyResults(
            bm25=self.bm25.evaluation,
            groups=groups,
            control=self.recipe.control,
            facts={**facts, **self.describe(arms)},
            fusions=fusions,
            courses=self.courses(trained),
            failures=failures,
        )
        results.write(out)  # here too, because readiness may fail
        drawn = self.draw(results, trained)
        results.write(out, pictures=drawn, readiness=self.measure_readiness(list(arms)))
        for arm, own in arms.items():
            self.publish(arm, own[self.last_group][arm][0])
        self.write_search_file(results.best_arm)
        if self.recipe.page:
            shown = [*drawn, training_log.ENTROPY_FILE]
            copy_page(out, Path(self.recipe.page), pictures=shown)
        return results

    def run_arms(self) -> tuple[dict[str, _Arm], dict[str, str]]:
        """Run all arms: the results of those that succeed, and the errors of the others."""
        arms, failures = {}, {}
        for arm in self.recipe.arms:
            try:
                arms[arm] = self.run_arm(arm)
            except Exception as error:
                if arm == self.recipe.control:
                    raise
                logger.exception("Arm %s failed; the study continues without it", arm)
                failures[arm] = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return arms, failures

    def run_arm(self, arm: str) -> _Arm:
        """Pre-train, fine-tune with each number of labels and each seed, and measure."""
        encoder = self.pretrain(arm)
        found = {UNLABELLED: self.measure({self.out / arm: encoder}, arm)}
        for group, size in self.groups.items():
            retrievers = {}
            for seed in self.recipe.finetuning_seeds:
                run = self.finetuned(arm, group, seed)
                retrievers[run] = self.finetune(encoder, run, size, seed)
            found[group] = self.measure(retrievers, arm)
        return found

    def pretrain(self, arm: str) -> System:
        """Pre-train and export an arm's encoder; an arm without settings is the start itself."""
        recipe, folder = self.recipe, self.out / arm
        if (changes := recipe.arms[arm]) is None:
            has_pooling = states_encoding(find_model_folder(recipe.encoder))
            pooling = {} if has_pooling else {"pooling": "cls"}
            return System(recipe.encoder, {**pooling, **recipe.stated_contract})
        logger.info("Pre-training arm %s", arm)
        settings = {
            "corpus": str(need_file(Path(self.place), CORPUS_FILE)),
            "encoder": recipe.encoder,
            **recipe.pretraining,
            **changes,
            "output_dir": str(folder / "pretrain"),
        }
        checkpoint = pretrain(settings, callbacks=readiness_callbacks(settings))
        encoder = folder / "encoder"
        if not encoder.is_dir():
            export_encoder(checkpoint, encoder, contract=recipe.contract)
        return System(str(encoder))

    def finetune(self, encoder: System, run: Path, size: int | None, seed: int) -> System:
        logger.info("Fine-tuning %s", run)
        settings = {
            "encoder": encoder.model,
            "collection": self.place,
            "seed": seed,
            "subset_seed": seed,
            "train_size": size,
            "load_best_model_at_end": False,  # the reported queries may be the dev queries
            **encoder.settings,
            **self.recipe.finetuning,
            "output_dir": str(run),
        }
        return System(str(finetune(settings)))

    def measure(
        self, retrievers: Mapping[Path, System], arm: str
    ) -> dict[str, Sequence[SystemResult]]:
        """Measure the retrievers of these runs, also fused with BM25 if the recipe asks for it."""
        found = defaultdict[str, list[SystemResult]](list)
        for run, system in retrievers.items():
            evaluator = self.evaluator(run / "evaluation")
            found[arm].append(evaluator.evaluate(replace(system, stated_name=arm)))
            if (fusion := self.recipe.fusion) is not None:
                fused = replace(system, model=HYBRID + system.model, stated_name=FUSED + arm)
                stated = {} if fusion == ON_DEV else {"fusion": fusion}
                fused = replace(fused, settings={**system.settings, **stated})
                found[FUSED + arm].append(evaluator.evaluate(fused))
            system.opened.clear()  # the next training needs its memory
        return {**found}

    def finetuned(self, arm: str, group: str, seed: int) -> Path:
        return self.out / arm / f"{group.split()[0].replace(',', '')}-labels-{seed}"

    def first(self, arm: str) -> Path:
        """The run of an arm that is published: with most labels and the first seed."""
        return self.finetuned(arm, self.last_group, self.recipe.finetuning_seeds[0])

    def courses(self, arms: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Measure -> arm -> the swap cost or the retrieval at some steps of its training."""
        names = {"swap cost": "swap_cost"}
        names |= {f"{m} without labels": f"{ZERO_SHOT}{m}" for m in self.bm25.evaluation.means}
        found = defaultdict[str, dict[str, Any]](dict)
        for (measure, name), arm in product(names.items(), arms):
            if log := read_log(self.out / arm / "pretrain", measure=name):
                found[measure][arm] = [
                    {"step": e["step"], "tokens": e.get(training_log.TOKENS, 0), "value": e[name]}
                    for e in training_log.spread(log, at_most=_MOST_STEPS)
                ]
        return found

    def describe(self, arms: Iterable[str]) -> dict[str, Any]:
        """What the results depend on, and what they cost."""
        tokens, minutes = {}, {}
        seeds = self.recipe.finetuning_seeds
        for arm in arms:
            runs = [self.finetuned(arm, group, seed) for group in self.groups for seed in seeds]
            records = [read_json(run / RUN_FILE, {}) for run in runs]
            # Records of older versions hold the seconds of the last session only.
            seconds = [r.get("train_seconds") or r["session_seconds"] for r in records]
            minutes[arm] = {"fine-tuning": sum(seconds) / 60}
            if record := read_json(self.out / arm / "pretrain" / RUN_FILE, {}):
                tokens[arm] = record["tokens_seen"]
                minutes[arm]["pre-training"] = record["train_seconds"] / 60
        return {
            **describe_machine(),
            "collection": self.collection.name,
            "n_passages": len(self.collection.passages),
            "n_queries": self.bm25.evaluation.n_items,
            "split": self.recipe.split,
            "shared_queries": dict(self.collection.shared),
            "finetuning_seeds": seeds,
            "tokens_seen": tokens,
            "minutes": minutes,
        }

    def measure_readiness(self, arms: Sequence[str]) -> str:
        """Measure start and arms, pre-trained and fine-tuned: a report, and a plot like Figure 2.

        Gao & Callan (2021), section 5: fine-tuning hardly changes the attention of an encoder that
        is ready.
        """
        logger.info("Measuring readiness of start and arms")
        max_length = self.recipe.pretraining.get("max_length", Measuring.max_length)
        own = {"collection": self.place, "split": self.recipe.split}
        (measuring,) = fill({"max_length": max_length, **own, **self.recipe.readiness}, Measuring)
        models: dict[str, str | Path] = {"start": self.recipe.encoder}
        for arm in arms:
            if self.recipe.arms[arm] is not None:
                models[f"{arm}, pre-trained"] = self.out / arm / "pretrain" / MODEL_FOLDER
            models[f"{arm}, fine-tuned"] = self.first(arm) / MODEL_FOLDER
        sample = Sample.choose(measuring, self.collection.passages)
        entries = measure_models([(own, {"label": label}) for label, own in models.items()], sample)
        written = write_analysis(self.out / "readiness", entries, sample)
        found = {entry["label"]: entry for entry in entries}
        panels, changes = {}, []
        for arm in arms:
            before = found.get(f"{arm}, pre-trained", found["start"])
            after = found[f"{arm}, fine-tuned"]
            panels[arm] = {"start": found["start"], "pre-trained": before, "fine-tuned": after}
            layers = np.array([training_log.layer_entropies(entry) for entry in (before, after)])
            changes.append(f"{arm} {abs(layers[1] - layers[0]).mean():.3f}")
        picture = training_log.draw_entropies(panels)
        (self.out / training_log.ENTROPY_FILE).write_bytes(picture)
        return (
            f"{written}\n\nChange of a layer's entropy by fine-tuning, in nats, "
            f"mean over layers: {', '.join(changes)}."
        )

    def draw(self, results: StudyResults, trained: Sequence[str]) -> list[str]:
        """Plot measures by labels, logs, and a map of the control and the best arm."""
        fewest, seed = next(iter(self.groups)), self.recipe.finetuning_seeds[0]
        logs = {arm: read_log(self.out / arm / "pretrain") for arm in trained}
        losses = {arm: read_log(self.finetuned(arm, fewest, seed)) for arm in results.arms}
        shown = {"loss": f"loss of fine-tuning (nats a query), {fewest}"}
        drawn = {
            LABELS_FILE: as_png(plot_curves(results.by_labels(), x_label="labels")),
            CURVES_FILE: training_log.draw_curves(logs),
            FINETUNING_FILE: training_log.draw_curves(losses, shown),
        }
        if topics := choose_topics(self.collection.passages):
            rows, vectors = np.concatenate(list(topics.values())), {}
            for arm in dict.fromkeys((self.recipe.control, results.best_arm)):
                places = {UNLABELLED: self.out / arm, self.last_group: self.first(arm)}
                for when, folder in places.items():
                    embeddings = Embeddings.open(folder / "evaluation" / EMBEDDINGS_FOLDER)
                    vectors[f"{arm}, {when}"] = embeddings.vectors(rows)
            drawn[MAP_FILE] = as_png(plot_map(vectors, topics))
        for name, content in drawn.items():
            (self.out / name).write_bytes(content)
        return list(drawn)

    def publish(self, arm: str, result: SystemResult) -> None:
        """Put the results of an arm's first seed on its retriever's card."""
        command = f"condenser evaluate {PLACEHOLDER} {result.collection} --baseline bm25"
        report_on_card(
            self.first(arm) / MODEL_FOLDER,
            result,
            [self.bm25],
            collection=self.collection,
            source=self.place,
            command=f"{command} --split {result.split} --dtype {self.search.dtype}",
        )

    def write_search_file(self, arm: str) -> None:
        """Write the settings with which `condenser search` uses an arm."""
        folder = self.first(arm).relative_to(self.out)
        content = {
            "model": f"{folder / MODEL_FOLDER},dtype={self.search.dtype}",
            "embeddings": str(folder / "evaluation" / EMBEDDINGS_FOLDER),
            "collection": os.path.relpath(self.place, self.out),
        }
        write_json(self.out / SEARCH_FILE, content)
