"""Run a study: several arms of pre-training from one start, compared in one table.

Each stage leaves a folder and is skipped if its folder is there, so a study that was interrupted,
or that got more arms, continues with what is missing.
"""

import json
import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from sentence_transformers import SentenceTransformerTrainingArguments

from modeling_condenser.analysis.analyze import measure_models, single_model, write_analysis
from modeling_condenser.analysis.callback import pretrain_and_measure, read_readiness
from modeling_condenser.analysis.sample import Measuring, Sample
from modeling_condenser.collection.beir import CORPUS_FILE
from modeling_condenser.collection.builtin import build_builtin_collection
from modeling_condenser.collection.load import HEALTH, load_collection, resolve_collection_name
from modeling_condenser.collection.text_files import need_file
from modeling_condenser.evaluation.measures import DEFAULT_MEASURES, Evaluation, check_measures
from modeling_condenser.evaluation.system_results import (
    SystemResult,
    evaluate_system,
    measure_run,
    report_on_card,
)
from modeling_condenser.finetuning.finetune import FinetuningRecipe, finetune
from modeling_condenser.hub.card import PLACEHOLDER
from modeling_condenser.hub.contract import EncodingContract
from modeling_condenser.hub.export import export_encoder
from modeling_condenser.hub.model_folder import STARTER
from modeling_condenser.hub.training_log import (
    ENTROPY_FILE,
    EVEN_ENTROPY,
    draw_curves,
    draw_entropies,
    layer_entropies,
)
from modeling_condenser.pretraining.arguments import (
    CONTRASTIVE,
    CondenserTrainingArguments,
    PretrainingRecipe,
)
from modeling_condenser.pretraining.pretrain import READINESS
from modeling_condenser.retrieval.dense import EMBEDDINGS_FOLDER, SearchSettings
from modeling_condenser.retrieval.fusion import FUSIONS, Fusion
from modeling_condenser.retrieval.hybrid import choose_fusion
from modeling_condenser.retrieval.runs import read_run
from modeling_condenser.retrieval.systems import BM25
from modeling_condenser.runs.recipe import fill
from modeling_condenser.runs.run_folder import (
    MODEL_FOLDER,
    RECIPE_FILE,
    RUN_FILE,
    describe_machine,
    read_log,
)
from modeling_condenser.runs.whole_files import write_json

from .results import FUSED, StudyResults, mean_evaluation, swap_costs

logger = logging.getLogger(__name__)

SEARCH_FILE = "search.json"
BUILTIN = "builtin"
ON_DEV = "dev"
DEPTH = 100  # passages for a query
_UNLABELLED = "no labels"
# Settings that decide how many tokens an arm sees, and which.
_BUDGET = frozenset(
    "blocks_seed corpus data_seed gradient_accumulation_steps max_length max_steps "
    "num_train_epochs per_device_train_batch_size seed short_block_probability "
    "tokens_per_batch".split()
)
# Those that a contrastive arm may set for itself, because its batch is part of its loss.
_CONTRASTIVE_BUDGET = frozenset({"max_steps", "per_device_train_batch_size", "tokens_per_batch"})


class _Measured(NamedTuple):
    """A retriever's results, and those of its run fused with BM25's."""

    result: SystemResult
    fused: Evaluation | None = None
    fusion: Fusion | None = None


# Of one arm: "no labels" and "512 labels" -> one for each seed.
_Arm = Mapping[str, Sequence[_Measured]]


