"""Run a study: several arms of pre-training from one start, compared in one table.

Each stage leaves a folder and is skipped if its folder is there, so a study that was interrupted,
or that got more arms or sizes, continues with what is missing.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from modeling_condenser.analysis.analyze import measure_models, single_model, write_analysis
from modeling_condenser.analysis.callback import pretrain_and_measure
from modeling_condenser.analysis.sample import Measuring, Sample
from modeling_condenser.collection.beir import CORPUS_FILE
from modeling_condenser.collection.builtin import build_builtin_collection
from modeling_condenser.collection.load import load_collection, resolve_collection_name
from modeling_condenser.collection.text_files import need_file
from modeling_condenser.encoding.embeddings import Embeddings
from modeling_condenser.evaluation.measures import Evaluation
from modeling_condenser.evaluation.system_results import (
    SystemResult,
    evaluate_system,
    measure_run,
    report_on_card,
)
from modeling_condenser.finetuning.finetune import finetune
from modeling_condenser.hub import training_log
from modeling_condenser.hub.card import PLACEHOLDER
from modeling_condenser.hub.export import export_encoder
from modeling_condenser.hub.model_folder import read_json
from modeling_condenser.retrieval.dense import EMBEDDINGS_FOLDER, SearchSettings
from modeling_condenser.retrieval.fusion import FUSIONS, Fusion, choose_fusion
from modeling_condenser.retrieval.runs import read_run
from modeling_condenser.retrieval.systems import BM25, System
from modeling_condenser.runs.recipe import fill
from modeling_condenser.runs.run_folder import (
    MODEL_FOLDER,
    RECIPE_FILE,
    RUN_FILE,
    describe_machine,
    read_log,
)
from modeling_condenser.runs.whole_files import write_json

from . import pictures
from .recipe import StudyRecipe
from .results import FUSED, StudyResults, copy_page, mean_evaluation, swap_costs

logger = logging.getLogger(__name__)

SEARCH_FILE = "search.json"
BUILTIN = "builtin"
DEPTH = 100  # passages for a query
UNLABELLED = "no labels"


class _Measured(NamedTuple):
    """A retriever's results, and those of its run fused with BM25's."""

    result: SystemResult
    fused: Evaluation | None = None
    fusion: Fusion | None = None


# Of one arm: "no labels" and "512 labels" -> one for each seed.
_Arm = Mapping[str, Sequence[_Measured]]


def run_study(settings: Mapping[str, Any], *, command: str = "") -> StudyResults:
    """Run a study, or continue it; results are also written to its folder and its page.

    An arm that fails is named in the results and left out, and the next run tries it again. If the
    control fails, the study ends.

    Args:
        settings: fields of `StudyRecipe`. If one does not fit, nothing is written.
        command: that was called, for the page.
    """
    (recipe,) = fill(settings, StudyRecipe)
    out = Path(recipe.output_dir)
    if out.exists() and any(out.iterdir()) and not (out / RECIPE_FILE).is_file():
        raise ValueError(f"{out} has other files and is no study: choose another output_dir.")
    out.mkdir(parents=True, exist_ok=True)
    stated = {name: value for name, value in settings.items() if name != "output_dir"}
    (out / RECIPE_FILE).write_text(yaml.safe_dump(stated))
    return _Study(recipe).run({"recipe": stated, "command": command})


class _Study:
    """The stages of a study."""

    def __init__(self, recipe: StudyRecipe) -> None:
        self.recipe, self.out = recipe, Path(recipe.output_dir)
        self.groups = recipe.groups
        *_, self.last_group = self.groups
        self.folder = Path(resolve_collection_name(recipe.collection))
        if recipe.collection == BUILTIN:
            self.folder = build_builtin_collection(self.out / "collection")
        self.collection = load_collection(self.folder, split=recipe.split)
        (self.search,) = fill(recipe.search, SearchSettings)
        self.evaluate = partial(
            evaluate_system,
            collection=self.collection,
            split=recipe.split,
            depth=DEPTH,
            measures=recipe.measures,
            search=self.search,
        )

    def run(self, facts: Mapping[str, Any]) -> StudyResults:
        out = self.out
        self.bm25 = self.evaluate(BM25, out=out / BM25)
        arms, failures = self.run_arms()
        trained = [arm for arm in arms if self.recipe.arms[arm] is not None]
        logs = {arm: read_log(out / arm / "pretrain") for arm in trained}
        groups, fusions = {}, {}  # means over seeds, alone and fused with BM25
        for group in (UNLABELLED, *self.groups):
            runs = {arm: own[group] for arm, own in arms.items()}
            found = {arm: [run.result.evaluation for run in seeds] for arm, seeds in runs.items()}
            for arm, seeds in runs.items() if self.recipe.fusion else ():
                found[FUSED + arm] = [run.fused for run in seeds if run.fused]
                fusions[f"{arm}, {group}"] = [str(run.fusion) for run in seeds]
            groups[group] = {arm: mean_evaluation(seeds) for arm, seeds in found.items()}
        results = StudyResults(
            bm25=self.bm25.evaluation,
            groups=groups,
            control=self.recipe.control,
            facts={**facts, **self.describe(arms)},
            fusions=fusions,
            swap_costs={arm: costs for arm, log in logs.items() if (costs := swap_costs(log))},
            failures=failures,
        )
        results.write(out)  # also before readiness, which may fail
        fewest, seed = next(iter(self.groups)), self.recipe.finetuning_seeds[0]
        losses = {arm: read_log(self.finetuned(arm, fewest, seed)) for arm in arms}
        drawn = {
            pictures.LABELS_FILE: pictures.draw_labels(results.by_labels(), results.bm25),
            pictures.CURVES_FILE: training_log.draw_curves(logs),
            pictures.FINETUNING_FILE: training_log.draw_curves(
                losses, {"loss": f"loss of fine-tuning (nats a query), {fewest}"}
            ),
            **self.draw_map(results.best_arm),
        }
        for name, content in drawn.items():
            (out / name).write_bytes(content)
        results.write(out, pictures=list(drawn), readiness=self.measure_readiness(arms))
        for arm, own in arms.items():
            self.publish(arm, own[self.last_group][0].result)
        self.write_search_file(results.best_arm)
        if self.recipe.page:
            shown = [*drawn, training_log.ENTROPY_FILE]
            copy_page(out, Path(self.recipe.page), pictures=shown)
        return results

    def run_arms(self) -> tuple[dict[str, _Arm], dict[str, str]]:
        """Run all arms: the finished ones, and the errors of the others but the control."""
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
        found = {UNLABELLED: [self.measure(encoder, self.out / arm / "evaluation", arm)]}
        for group in self.groups:
            found[group] = []
            for seed in self.recipe.finetuning_seeds:
                run = self.finetuned(arm, group, seed)
                retriever = self.finetune(encoder, run, self.groups[group], seed)
                found[group].append(self.measure(retriever, run / "evaluation", arm))
        return found

    def pretrain(self, arm: str) -> System:
        """Pre-train and export an arm's encoder; without settings it is the start itself."""
        recipe, folder = self.recipe, self.out / arm
        if (changes := recipe.arms[arm]) is None:
            return System(recipe.encoder, {"pooling": "cls", **recipe.stated_contract})
        logger.info("Pre-training arm %s", arm)
        settings = {
            "corpus": str(need_file(self.folder, CORPUS_FILE)),
            "encoder": recipe.encoder,
            **recipe.pretraining,
            **changes,
            "output_dir": str(folder / "pretrain"),
        }
        checkpoint = pretrain_and_measure(settings)
        encoder = folder / "encoder"
        if not encoder.is_dir():
            export_encoder(checkpoint, encoder, contract=recipe.contract)
        return System(str(encoder))

    def finetune(self, encoder: System, run: Path, size: int | None, seed: int) -> System:
        logger.info("Fine-tuning %s", run)
        settings = {
            "encoder": encoder.model,
            "collection": str(self.folder),
            "seed": seed,
            "subset_seed": seed,
            "train_size": size,
            **encoder.settings,
            **self.recipe.finetuning,
            "output_dir": str(run),
        }
        return System(str(finetune(settings)))

    def measure(self, system: System, folder: Path, arm: str) -> _Measured:
        result = self.evaluate(system, out=folder, name=arm)
        if self.recipe.fusion is None:
            return _Measured(result)
        fusion = FUSIONS.get(self.recipe.fusion) or self.choose_fusion(system, folder)
        lexical, own = (read_run(str(r.run_file)) for r in (self.bm25, result))
        fused = fusion.fuse(lexical, own, depth=DEPTH)
        measured = measure_run(self.collection, fused, measures=self.recipe.measures)
        return _Measured(result, measured, fusion)

    def choose_fusion(self, system: System, folder: Path) -> Fusion:
        dev = load_collection(self.folder, split="dev")
        runs = []
        for searched, place in ((BM25, self.out / BM25), (system, folder)):
            of_dev: Any = {"collection": dev, "split": "dev", "work_folder": place}
            found = self.evaluate(searched, out=place / "dev", **of_dev)
            runs.append(read_run(str(found.run_file)))
        lexical, own = runs
        return choose_fusion(lexical, own, dev.qrels)

    def finetuned(self, arm: str, group: str, seed: int) -> Path:
        return self.out / arm / f"{group.split()[0].replace(',', '')}-labels-{seed}"

    def first(self, arm: str) -> Path:
        """The run of an arm that is published: that with most labels, and the first seed."""
        return self.finetuned(arm, self.last_group, self.recipe.finetuning_seeds[0])

    def describe(self, arms: Mapping[str, _Arm]) -> dict[str, Any]:
        """What the results depend on, and what they cost."""
        tokens, minutes = {}, {}
        for arm in arms:
            files = (
                self.finetuned(arm, group, seed) / RUN_FILE
                for group in self.groups
                for seed in self.recipe.finetuning_seeds
            )
            seconds = sum(read_json(file, {})["session_seconds"] for file in files)
            minutes[arm] = {"fine-tuning": seconds / 60}
            if record := read_json(self.out / arm / "pretrain" / RUN_FILE, {}):
                tokens[arm] = record["tokens_seen"]
                minutes[arm]["pre-training"] = record["train_seconds"] / 60
        return {
            **describe_machine(),
            "collection": self.collection.name,
            "n_passages": len(self.collection.passages),
            "n_queries": self.bm25.evaluation.n_items,
            "split": self.recipe.split,
            "finetuning_seeds": self.recipe.finetuning_seeds,
            "tokens_seen": tokens,
            "minutes": minutes,
        }

    def measure_readiness(self, arms: Mapping[str, _Arm]) -> str:
        """Measure start and arms, pre-trained and fine-tuned: a report and Figure 2.

        Gao & Callan (2021), section 5: an encoder that is ready keeps its attention when it is
        fine-tuned.
        """
        logger.info("Measuring readiness of start and arms")
        max_length = self.recipe.pretraining.get("max_length", Measuring.max_length)
        own = {"collection": str(self.folder), "split": self.recipe.split}
        (measuring,) = fill({"max_length": max_length, **own, **self.recipe.readiness}, Measuring)
        models = [single_model(self.recipe.encoder, "start")]
        for arm in arms:
            if self.recipe.arms[arm] is not None:
                run = self.out / arm / "pretrain"
                models.append(single_model(run / MODEL_FOLDER, f"{arm}, pre-trained"))
            models.append(single_model(self.first(arm) / MODEL_FOLDER, f"{arm}, fine-tuned"))
        sample = Sample.choose(measuring, self.collection.passages)
        entries = measure_models(models, sample)
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

    def draw_map(self, arm: str) -> dict[str, bytes]:
        """The passages of a few topics before and after fine-tuning of the control and an arm."""
        topics = pictures.choose_topics(self.collection.passages)
        if not topics:
            return {}
        rows = np.concatenate(list(topics.values()))
        vectors = {}
        for name in dict.fromkeys((self.recipe.control, arm)):
            for folder in (self.out / name, self.first(name)):
                embeddings = Embeddings.open(folder / "evaluation" / EMBEDDINGS_FOLDER)
                when = UNLABELLED if folder == self.out / name else self.last_group
                vectors[f"{name}, {when}"] = embeddings.vectors(rows)
        return {pictures.MAP_FILE: pictures.draw_map(vectors, topics)}

    def publish(self, arm: str, result: SystemResult) -> None:
        """Put the results of an arm's first seed on its retriever's card."""
        command = f"condenser evaluate {PLACEHOLDER} {result.collection} --baseline bm25"
        report_on_card(
            self.first(arm) / MODEL_FOLDER,
            result,
            [self.bm25],
            collection=self.collection,
            source=self.folder,
            command=f"{command} --split {result.split} --dtype {self.search.dtype}",
        )

    def write_search_file(self, arm: str) -> None:
        """Write what `condenser search` needs to search with an arm."""
        folder = self.first(arm).relative_to(self.out)
        content = {
            "model": f"{folder / MODEL_FOLDER},dtype={self.search.dtype}",
            "embeddings": str(folder / "evaluation" / EMBEDDINGS_FOLDER),
            "collection": os.path.relpath(self.folder, self.out),
        }
        write_json(self.out / SEARCH_FILE, content)
