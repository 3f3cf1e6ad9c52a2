"""Runs a fine-tuning recipe with the trainer and the losses of sentence-transformers."""

import copy
import logging
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any, cast, get_args

import torch
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.evaluation import BaseEvaluator
from sentence_transformers.sentence_transformer.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling as PoolingModule
from transformers import TrainerCallback
from transformers.trainer_utils import TrainOutput

from modeling_condenser.collection.collection import (
    Collection,
    fingerprint_judgements,
    sample_collection,
)
from modeling_condenser.collection.load import load_collection, load_dev
from modeling_condenser.encoder_parts import freeze_pooler
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.evaluation.measures import compare, measure_in_memory
from modeling_condenser.evaluation.verdict import MEASURE, Verdict
from modeling_condenser.files.models import Dtype, Pooling, find_model_folder, is_checkpoint
from modeling_condenser.publishing.card import read_start_metadata
from modeling_condenser.publishing.export import write_repository
from modeling_condenser.publishing.provenance import FINETUNING, KEEPS_START, read_start
from modeling_condenser.retrieval.runs import FEWEST_QUERIES
from modeling_condenser.training.run import run_training, scale_learning_rate
from modeling_condenser.training.trainer import (
    MODEL_FINGERPRINT,
    ResumableTrainer,
    check_one_device,
)

from .data import TrainingData, load_training_data, passage_columns
from .hard_negatives import judged_positives
from .losses import make_loss
from .recipe import RANKING_OBJECTIVES, FinetuningRecipe

logger = logging.getLogger(__name__)

_NOT_SUPPORTED = {  # arguments of sentence-transformers, and what serves instead
    "prompts": "set query_prompt and passage_prompt, which the model's files then state.",
    "batch_sampler": "examples are shuffled; a text may repeat in a batch of a contrast, whose "
    "false negatives are masked.",
    "router_mapping": "queries and passages are told apart by the columns of the data.",
    "neftune_noise_alpha": "leave it out.",
    "auto_find_batch_size": "set mini_batch_size, which saves memory.",
    "train_sampling_strategy": "examples are shuffled.",
    "enable_jit_checkpoint": "set save_steps.",  # a killed training would end as if finished
    "metric_for_best_model": f"{MEASURE} on dev queries chooses the best weights.",
}
_USUAL_SAMPLING = "random"
_METRIC = f"eval_{MEASURE}"  # as the log names it
_RANKINGS = 5  # of dev queries in a run, at most
_AT_THE_END = 10**9  # steps; the Trainer saves and evaluates after the last step in any case
_POWER = 0.5  # of the size: 2e-5 for BERT base becomes 5.6e-5 for all-MiniLM-L6-v2


def finetune(**settings: Any) -> Path:
    """Run a fine-tuning recipe, or resume it from its last checkpoint.

    If the collection has 20 dev queries, up to 200 of them are ranked among 1,000 passages by the
    start, after the training and up to four times in it (as long as the rankings read no more texts
    than the training does), or with each checkpoint of `save_steps`. The best weights are written,
    which may be the start's, and the card compares them with the start.
    `load_best_model_at_end=False` or `save_strategy="no"` leaves this out. A finished folder is
    left unchanged.

    Args:
        **settings: fields of `FinetuningRecipe` and of `SentenceTransformerTrainingArguments`.

    Returns:
        The folder of the retriever, within the output folder.

    Raises:
        ValueError: a setting or the data does not fit.
        FileNotFoundError: the encoder, the collection or a file does not exist.
    """
    for name, advice in _NOT_SUPPORTED.items():
        if settings.get(name) and settings[name] != _USUAL_SAMPLING:
            raise ValueError(f"{name} is not supported: {advice}")
    dev = None
    is_ranked = "no" not in (settings.get("eval_strategy"), settings.get("save_strategy"))
    if is_ranked and settings.get("load_best_model_at_end", True):
        dev = load_dev_queries(settings)
    if dev is None and settings.get("load_best_model_at_end"):
        raise ValueError(
            f"load_best_model_at_end needs {FEWEST_QUERIES} dev queries and checkpoints: set "
            "collection to one with a split dev (qrels/dev.tsv), and no eval_strategy or "
            "save_strategy no; or leave it out."
        )
    saving: dict[str, Any] = {}
    if dev is not None:
        steps = settings.get("save_steps", settings.get("eval_steps", _AT_THE_END))
        if settings.get("eval_steps", steps) != steps:
            raise ValueError(
                f"eval_steps is {settings['eval_steps']}, but save_steps {steps}: checkpoints are "
                "what is ranked on dev queries, so state one of them."
            )
        strategy = settings.get("save_strategy", settings.get("eval_strategy", "steps"))
        saving = {"save_strategy": strategy, "save_steps": steps, "save_total_limit": 1}
        saving |= {"eval_strategy": strategy, "eval_steps": steps}
        saving |= {"load_best_model_at_end": True, "metric_for_best_model": _METRIC}

    def make_trainer(recipe: FinetuningRecipe, arguments: Any) -> RetrieverTrainer:
        encoder = open_trainable(recipe.encoder, **recipe.contract_changes)
        if recipe.similarity is None:
            similarity = recipe.loss_similarity
            if encoder.contract.similarity in recipe.similarities:
                similarity = encoder.contract.similarity
            recipe = replace(recipe, similarity=similarity)
            encoder.contract = replace(encoder.contract, similarity=similarity)
        if recipe.base_learning_rate is not None and "learning_rate" not in settings:
            transformer: Any = encoder.model[0]
            base = recipe.base_learning_rate
            arguments.learning_rate = scale_learning_rate(base, transformer.model, power=_POWER)
        data = load_training_data(recipe, encoder.contract, seed=arguments.seed)
        small = None
        if dev is not None:
            data.facts["dev_sha256"] = fingerprint_judgements(dev)
            small = sample_collection(dev, n_queries=200, n_passages=1000, seed=arguments.seed)
            n_rankings = count_texts(data, arguments) // (len(small.queries) + len(small.passages))
            if arguments.save_steps == _AT_THE_END and n_rankings > 1:
                share = 1 / min(n_rankings, _RANKINGS)
                arguments.save_steps = arguments.eval_steps = share
        return RetrieverTrainer(recipe, encoder, data, arguments, dev=small)

    return run_training(
        settings,
        make_trainer,
        FinetuningRecipe,
        SentenceTransformerTrainingArguments,
        dataloader_pin_memory=torch.cuda.is_available(),
        report_to="none",
        **saving,
    )


