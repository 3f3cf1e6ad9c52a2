"""The fields of a study's recipe, checked before anything runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
from modeling_condenser.runs.recipe import fill

ON_DEV = "dev"
# Settings that decide how many tokens an arm sees, and which.
_BUDGET = frozenset(
    "blocks_seed corpus data_seed gradient_accumulation_steps max_length max_steps "
    "num_train_epochs per_device_train_batch_size seed short_block_probability "
    "tokens_per_batch".split()
)
# Those that a contrastive arm may set itself, because its batch is part of its loss.
_CONTRASTIVE_BUDGET = frozenset({"max_steps", "per_device_train_batch_size", "tokens_per_batch"})


@dataclass(frozen=True)
class StudyRecipe:
    """What a study compares.

    Attributes:
        arms: name -> pre-training settings in which the arms differ; null for the encoder without
            pre-training.
        control: the arm that the others are compared with.
        pretraining: pre-training settings of all arms, with the number of steps.
        finetuning: fine-tuning settings of all arms.
        output_dir: folder of the study.
        title: title of its page.
        question: what the study asks, in a few sentences for the top of its page.
        page: file to also write the results to, such as docs/results/my-study.md, with its pictures
            beside it.
        collection: "health" or a BEIR folder; its passages are the
            pre-training corpus too.
        encoder: to start from.
        train_sizes: numbers of labelled pairs to fine-tune on, one after the other; null for all.
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

    arms: dict[str, Any]
    control: str
    pretraining: dict[str, Any]
    finetuning: dict[str, Any]
    output_dir: str
    title: str = "Study"
    question: str = ""
    page: str | None = None
    collection: str = HEALTH
    encoder: str = STARTER
    train_sizes: list[int | None] = field(default_factory=lambda: [None])
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
        if self.fusion == ON_DEV and self.split.startswith(("dev", "validation")):
            raise ValueError(
                f"fusion is dev, but split is {self.split}, and a fusion must not be chosen on the "
                "queries that it is measured on: set another split, or fusion to rrf."
            )
        if "train_size" in self.finetuning:
            raise ValueError(
                "A study may have several sizes: set train_sizes, such as [128, 512], instead of "
                "train_size in finetuning."
            )
        for arm, changes in self.arms.items():
            self._check_arm(arm, changes)
        own = {"encoder": "", "output_dir": "", "collection": "", **self.finetuning}
        # It takes seconds to import, which help should not wait for.
        from sentence_transformers import SentenceTransformerTrainingArguments

        fill(own, FinetuningRecipe, SentenceTransformerTrainingArguments)
        fill(self.readiness, Measuring)
        fill(self.search, SearchSettings)
        check_measures(self.measures or DEFAULT_MEASURES)

    def _check_arm(self, arm: str, changes: Mapping[str, Any] | None) -> None:
        if changes is None:
            return
        free = _CONTRASTIVE_BUDGET if changes.get("objective") in CONTRASTIVE else frozenset()
        if unequal := sorted((_BUDGET - free) & changes.keys()):
            raise ValueError(
                f"The arm {arm!r} changes {', '.join(unequal)}, but arms are compared at equal "
                "tokens: set it under `pretraining`, for all of them."
            )
        own = {"encoder": "", "corpus": "", "output_dir": "", **self.pretraining, **changes}
        arm_recipe, _ = fill(own, PretrainingRecipe, CondenserTrainingArguments)
        fill(arm_recipe.readiness or {}, MeasuringWhileTraining)

    @property
    def groups(self) -> dict[str, int | None]:
        """Names of the numbers of labels, such as "512 labels"."""
        return {
            "all labels" if size is None else f"{size:,} labels": size for size in self.train_sizes
        }

    @property
    def stated_contract(self) -> dict[str, Any]:
        """The settings of fine-tuning that are fields of the encoding contract."""
        given = self.finetuning
        return {name: given[name] for name in EncodingContract.__annotations__ if given.get(name)}

    @property
    def contract(self) -> EncodingContract | None:
        """The contract of the fine-tuning, so that arms with and without labels are comparable."""
        stated = self.stated_contract
        is_whole = {"query_max_length", "passage_max_length"} <= stated.keys()
        return EncodingContract(**stated) if is_whole else None
