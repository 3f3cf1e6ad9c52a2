"""Run a study: compare several arms, from one start or from several.

A stage is skipped if its folder exists. So a study that was interrupted, or that has new arms or
sizes, continues with what is missing.
"""

import logging
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from modeling_condenser.adaptation.adapt import adapt
from modeling_condenser.analysis.analyze import measure_models, write_analysis
from modeling_condenser.analysis.callback import readiness_callbacks
from modeling_condenser.analysis.recipe import Measuring
from modeling_condenser.analysis.sample import Sample
from modeling_condenser.collection.beir import CORPUS_FILE
from modeling_condenser.collection.load import (
    load_collection,
    load_dev,
    load_reported,
    resolve_collection_name,
)
from modeling_condenser.collection.text_files import need_file
from modeling_condenser.configuration_condenser import POOLINGS
from modeling_condenser.encoding.embeddings import Embeddings
from modeling_condenser.evaluation.measures import DEFAULT_MEASURES, check_measures
from modeling_condenser.evaluation.plots import plot_curves, plot_map
from modeling_condenser.evaluation.system_results import Evaluator, SystemResult, report_on_card
from modeling_condenser.finetuning.finetune import finetune
from modeling_condenser.model_files.contract import EncodingContract, states_encoding
from modeling_condenser.model_files.model_folder import find_model_folder
from modeling_condenser.pretraining.pretrain import pretrain
from modeling_condenser.publishing import training_log
from modeling_condenser.publishing.card import PLACEHOLDER
from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.publishing.pictures import as_png
from modeling_condenser.publishing.provenance import read_provenance
from modeling_condenser.retrieval.dense import EMBEDDINGS_FOLDER, SearchSettings
from modeling_condenser.retrieval.fusion import CANDIDATES
from modeling_condenser.retrieval.systems import BM25, HYBRID, System, as_folder
from modeling_condenser.runs.recipe import fill
from modeling_condenser.runs.run_folder import (
    LOG_FILE,
    MODEL_FOLDER,
    RUN_FILE,
    RunIdentity,
    check_run_folder,
    describe_machine,
    read_identity,
    read_log,
    write_settings,
)
from modeling_condenser.runs.whole_files import read_json, write_json

from .recipe import ON_DEV, UNLABELLED, StudyRecipe
from .results import FUSED, StudyResults, choose_topics, copy_page, is_fused, mean_evaluation

logger = logging.getLogger(__name__)

SEARCH_FILE = "search.json"
LABELS_FILE, CURVES_FILE, MAP_FILE = "labels.png", "curves.png", "map.png"
FINETUNING_FILE = "finetuning.png"

_Results = Mapping[str, Mapping[str, Sequence[SystemResult]]]
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
    study = _Study(recipe)
    write_settings(out, settings)
    stated = {name: value for name, value in settings.items() if name != "output_dir"}
    return study.run({"recipe": stated, "command": command})