def count_texts(data: TrainingData, arguments: SentenceTransformerTrainingArguments) -> int:
    """How many queries and passages a training reads."""
    n_examples = arguments.num_train_epochs * data.facts["n_examples"]
    if arguments.max_steps > 0:
        batch = arguments.train_batch_size * arguments.world_size
        n_examples = arguments.max_steps * batch * arguments.gradient_accumulation_steps
    return int(n_examples * (2 + data.facts["n_negatives"]))


def load_dev_queries(settings: Mapping[str, Any]) -> Collection | None:
    """Load the dev queries of a collection that are not trained on; None if there are none."""
    is_ranking = settings.get("objective", "contrastive") in RANKING_OBJECTIVES
    if not is_ranking or not settings.get("collection"):
        return None
    collection, split = settings["collection"], settings.get("split") or "train"
    trained = load_collection(collection, split=split)
    dev = load_dev(collection, judged=split, reported=trained)
    n_queries = 0 if dev is None else len(judged_positives(dev))
    if n_queries < FEWEST_QUERIES:
        logger.warning(
            "%s has %d dev queries besides those trained on, and fewer than %d decide nothing, so "
            "nobody knows whether the fine-tuning helps. Add some to the split dev "
            "(qrels/dev.tsv), or compare start and result with `condenser evaluate`.",
            *(collection, n_queries, FEWEST_QUERIES),
        )
        return None
    return dev


def open_trainable(name: str, *, dtype: Dtype = "float32", **contract: Any) -> Retriever:
    """Load an encoder to fine-tune; `contract` are fields of `EncodingContract`.

    The model is reduced to transformer and pooling: the losses normalise vectors themselves. If its
    files normalise vectors and say dot, it compares by the cosine.
    """
    folder = find_model_folder(name)
    if is_checkpoint(folder):
        raise ValueError(
            f"{folder} is a Condenser checkpoint: use `condenser export` first, and fine-tune that."
        )
    encoder = Retriever(folder, dtype=dtype, **contract)
    modules: list[Any] = list(encoder.model)
    kinds, pooling = [type(module) for module in modules], encoder.contract.pooling
    is_plain = kinds[:2] == [Transformer, PoolingModule] and kinds[2:] in ([], [Normalize])
    if not is_plain or pooling not in get_args(Pooling):
        raise ValueError(
            f"{folder} has the modules {', '.join(kind.__name__ for kind in kinds)} and the "
            f"pooling {pooling!r}; expected Transformer, Pooling ({', '.join(get_args(Pooling))}) "
            "and possibly Normalize (an adapted model cannot be trained or adapted again)."
        )
    freeze_pooler(modules[0].model)
    if kinds[2:] and not contract.get("similarity") and encoder.contract.similarity == "dot":
        encoder.contract = replace(encoder.contract, similarity="cosine")
    del encoder.model[2:]
    return encoder


