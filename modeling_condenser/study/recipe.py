"""The fields of a study's recipe, checked before anything runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from math import inf
from typing import Any, NamedTuple

from modeling_condenser.adaptation.recipe import AdaptationRecipe, MapSettings
from modeling_condenser.analysis.recipe import Measuring, MeasuringWhileTraining
from modeling_condenser.collection.load import HEALTH
from modeling_condenser.evaluation.measures import DEFAULT_MEASURES, check_measures
from modeling_condenser.finetuning.recipe import FinetuningRecipe
from modeling_condenser.model_files.contract import EncodingContract
from modeling_condenser.model_files.model_folder import STARTER
from modeling_condenser.pretraining.arguments import (
    CONTRASTIVE,
    CondenserTrainingArguments,
    PretrainingRecipe,
)
from modeling_condenser.retrieval.dense import SearchSettings
from modeling_condenser.retrieval.fusion import FUSIONS
from modeling_condenser.retrieval.systems import BM25, System, parse_system
from modeling_condenser.runs.recipe import fill

ON_DEV = "dev"
ADAPT = "adapt"  # the objective of an arm that is adapted
UNLABELLED = "no labels"
# Settings that decide how many tokens an arm sees, and which.
_BUDGET = frozenset(
    "blocks_seed corpus data_seed gradient_accumulation_steps max_length max_steps "
    "num_train_epochs per_device_train_batch_size seed short_block_probability "
    "tokens_per_batch".split()
)
# Those that a contrastive arm may set itself, because its batch is part of its loss.
_CONTRASTIVE_BUDGET = frozenset({"max_steps", "per_device_train_batch_size", "tokens_per_batch"})

# Settings of a stage that are the study's: what to set instead.
_SET_ELSEWHERE = {
    "train_size": "train_sizes, such as [128, 512]",
    "seed": "finetuning_seeds, such as [0, 1, 2]",
    "encoder": "encoder of the study",
    "collection": "collection of the study",
}


class Arm(NamedTuple):
    """One way from one start to a retriever.

    Attributes:
        start: folder or Hub name of the encoder.
        settings: of pre-training or, with objective: adapt, of adapting; None for the start itself.
        untouched: name of the arm that is this start itself; None if there is none.
    """

    start: str
    settings: Mapping[str, Any] | None
    untouched: str | None

    @property
    def is_adapted(self) -> bool:
        return self.settings is not None and self.settings.get("objective") == ADAPT

    @property
    def is_pretrained(self) -> bool:
        return self.settings is not None and not self.is_adapted


@dataclass(frozen=True)
class StudyRecipe:
    """What a study compares.

    Attributes:
        arms: name -> pre-training settings in which the arms differ; null for the start itself; or
            {objective: adapt} and settings of adapting. With labels, that arm adapts what the start
            becomes by fine-tuning; with `labels: true` it adapts the start itself by the labels.
        control: the arm that the others of the same start are compared with; or a system, with
            which all are compared.
        pretraining: pre-training settings of all arms, with the number of steps.
        finetuning: fine-tuning settings of all arms.
        output_dir: folder of the study.
        title: title of its page.
        question: what the study asks, in a few sentences for the top of its page.
        page: file to also write the results to, such as docs/results/my-study.md, with its pictures
            beside it.
        collection: "health" or a BEIR folder; its passages are the
            pre-training corpus too.
        encoder: folder or Hub name of the model to start from.
        start: several of them, in place of `encoder`; each goes through all arms.
        systems: rows that no label changes, such as what you search with today: TREC run files or
            models, as for `condenser evaluate`.
        train_sizes: numbers of labelled pairs to fine-tune on, from few to most; null for all.
            Each arm is also measured without labels.
        finetuning_seeds: each arm is fine-tuned once with each seed, which decides labels and
            order; results are means over them.
        split: split of the queries.
        measures: by default MRR@10, nDCG@10 and R@100; the best arm is best in the first.
        fusion: also measures each arm fused with BM25: "dev" to choose how on dev queries, or
            "rrf", or the arm's weight in tenths.
        readiness: fields of `Measuring`, such as {texts: 1000}.
        search: fields of `SearchSettings`, such as {dtype: bfloat16}, for encoding and search.

    Raises:
        ValueError: a setting of any stage does not fit.
    """

    arms: dict[str, dict[str, Any] | None]
    control: str
    pretraining: dict[str, Any]
    finetuning: dict[str, Any]
    output_dir: str
    title: str = "Study"
    question: str = ""
    page: str | None = None
    collection: str = HEALTH
    encoder: str = STARTER
    start: list[str] = field(default_factory=list)
    systems: list[str] = field(default_factory=list)
    train_sizes: list[int | None] = field(default_factory=lambda: [None])
    finetuning_seeds: list[int] = field(default_factory=lambda: [0])
    split: str = "test"
    measures: list[str] | None = None
    fusion: str | None = None
    readiness: dict[str, Any] = field(default_factory=dict)
    search: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_names()
        if self.fusion not in (None, ON_DEV, *FUSIONS):
            names = ", ".join([ON_DEV, *FUSIONS])
            raise ValueError(f"fusion is {self.fusion!r}, expected one of {names}.")
        is_dev = self.split.startswith(("dev", "validation"))
        if self.fusion == ON_DEV and is_dev:
            raise ValueError(
                f"fusion is dev, but split is {self.split}, and a fusion must not be chosen on the "
                "queries that it is measured on: set another split, or fusion to rrf."
            )
        if is_dev and self.finetuning.get("load_best_model_at_end"):
            raise ValueError(
                f"split is {self.split}, but load_best_model_at_end chooses weights by dev "
                "queries: set another split, or leave load_best_model_at_end out."
            )
        if is_dev and any(arm.is_adapted for arm in self.runs.values()):
            raise ValueError(
                f"split is {self.split}, but dev queries decide whether an adapted model is kept: "
                "set another split, or leave out the arms with objective: adapt."
            )
        for name, instead in _SET_ELSEWHERE.items():
            if name in self.finetuning or (name == "encoder" and name in self.pretraining):
                raise ValueError(
                    f"{name} stands under a stage of the study: set {instead}, instead."
                )
        if not self.finetuning_seeds:
            raise ValueError("finetuning_seeds is empty: name at least one, such as [0].")
        for name, arm in self.runs.items():
            if arm.is_adapted:
                self._check_adaptation(name, arm)
            elif arm.settings is not None:
                self._check_pretraining(name, arm.settings)
        own = {"encoder": "", "output_dir": "", "collection": "", **self.finetuning}
        own["train_size"] = min((n for n in self.train_sizes if n is not None), default=None)
        own["load_best_model_at_end"] = False  # `finetune` adds what it needs if it is true
        # It takes seconds to import, which help should not wait for.
        from sentence_transformers import SentenceTransformerTrainingArguments

        fill(own, FinetuningRecipe, SentenceTransformerTrainingArguments)
        fill({"collection": self.collection, **self.readiness}, Measuring)
        fill(self.search, SearchSettings)
        check_measures(DEFAULT_MEASURES if self.measures is None else self.measures)

    def _check_names(self) -> None:
        """Check that each row of the tables has its own name and folder, and there is a control."""
        systems = [BM25, *(parse_system(text).name for text in self.systems)]
        names = [*systems, *(System(model).name for model in self.start), *self.runs]
        if len(set(names)) < len(names):
            raise ValueError(
                f"Two systems, starts or arms have the same name ({', '.join(sorted(names))}): "
                "rename an arm or a folder, or name a system, as in MODEL,name=today."
            )
        if wrong := [name for name in self.arms if "/" in name or name in ("", ".", "..")]:
            raise ValueError(f"The arm {wrong[0]!r} has no name for a folder: rename it.")
        # The readiness of all arms replaces its folder.
        if taken := {"readiness", "systems"} & {name.partition("/")[0] for name in self.runs}:
            raise ValueError(
                f"{taken.pop()!r} is a folder of the study itself: rename the arm or the start."
            )
        if self.control not in (known := [*self.arms, *systems[1:]]):
            raise ValueError(f"control is {self.control!r}, expected one of {known}.")

    def _check_pretraining(self, name: str, changes: Mapping[str, Any]) -> None:
        free = _CONTRASTIVE_BUDGET if changes.get("objective") in CONTRASTIVE else frozenset()
        if unequal := sorted((_BUDGET - free) & changes.keys()):
            raise ValueError(
                f"The arm {name!r} changes {', '.join(unequal)}, but arms are compared at equal "
                "tokens: set it under `pretraining`, for all of them."
            )
        own = {"encoder": "", "corpus": "", "output_dir": "", **self.pretraining, **changes}
        arm_recipe, _ = fill(own, PretrainingRecipe, CondenserTrainingArguments)
        fill(arm_recipe.readiness or {}, MeasuringWhileTraining)

    def _check_adaptation(self, name: str, arm: Arm) -> None:
        settings = {**(arm.settings or {}), "model": "", "corpus": "", "output_dir": ""}
        del settings["objective"]
        fill(settings, AdaptationRecipe, MapSettings)
        if self.train_sizes and not settings.get("labels") and arm.untouched is None:
            raise ValueError(
                f"The arm {name!r} adapts what the start becomes by fine-tuning: add the start "
                "itself as an arm, such as `untouched: null`, or set labels: true in this one."
            )

    @property
    def starts(self) -> dict[str, str]:
        """The beginning of the names of its runs, such as "all-MiniLM-L6-v2/" -> each start."""
        if not self.start:
            return {"": self.encoder}
        return {f"{System(model).name}/": model for model in self.start}

    @property
    def runs(self) -> dict[str, Arm]:
        """Each arm of each start, by its name, which is also its folder: ARM, or START/ARM."""
        untouched = [name for name, settings in self.arms.items() if settings is None]
        return {
            prefix + name: Arm(start, settings, prefix + untouched[0] if untouched else None)
            for (prefix, start), (name, settings) in product(self.starts.items(), self.arms.items())
        }

    @property
    def named_systems(self) -> dict[str, System]:
        """The systems that are no arms, by their names."""
        return {(system := parse_system(text)).name: system for text in self.systems}

    @property
    def controls(self) -> dict[str, str]:
        """Name of a row -> that of the row that it is compared with, beside BM25.

        Controls of further starts and systems are compared with the control of the first start.
        """
        rows = [*self.named_systems, *self.runs]
        if self.control not in self.arms:
            return dict.fromkeys(rows, self.control)
        first, *_ = (prefix + self.control for prefix in self.starts)
        own = {
            prefix + name: first if name == self.control else prefix + self.control
            for prefix, name in product(self.starts, self.arms)
        }
        return {**dict.fromkeys(rows, first), **own}

    @property
    def groups(self) -> dict[str, int | None]:
        """Numbers of labels by their names, from "no labels" (0) to "all labels" (None).

        The last is the most, with which arms are published and the best is chosen.
        """
        ordered = sorted(self.train_sizes, key=lambda n: inf if n is None else n)
        sizes = {"all labels" if n is None else f"{n:,} labels": n for n in ordered}
        return {UNLABELLED: 0, **sizes}

    @property
    def stated_contract(self) -> dict[str, Any]:
        """The settings of fine-tuning that are fields of the encoding contract.

        They are those of all arms, so that arms with and without labels are comparable.
        """
        given = self.finetuning
        names = EncodingContract.__annotations__
        return {name: given[name] for name in names if given.get(name) is not None}