class _Study:
    """The stages of a study."""

    def __init__(self, recipe: StudyRecipe) -> None:
        self.recipe, self.out = recipe, Path(recipe.output_dir)
        self.arms, self.groups, self.controls = recipe.runs, recipe.groups, recipe.controls
        *_, self.last_group = self.groups
        self.place = resolve_collection_name(recipe.collection)
        self.collection = load_reported(self.place, split=recipe.split)
        (self.search,) = fill(recipe.search, SearchSettings)
        measures = check_measures(recipe.measures or DEFAULT_MEASURES).values()
        self.depth = max(CANDIDATES, *(measure.params.get("cutoff", 0) for measure in measures))
        self.made: dict[tuple[str, str], System] = {}  # arm, group -> retriever of the first seed
        self.verdicts = defaultdict[str, list[str]](list)
        self.dev = None
        hybrids = [system for system in recipe.named_systems.values() if system.kind == "hybrid"]
        if recipe.fusion == ON_DEV or any("fusion" not in each.settings for each in hybrids):
            self.dev = load_dev(self.place, judged=recipe.split, reported=self.collection)
        if recipe.fusion == ON_DEV and self.dev is None:
            raise ValueError(
                f"{self.place} has no dev queries of its own to choose the fusion on: set"
                " fusion to rrf or to a weight."
            )
        for model in recipe.starts.values():
            find_model_folder(model)  # an error here, not after hours
        if len(self.groups) > 1:
            self.check_labels(max(n or 0 for n in self.groups.values()))

    def check_labels(self, largest: int) -> None:
        """Raise a ValueError if the collection has no labels, or fewer than the largest size."""
        split = self.recipe.finetuning.get("split") or "train"
        qrels = load_collection(self.place, split=split).qrels
        n_labels = sum(grade > 0 for grades in qrels.values() for grade in grades.values())
        if largest > n_labels:
            raise ValueError(
                f"train_sizes names {largest}, but the split {split} of {self.place} has "
                f"{n_labels} labelled pairs: leave out larger sizes; null takes all."
            )

    def evaluator(self, folder: Path) -> Evaluator:
        """Evaluates the systems of one retriever into a folder, and BM25 into its own."""

        def place(system: System) -> tuple[Path, Path]:
            own = folder / "fused" if system.kind == "hybrid" else folder
            own = self.out / BM25 if system == System(BM25) else own
            return own, own

        return Evaluator(
            self.collection,
            place,
            split=self.recipe.split,
            depth=self.depth,
            measures=self.recipe.measures,
            search=self.search,
            dev=self.dev,
        )

    def run(self, facts: Mapping[str, Any]) -> StudyResults:
        out = self.out
        self.bm25 = self.evaluator(out).evaluate(System(BM25))
        systems = {
            name: self.evaluator(out / "systems" / as_folder(name)).evaluate(system).evaluation
            for name, system in self.recipe.named_systems.items()
        }
        arms, failures = self.run_arms()
        groups, fusions = {}, {}
        for group in self.groups:
            found = {name: seeds for own in arms.values() for name, seeds in own[group].items()}
            groups[group] = systems | {
                name: mean_evaluation([result.evaluation for result in found[name]])
                for name in sorted(found, key=is_fused)
            }
            for name in filter(is_fused, found):
                ways = [result.record["fusion"] for result in found[name]]
                fusions[f"{name.removeprefix(FUSED)}, {group}"] = ways
        trained = [arm for arm in arms if self.arms[arm].is_pretrained]
        results = StudyResults(
            bm25=self.bm25.evaluation,
            groups=groups,
            controls=self.controls,
            facts={**facts, **self.describe(arms)},
            systems=list(systems),
            fusions=fusions,
            verdicts={name: "; ".join(verdicts) for name, verdicts in self.verdicts.items()},
            failures=failures,
        )
        results.write(out)  # here too, because readiness may fail
        drawn, readiness = self.draw(results, trained), ""
        if trained:
            readiness = self.measure_readiness([a for a in arms if not self.arms[a].is_adapted])
        results.write(out, pictures=drawn, readiness=readiness)
        for arm, own in arms.items():
            self.publish(arm, own[self.last_group][arm][0])
        self.write_search_file(results.best_arm)
        if self.recipe.page:
            shown = [*drawn, *([training_log.ENTROPY_FILE] if trained else [])]
            copy_page(out, Path(self.recipe.page), pictures=shown)
        return results

    def run_arms(self) -> tuple[dict[str, _Results], dict[str, str]]:
        """Run all arms: the results of those that succeed, and the errors of the others."""
        arms, failures, started = {}, {}, time.perf_counter()
        for done, arm in enumerate(self.arms):
            if done:
                minutes = (time.perf_counter() - started) / 60
                left = minutes / done * (len(self.arms) - done)
                logger.info(
                    f"{done} of {len(self.arms)} arms took {minutes:.0f} minutes; the others take "
                    f"about {left:.0f} if they are alike."
                )
            try:
                arms[arm] = self.run_arm(arm)
            except Exception as error:
                if arm in self.controls.values():
                    raise
                logger.exception("Arm %s failed; the study continues without it", arm)
                failures[arm] = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return arms, failures

    def run_arm(self, arm: str) -> _Results:
        """Make and measure the retrievers of each number of labels and each seed."""
        encoder, found = self.pretrain(arm), {}
        for group in self.groups:
            retrievers = {}
            for seed in self.seeds(group):
                make = self.adapt if self.arms[arm].is_adapted else self.finetune
                retrievers[self.folder(arm, group, seed)] = make(arm, group, seed, encoder)
            self.made[arm, group] = next(iter(retrievers.values()))
            found[group] = self.measure(retrievers, arm)
        return found

    def seeds(self, group: str) -> list[int]:
        return [0] if group == UNLABELLED else self.recipe.finetuning_seeds

    def pretrain(self, name: str) -> System:
        """Pre-train and export the encoder of an arm; for other arms, the start as it is."""
        recipe, arm, folder = self.recipe, self.arms[name], self.out / name
        if not arm.is_pretrained:
            has_pooling = states_encoding(find_model_folder(arm.start))
            pooling = {} if has_pooling else {"pooling": "cls"}
            return System(arm.start, {**pooling, **recipe.stated_contract})
        logger.info("Pre-training arm %s", name)
        measured = recipe.stated_contract.get("pooling")
        settings = {
            **({"pooling": measured} if measured in POOLINGS else {}),
            "corpus": str(need_file(Path(self.place), CORPUS_FILE)),
            "encoder": arm.start,
            **recipe.pretraining,
            **(arm.settings or {}),
            "output_dir": str(folder / "pretrain"),
        }
        checkpoint = pretrain(settings, callbacks=readiness_callbacks(settings))
        encoder = folder / "encoder"
        if read_provenance(encoder) != read_provenance(checkpoint):
            export_encoder(checkpoint, encoder)
        return System(str(encoder), recipe.stated_contract)

    def finetune(self, arm: str, group: str, seed: int, encoder: System) -> System:
        """Fine-tune the encoder of an arm, unless there are no labels."""
        if group == UNLABELLED:
            return encoder
        run = self.folder(arm, group, seed)
        logger.info("Fine-tuning %s", run)
        settings = {
            "encoder": encoder.model,
            "collection": self.place,
            "seed": seed,
            "subset_seed": seed,
            "train_size": self.groups[group],
            "load_best_model_at_end": False,  # the reported queries may be the dev queries
            **encoder.settings,
            **self.recipe.finetuning,
            "output_dir": str(run),
        }
        return System(str(finetune(settings)))

    def adapt(self, arm: str, group: str, seed: int, start: System) -> System:
        """Adapt the start by its labels, or what it becomes by fine-tuning."""
        run, untouched = self.folder(arm, group, seed), self.arms[arm].untouched
        settings = {"seed": seed, **(self.arms[arm].settings or {})}
        del settings["objective"]
        if settings.get("labels"):
            settings["labels"] = group != UNLABELLED
            settings["train_size"] = self.groups[group] or None
        elif untouched is not None:
            start = self.finetune(untouched, group, seed, start)
        if not states_encoding(find_model_folder(start.model)):
            settings["pooling"] = start.settings["pooling"]
        logger.info("Adapting %s", run)
        paths = {"model": start.model, "corpus": self.place, "output_dir": str(run)}
        done = adapt({**settings, **paths})
        kept = "" if done.is_adapted else "; the start is kept"
        self.verdicts[f"{arm}, {group}"].append(f"{done.verdict}{kept}")
        return System(str(done.model), self.recipe.stated_contract)

    def measure(
        self, retrievers: Mapping[Path, System], arm: str
    ) -> Mapping[str, Sequence[SystemResult]]:
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
        return found

    def folder(self, arm: str, group: str, seed: int) -> Path:
        """The folder of one retriever's run."""
        if group == UNLABELLED:
            return self.out / arm
        return self.out / arm / f"{group.split()[0].replace(',', '')}-labels-{seed}"

    def first(self, arm: str) -> Path:
        """The run of an arm that is published: with most labels and the first seed."""
        return self.folder(arm, self.last_group, self.seeds(self.last_group)[0])

    def describe(self, arms: Iterable[str]) -> dict[str, Any]:
        """What the results depend on, and what they cost."""
        return {
            **describe_machine(),
            "collection": self.collection.name,
            "n_passages": len(self.collection.passages),
            "n_queries": self.bm25.evaluation.n_items,
            "split": self.recipe.split,
            "shared_queries": dict(self.collection.shared),
            "starts": [System(model).name for model in self.recipe.starts.values()],
            "finetuning_seeds": self.recipe.finetuning_seeds,
            "costs": {arm: self.cost(arm) for arm in arms},
        }

    def cost(self, arm: str) -> dict[str, float]:
        """The tokens that an arm saw in pre-training, and the minutes of its trainings."""
        place = self.out / arm / "pretrain" if self.arms[arm].is_pretrained else self.out / arm
        runs = [self.folder(arm, g, seed) for g in self.groups for seed in self.seeds(g)]
        own, *labelled = (read_json(run / RUN_FILE, {}) for run in (place, *runs[1:]))
        return {
            "tokens": own.get("tokens_seen", 0),
            "unlabelled": own.get("train_seconds", 0) / 60,
            "labelled": sum(run.get("train_seconds", 0) for run in labelled) / 60,
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
        starts = {arm: f"{arm.rpartition('/')[0]} start".strip() for arm in arms}
        models: dict[str, str | Path] = {starts[arm]: self.arms[arm].start for arm in arms}
        for arm in arms:
            if self.arms[arm].is_pretrained:
                models[f"{arm}, pre-trained"] = self.out / arm / "pretrain" / MODEL_FOLDER
            if self.last_group != UNLABELLED:
                models[f"{arm}, fine-tuned"] = self.first(arm) / MODEL_FOLDER
        sample = Sample.choose(measuring, self.collection.passages)
        entries = measure_models([(own, {"label": label}) for label, own in models.items()], sample)
        written = write_analysis(self.out / "readiness", entries, sample)
        found = {entry["label"]: entry for entry in entries}
        panels, changes = {}, []
        for arm in arms:
            start = found[starts[arm]]
            before = found.get(f"{arm}, pre-trained", start)
            after = found.get(f"{arm}, fine-tuned", before)
            panels[arm] = {"start": start, "pre-trained": before, "fine-tuned": after}
            layers = np.array([training_log.layer_entropies(entry) for entry in (before, after)])
            changes.append(f"{arm} {abs(layers[1] - layers[0]).mean():.3f}")
        picture = training_log.draw_entropies(panels)
        (self.out / training_log.ENTROPY_FILE).write_bytes(picture)
        return (
            f"{written}\n\nChange of a layer's entropy by fine-tuning, in nats, "
            f"mean over layers: {', '.join(changes)}."
        )

    def draw(self, results: StudyResults, trained: Sequence[str]) -> list[str]:
        """Plot measures by labels, logs, and a map of the best arm and its control."""
        drawn = {}
        if len(self.groups) > 1:
            drawn[LABELS_FILE] = as_png(plot_curves(results.by_labels(), x_label="labels"))
            _, fewest, *_ = self.groups
            runs = {arm: self.folder(arm, fewest, self.seeds(fewest)[0]) for arm in results.arms}
            losses = {arm: read_log(run) for arm, run in runs.items() if (run / LOG_FILE).is_file()}
            shown = {"loss": f"loss of fine-tuning (nats a query), {fewest}"}
            if losses:
                drawn[FINETUNING_FILE] = training_log.draw_curves(losses, shown)
        if trained:
            logs = {arm: self.course(arm) for arm in trained}
            drawn[CURVES_FILE] = training_log.draw_curves(logs)
        if topics := choose_topics(self.collection.passages):
            rows, vectors = np.concatenate(list(topics.values())), {}
            for arm in dict.fromkeys((self.controls[results.best_arm], results.best_arm)):
                places = {UNLABELLED: self.out / arm, self.last_group: self.first(arm)}
                for when, folder in places.items() if arm in self.arms else ():
                    embeddings = Embeddings.open(folder / "evaluation" / EMBEDDINGS_FOLDER)
                    vectors[f"{arm}, {when}"] = embeddings.vectors(rows)
            drawn[MAP_FILE] = as_png(plot_map(vectors, topics))
        for name, content in drawn.items():
            (self.out / name).write_bytes(content)
        return list(drawn)

    def course(self, arm: str) -> list[dict[str, float]]:
        """The losses and the readiness of an arm while it was pre-trained."""
        log = read_log(self.out / arm / "pretrain", measure="step")
        return [entry for entry in log if "loss" in entry or training_log.is_readiness(entry)]

    def publish(self, arm: str, result: SystemResult) -> None:
        """Put the results of an arm's first seed on its retriever's card."""
        folder = self.first(arm) / MODEL_FOLDER
        if not read_provenance(folder):  # of a model as it was published
            return
        contract = EncodingContract.load(folder)
        if replace(contract, **self.recipe.stated_contract) != contract:
            logger.info("%s is measured in another way than its card states.", arm)
            return
        command = f"condenser evaluate {PLACEHOLDER} {result.collection} --baseline bm25"
        report_on_card(
            folder,
            result,
            [self.bm25],
            collection=self.collection,
            source=self.place,
            command=f"{command} --split {result.split} --dtype {self.search.dtype}"
            f" --depth {self.depth}",
        )

    def write_search_file(self, arm: str) -> None:
        """Write the settings with which `condenser search` uses an arm."""
        system = self.made[arm, self.last_group]
        out = self.out.resolve()  # from which `..` leads, where the folder is a link
        model = os.path.relpath(find_model_folder(system.model).resolve(), out)
        settings = {**system.settings, "dtype": self.search.dtype}
        embeddings = self.first(arm).relative_to(self.out) / "evaluation" / EMBEDDINGS_FOLDER
        content = {
            "model": System(model, settings).text,
            "embeddings": str(embeddings),
            "collection": os.path.relpath(Path(self.place).resolve(), out),
        }
        write_json(self.out / SEARCH_FILE, content)