class DevRanking(BaseEvaluator):
    """nDCG@10 of a retriever in training on dev queries; `values` of each query by the step."""

    def __init__(self, retriever: Retriever, dev: Collection):
        super().__init__()
        self.retriever, self.dev = retriever, dev
        self.values: dict[int, dict[str, float]] = {}

    def __call__(
        self, model: Any, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        self.values[steps] = rank_dev_queries(self.retriever, self.dev)
        return {_METRIC: fmean(self.values[steps].values())}


def rank_dev_queries(retriever: Retriever, dev: Collection) -> dict[str, float]:
    """The nDCG@10 of each query."""
    return measure_in_memory(retriever, dev, [MEASURE]).per_query[MEASURE]


class StartIsCandidate(TrainerCallback):
    """The best weights are the start's until a checkpoint ranks dev queries better."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        args.eval_on_start = state.global_step == 0  # not where a run is resumed

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0:
            state.best_metric = kwargs["metrics"][_METRIC]


class RetrieverTrainer(ResumableTrainer, SentenceTransformerTrainer):
    """sentence-transformers' trainer with `ResumableTrainer`'s checkpoints, resume and pushes."""

    def __init__(
        self,
        recipe: FinetuningRecipe,
        encoder: Retriever,
        data: TrainingData,
        arguments: SentenceTransformerTrainingArguments,
        *,
        dev: Collection | None = None,
    ):
        self.encoder, self.dev = encoder, dev
        self.stages_before = read_start(encoder.folder)
        self.record = {
            "objective": recipe.objective,
            MODEL_FINGERPRINT: encoder.fingerprint,
            **data.facts,
        }
        of_start = read_start_metadata(encoder.folder)
        if "language" in of_start:
            self.record["language"] = of_start["language"]
        if recipe.objective in RANKING_OBJECTIVES:
            self.record["temperature"] = recipe.loss_temperature
        n_devices = arguments.world_size if recipe.gather_across_devices else 1
        n_pairs = min(arguments.train_batch_size * n_devices, data.facts["n_examples"])
        n_passages = n_pairs * (1 + data.facts["n_negatives"])
        if recipe.objective == "contrastive" and n_passages < 2:
            raise ValueError(
                "A batch is one pair, without negatives: set per_device_train_batch_size to 2 or "
                f"more, and train on 2 examples or more ({data.facts['n_examples']} now)."
            )
        passages = ("sentence1", "sentence2", *passage_columns(data.facts["n_negatives"]))
        arguments.router_mapping = {"query": "query", **dict.fromkeys(passages, "document")}
        transformer: Any = encoder.model[0]
        transformer.query_length = encoder.contract.query_max_length
        transformer.document_length = encoder.contract.passage_max_length
        if not encoder.contract.token_type_ids:
            transformer.tokenizer.model_input_names = ["input_ids", "attention_mask"]
        super().__init__(
            model=encoder.model,
            args=arguments,
            train_dataset=data.examples,
            loss=make_loss(recipe, encoder.model),
            evaluator=DevRanking(encoder, dev) if dev else None,
        )
        if dev is not None:
            self.add_callback(StartIsCandidate())
        self.epoch_dependent = [data.drawn] if data.drawn else []

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train; then compare the best weights with the start on dev queries, for the card.

        If no checkpoint ranks them better, the start's weights are taken.
        """
        check_one_device(self.args)
        output = super().train(*args, **kwargs)
        if self.dev is None:
            return output
        start = open_trainable(str(self.encoder.folder), **asdict(self.encoder.contract))
        asked = f"{len(self.dev.queries)} dev queries and {len(self.dev.passages):,} passages"
        if self.state.best_global_step is None:
            self.encoder.model.load_state_dict(start.model.state_dict())
            self.record[KEEPS_START] = True
            self.record["verdict"] = (
                f"no checkpoint is better than the start ({MEASURE} {self.state.best_metric:.3f} "
                f"on {asked}), so its weights are kept"
            )
        elif self.is_world_process_zero():
            values = cast(DevRanking, self.evaluator).values  # without those before a resume
            before = values.get(0) or rank_dev_queries(start, self.dev)
            best = self.state.best_global_step
            after = values.get(best) or rank_dev_queries(self.encoder, self.dev)
            asked += "; these queries chose the step, too, so a gain is overstated"
            self.record["verdict"] = str(Verdict(compare(after, before), MEASURE, asked))
        return output

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Add nothing: the library's card reads all data, and is not used."""

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the repository of the encoder, without its card."""
        if not self.args.should_save:
            return
        transformer: Any = self.encoder.model[0]
        write_repository(
            Path(output_dir or str(self.args.output_dir)),
            transformer.model,
            copy.deepcopy(transformer.tokenizer),  # it is changed, but training may continue
            self.encoder.contract,
            [*self.stages_before, self.describe_run(FINETUNING)],
        )