@dataclass(frozen=True)
class StudyRecipe:
    """What a study compares.

    Attributes:
        arms: name -> pre-training settings in which the arms differ.
        control: the arm that the others are compared with.
        pretraining: pre-training settings of all arms, the number of steps among them.
        finetuning: fine-tuning settings of all arms.
        output_dir: folder of the study.
        collection: "health", "builtin" (docstrings), or a BEIR folder; its passages are the
            pre-training corpus too.
        encoder: to start from.
        finetuning_seeds: each arm is fine-tuned once with each seed, which decides labels and
            order; results are means over them.
        split: whose queries are judged.
        measures: the verdict is about the first; by default MRR@10, nDCG@10 and R@100.
        fusion: to measure each arm fused with BM25 as well: "dev" to choose it on dev queries, or
            "rrf", or the arm's weight in tenths.
        readiness: fields of `Measuring`, such as {texts: 1000}.
        search: fields of `SearchSettings`, such as {dtype: bfloat16}, for encoding and search.

    Raises:
        ValueError: a setting of any stage does not fit.
    """

    arms: dict[str, Any]
    control: str
    pretraining: dict[str, Any]
    finetuning: dict[str, Any]
    output_dir: str
    collection: str = HEALTH
    encoder: str = STARTER
    finetuning_seeds: list[int] = field(default_factory=lambda: [0])
    split: str = "test"
    measures: list[str] | None = None
    fusion: str | None = None
    readiness: dict[str, Any] = field(default_factory=dict)
    search: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.control not in self.arms:
            raise ValueError(f"control is {self.control!r}, expected one of {list(self.arms)}.")
        if self.fusion not in (None, ON_DEV, *FUSIONS):
            names = ", ".join([ON_DEV, *FUSIONS])
            raise ValueError(f"fusion is {self.fusion!r}, expected one of {names}.")
        for arm, changes in self.arms.items():
            free = _CONTRASTIVE_BUDGET if changes.get("objective") in CONTRASTIVE else frozenset()
            if unequal := sorted((_BUDGET - free) & changes.keys()):
                raise ValueError(
                    f"The arm {arm!r} changes {', '.join(unequal)}, but arms are compared at equal "
                    "tokens: set it under `pretraining`, for all of them."
                )
        arms = [{**self.pretraining, **changes} for changes in self.arms.values()]
        given = {"encoder": "", "output_dir": self.output_dir}
        for settings in arms:
            own = {**given, "corpus": "", **settings}
            read_readiness(own.pop(READINESS, None))
            fill(own, PretrainingRecipe, CondenserTrainingArguments)
        own = {**given, "collection": "", **self.finetuning}
        fill(own, FinetuningRecipe, SentenceTransformerTrainingArguments)
        fill(self.readiness, Measuring)
        fill(self.search, SearchSettings)
        check_measures(self.measures or DEFAULT_MEASURES)


def run_study(settings: Mapping[str, Any]) -> StudyResults:
    """Run a study, or continue it; results are also written to its folder.

    An arm that fails is named in the results and left out, and the next run tries it again. If the
    control fails, the study ends.

    Args:
        settings: fields of `StudyRecipe`. If one does not fit, nothing is written.
    """
    (recipe,) = fill(settings, StudyRecipe)
    out = Path(recipe.output_dir)
    if out.exists() and any(out.iterdir()) and not (out / RECIPE_FILE).is_file():
        raise ValueError(f"{out} has other files and is no study: choose another output_dir.")
    out.mkdir(parents=True, exist_ok=True)
    stated = {name: value for name, value in settings.items() if name != "output_dir"}
    (out / RECIPE_FILE).write_text(yaml.safe_dump(stated))
    return _Study(recipe).run(stated)


class _Study:
    """The stages of a study."""

    def __init__(self, recipe: StudyRecipe) -> None:
        self.recipe, self.out = recipe, Path(recipe.output_dir)
        self.labels = f"{recipe.finetuning.get('train_size') or 'all'} labels"
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

    def run(self, settings: Mapping[str, Any]) -> StudyResults:
        out, started = self.out, time.perf_counter()
        self.bm25 = self.evaluate(BM25, out=out / BM25)
        arms, failures = self.run_arms()
        logs = {arm: read_log(out / arm / "pretrain") for arm in arms}
        records = {arm: json.loads((out / arm / "pretrain" / RUN_FILE).read_text()) for arm in arms}
        tokens_seen = {arm: record["tokens_seen"] for arm, record in records.items()}
        results = StudyResults(
            bm25=self.bm25.evaluation,
            groups={
                group: self.summarise({arm: own[group] for arm, own in arms.items()})
                for group in (_UNLABELLED, self.labels)
            },
            control=self.recipe.control,
            facts={
                **describe_machine(),
                "session_seconds": round(time.perf_counter() - started, 1),
                "tokens_seen": tokens_seen,
                "n_passages": len(self.collection.passages),
                "n_queries": self.bm25.evaluation.n_items,
                "split": self.recipe.split,
                "finetuning_seeds": self.recipe.finetuning_seeds,
                "recipe": dict(settings),
            },
            fusions={
                f"{arm}, {group}": [str(m.fusion) for m in measured]
                for group in (_UNLABELLED, self.labels)
                for arm, own in arms.items()
                if (measured := own[group]) and measured[0].fusion
            },
            swap_costs={arm: costs for arm, log in logs.items() if (costs := swap_costs(log))},
            failures=failures,
        )
        results.write(out)  # also before readiness, which may fail
        results.write(out, self.measure_readiness(arms))
        (out / "curves.png").write_bytes(draw_curves(logs))
        for arm, own in arms.items():
            self.publish(arm, own[self.labels][0].result)
        self.write_search_file(results.best_arm)
        return results

    def pretrain(self, settings: dict[str, Any], folder: Path) -> Path:
        corpus = str(need_file(self.folder, CORPUS_FILE))
        return pretrain_and_measure({"corpus": corpus, **settings, "output_dir": str(folder)})

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
        """Pre-train, export, fine-tune with each seed, and measure."""
        recipe, folder = self.recipe, self.out / arm
        logger.info("Pre-training arm %s", arm)
        settings = {"encoder": recipe.encoder, **recipe.pretraining, **recipe.arms[arm]}
        checkpoint = self.pretrain(settings, folder / "pretrain")
        encoder = folder / "encoder"
        if not encoder.is_dir():
            export_encoder(checkpoint, encoder, contract=self.contract)
        unlabelled = self.measure(encoder, folder / "evaluation", arm)
        finetuned = []
        for seed in recipe.finetuning_seeds:
            logger.info("Fine-tuning arm %s, seed %d", arm, seed)
            run = folder / f"finetuned-{seed}"
            settings = {
                "encoder": str(encoder),
                "collection": str(self.folder),
                "seed": seed,
                "subset_seed": seed,
                **recipe.finetuning,
                "output_dir": str(run),
            }
            finetuned.append(self.measure(finetune(settings), run / "evaluation", arm))
        return {_UNLABELLED: [unlabelled], self.labels: finetuned}

    def measure(self, model: Path, folder: Path, arm: str) -> _Measured:
        result = self.evaluate(model, out=folder, name=arm)
        if self.recipe.fusion is None:
            return _Measured(result)
        fusion = FUSIONS.get(self.recipe.fusion) or self.choose_fusion(model, folder)
        lexical, own = (read_run(str(r.run_file)) for r in (self.bm25, result))
        fused = fusion.fuse(lexical, own, depth=DEPTH)
        measured = measure_run(self.collection, fused, measures=self.recipe.measures)
        return _Measured(result, measured, fusion)

    def choose_fusion(self, model: Path, folder: Path) -> Fusion:
        dev = load_collection(self.folder, split="dev")
        lexical, own = (
            evaluate_system(
                system,
                dev,
                place / "dev",
                split="dev",
                depth=DEPTH,
                search=self.search,
                work_folder=place,
            )
            for system, place in ((BM25, self.out / BM25), (model, folder))
        )
        return choose_fusion(
            read_run(str(lexical.run_file)), read_run(str(own.run_file)), dev.qrels
        )

    @property
    def contract(self) -> EncodingContract | None:
        """The contract of the fine-tuning: arms with and without labels differ in labels only."""
        given = self.recipe.finetuning
        stated = {n: given[n] for n in EncodingContract.__annotations__ if given.get(n)}
        is_whole = {"query_max_length", "passage_max_length"} <= stated.keys()
        return EncodingContract(**stated) if is_whole else None

    def first(self, arm: str) -> Path:
        return self.out / arm / f"finetuned-{self.recipe.finetuning_seeds[0]}"

    def summarise(self, arms: Mapping[str, Sequence[_Measured]]) -> dict[str, Evaluation]:
        """Means over seeds, of each arm and of each arm fused with BM25."""
        means = {
            arm: mean_evaluation([m.result.evaluation for m in runs]) for arm, runs in arms.items()
        }
        for arm, measured in arms.items():
            if fused := [m.fused for m in measured if m.fused is not None]:
                means[FUSED + arm] = mean_evaluation(fused)
        return means

    def measure_readiness(self, arms: Iterable[str]) -> str:
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
            runs = {"pre-trained": self.out / arm / "pretrain", "fine-tuned": self.first(arm)}
            models += [single_model(runs[s] / MODEL_FOLDER, f"{arm}, {s}") for s in runs]
        sample = Sample.choose(measuring, self.collection.passages)
        entries = measure_models(models, sample)
        written = write_analysis(self.out / READINESS, entries, sample)
        layers = {entry["label"]: layer_entropies(entry) for entry in entries}
        panels, changes = {}, []
        for arm in arms:
            before, after = layers[f"{arm}, pre-trained"], layers[f"{arm}, fine-tuned"]
            panels[arm] = {"start": layers["start"], "pre-trained": before, "fine-tuned": after}
            changes.append(f"{arm} {np.abs(np.subtract(after, before)).mean():.3f}")
        picture = draw_entropies(panels, even=entries[0][EVEN_ENTROPY])
        (self.out / ENTROPY_FILE).write_bytes(picture)
        return (
            f"## Readiness\n\n{written}\n\nChange of a layer's entropy by fine-tuning, in nats, "
            f"mean over layers: {', '.join(changes)}."
        )

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
