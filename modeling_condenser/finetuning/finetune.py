"""Runs a fine-tuning recipe with the trainer and the losses of sentence-transformers."""

import copy
import logging
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pyarrow.compute as pc
import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling as PoolingModule
from sentence_transformers.util import SimilarityFunction
from torch import nn
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.load import load_collection, load_dev
from modeling_condenser.encoder_parts import freeze_pooler
from modeling_condenser.encoding.embeddings import Dtype
from modeling_condenser.encoding.opening import stated_similarity
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.files.contract import Pooling
from modeling_condenser.files.models import find_model_folder, is_checkpoint
from modeling_condenser.files.run_folder import all_checkpoints
from modeling_condenser.mining.hard_negatives import judged_positives
from modeling_condenser.publishing.export import write_repository
from modeling_condenser.publishing.provenance import FINETUNING, read_provenance
from modeling_condenser.training.run import run_training, scale_learning_rate
from modeling_condenser.training.trainer import START, ResumableTrainer

from .best import METRIC, DevRanking, KeepBest
from .contrast import MaskedContrast
from .data import TrainingData, load_training_data, passage_columns
from .recipe import FinetuningRecipe

logger = logging.getLogger(__name__)

_STRATEGIES = ("eval_strategy", "save_strategy")
_POWER = 0.5  # of the size: 2e-5 for BERT base becomes 5.6e-5 for all-MiniLM-L6-v2


def finetune(settings: Mapping[str, Any]) -> Path:
    """Run a fine-tuning recipe, or resume it from its last complete checkpoint.

    Encoder and data are checked before the output folder is created. A finished folder is left
    unchanged. If the collection has dev queries, they are ranked at the start, five times or with
    each checkpoint, and at the end, and the best weights are kept; `load_best_model_at_end: false`
    or a strategy of saving or evaluation of your own keeps the last ones.

    Args:
        settings: fields of `FinetuningRecipe` and of `SentenceTransformerTrainingArguments`.

    Returns:
        The folder of the retriever, within the output folder.

    Raises:
        ValueError: a setting or the data does not fit.
        FileNotFoundError: the encoder, the collection or a file does not exist.
    """
    dev = None
    if settings.get("load_best_model_at_end", settings.keys().isdisjoint(_STRATEGIES)):
        dev = load_dev_queries(settings)
    if dev is None and settings.get("load_best_model_at_end"):
        raise ValueError(
            "load_best_model_at_end is true, but there are no dev queries to find the best weights "
            "by: give a collection with a split dev (qrels/dev.tsv), or leave it out."
        )

    def make_trainer(recipe: FinetuningRecipe, arguments: Any) -> RetrieverTrainer:
        recipe = keep_similarity(recipe)
        encoder = open_trainable(recipe.encoder, recipe.contract_changes)
        if recipe.base_learning_rate is not None and "learning_rate" not in settings:
            transformer: Any = encoder.model[0]
            base = recipe.base_learning_rate
            arguments.learning_rate = scale_learning_rate(base, transformer.model, power=_POWER)
        data = load_training_data(recipe, encoder.contract, seed=arguments.seed)
        return RetrieverTrainer(recipe, encoder, data, arguments, dev=dev)

    # A recipe that sets save_steps wants checkpoints.
    saving: dict[str, Any] = {"save_strategy": "steps" if "save_steps" in settings else "no"}
    if dev is not None:
        saving |= {"load_best_model_at_end": True, "metric_for_best_model": METRIC}
        saving["eval_strategy"] = settings.get("save_strategy", "steps")
        saving["eval_steps"] = settings.get("save_steps", 0.2)
        saving |= {} if "save_steps" in settings else {"save_strategy": "best"}
    folder = run_training(
        settings,
        make_trainer,
        FinetuningRecipe,
        SentenceTransformerTrainingArguments,
        dataloader_pin_memory=torch.cuda.is_available(),
        report_to="none",
        **saving,
    )
    if saving["save_strategy"] == "best" and "save_strategy" not in settings:
        for checkpoint in all_checkpoints(folder.parent):  # nobody asked for them
            shutil.rmtree(checkpoint, ignore_errors=True)
    return folder


def load_dev_queries(settings: Mapping[str, Any]) -> Collection | None:
    """Load the dev queries of a collection; None without relevant passages, or without ranking."""
    is_ranked = settings.get("objective", "contrastive") in ("contrastive", "margin_mse", "kl")
    if not is_ranked or not settings.get("collection"):
        return None
    collection, split = settings["collection"], settings.get("split") or "train"
    trained = load_collection(collection, split=split)
    dev = load_dev(collection, judged=split, reported=trained)
    return dev if dev and judged_positives(dev) else None


def keep_similarity(recipe: FinetuningRecipe) -> FinetuningRecipe:
    """Name the similarity of the encoder in a recipe that names none, if the objective has it."""
    stated = stated_similarity(find_model_folder(recipe.encoder))
    if recipe.similarity is None and stated in recipe.similarities:
        recipe = replace(recipe, similarity=stated)
    own = recipe.trained_similarity
    was = f", and no longer by {stated}" if stated not in (None, own) else ""
    logger.info("The retriever will compare by %s%s.", own, was)
    return recipe


def open_trainable(name: str, changes: Mapping[str, Any], *, dtype: Dtype = "float32") -> Retriever:
    """Load an encoder to fine-tune; `changes` are fields of `EncodingContract`.

    The model is reduced to transformer and pooling: the losses normalise vectors themselves.
    """
    folder = find_model_folder(name)
    if is_checkpoint(folder):
        raise ValueError(
            f"{folder} is a Condenser checkpoint: use `condenser export` first, and fine-tune that."
        )
    opened = Retriever(folder, dtype=dtype, **changes)
    modules: list[Any] = list(opened.model)
    kinds, pooling = [type(module) for module in modules], opened.contract.pooling
    is_plain = kinds[:2] == [Transformer, PoolingModule] and kinds[2:] in ([], [Normalize])
    if not is_plain or pooling not in get_args(Pooling):
        raise ValueError(
            f"{folder} has the modules {', '.join(kind.__name__ for kind in kinds)} and the "
            f"pooling {pooling!r}; expected Transformer, Pooling ({', '.join(get_args(Pooling))}) "
            "and possibly Normalize (an adapted model cannot be trained or adapted again): state "
            "another pooling, or use sentence-transformers itself."
        )
    freeze_pooler(modules[0].model)
    del opened.model[2:]
    return opened


def make_loss(recipe: FinetuningRecipe, model: SentenceTransformer) -> nn.Module:
    """Make the loss of a recipe's objective for a model with unnormalised vectors.

    s is the similarity, t the temperature, q a query, p its positive and n a negative:

    contrastive   -log( exp(s(q,p)/t) / sum over d of exp(s(q,d)/t) ), d all positives and negatives
                  of the batch but false ones, see `find_false_negatives` (Condenser eq. 12; DPR's
                  loss for dot and t = 1)
    mse_cosine    (cos(u,v) - score)^2, the score from 0 to 1 (Reimers & Gurevych 2019, section 3)
    triplet       max( dist(q,p) - dist(q,n) + margin, 0 ), dist Euclidean (the same section) or
                  1 - cos (the thesis, eq. 3.1)
    margin_mse    ( (s(q,p) - s(q,n)) - (teacher(q,p) - teacher(q,n)) )^2 (Hofstätter et al. 2020)
    kl            t^2 KL( softmax(teacher/t) || softmax(s/t) ) over a query's passages

    A loss is the mean over the batch. `matryoshka_dims` adds the losses of truncated vectors.

    Raises:
        ValueError: `matryoshka_dims` are not smaller than the vectors.
    """
    similarity, temperature = recipe.trained_similarity, recipe.trained_temperature
    pairwise = SimilarityFunction.to_similarity_pairwise_fn(similarity)
    contrast = None
    match recipe.objective:
        case "contrastive":
            loss: Any = losses.MultipleNegativesRankingLoss
            if (size := recipe.mini_batch_size) is not None:  # gradient cache, Gao et al. 2021
                loss = partial(losses.CachedMultipleNegativesRankingLoss, mini_batch_size=size)
            is_gathered = recipe.gather_across_devices
            score: Any = SimilarityFunction.to_similarity_fn(similarity)
            contrast = MaskedContrast(model, score, is_gathered=is_gathered)
            loss = loss(
                model,
                scale=1.0 / temperature,
                similarity_fct=contrast.score,
                gather_across_devices=is_gathered,
            )
        case "mse_cosine":
            loss = losses.CosineSimilarityLoss(model)
        case "triplet":
            is_cosine = similarity == "cosine"
            distance = losses.TripletDistanceMetric.COSINE if is_cosine else euclidean_distance
            loss = losses.TripletLoss(model, distance, recipe.margin)
        case "margin_mse":
            loss = losses.MarginMSELoss(model, similarity_fct=pairwise)
        case "kl":
            loss = losses.DistillKLDivLoss(model, pairwise, temperature=temperature)
    if (stated := recipe.matryoshka_dims) is not None:
        whole: Any = model.get_embedding_dimension()
        if not stated or not all(0 < dim < whole for dim in stated):
            raise ValueError(
                f"matryoshka_dims is {stated}, but vectors have {whole} numbers: list dimensions "
                f"from 1 to {whole - 1}; the whole vector is always trained."
            )
        loss = losses.MatryoshkaLoss(model, loss, sorted({whole, *stated}, reverse=True))
    if contrast is None:
        return loss
    contrast.loss = loss
    return contrast


def euclidean_distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the distance of each row of (B, H) vectors: (B,); equal vectors have gradient 0.

    The gradient of `TripletDistanceMetric.EUCLIDEAN` is NaN for equal vectors.
    """
    return torch.linalg.vector_norm(a - b, dim=-1)


def sample_batches(
    recipe: FinetuningRecipe, dataset: Dataset, **options: Any
) -> DefaultBatchSampler:
    """Sample batches in the recipe's order; the options are those of `DefaultBatchSampler`."""
    if recipe.objective == "contrastive":
        return SeededBatches(dataset, **options)
    shuffled = RandomSampler(dataset, generator=options["generator"])
    sampler = SequentialSampler(dataset) if recipe.order == "sequential" else shuffled
    return DefaultBatchSampler(sampler, **options)


class SeededBatches(DefaultBatchSampler):
    """Batches of all rows in a random order, which depends only on seed and epoch.

    accelerate would replace a `RandomSampler` by one of its own.
    """

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(len(self.sampler), generator=generator).tolist()  # type: ignore[arg-type]
        return iter(BatchSampler(order, self.batch_size, self.drop_last))


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
        self.recipe, self.encoder = recipe, encoder
        self.facts = {"objective": recipe.objective, START: encoder.fingerprint, **data.facts}
        if recipe.objective in ("contrastive", "kl"):
            self.facts["temperature"] = recipe.trained_temperature
        _check_batches(recipe, data, arguments)
        arguments.batch_sampler = partial(sample_batches, recipe)
        passages = ("sentence1", "sentence2", *passage_columns(data.facts["n_negatives"]))
        arguments.router_mapping = {"query": "query", **dict.fromkeys(passages, "document")}
        transformer: Any = encoder.model[0]
        contract = encoder.contract
        transformer.query_length = contract.query_max_length
        transformer.document_length = contract.passage_max_length
        if not contract.token_type_ids:
            transformer.tokenizer.model_input_names = ["input_ids", "attention_mask"]
        super().__init__(
            model=encoder.model,
            args=arguments,
            train_dataset=data.examples,
            loss=make_loss(recipe, encoder.model),
            evaluator=DevRanking(encoder, dev, seed=arguments.seed) if dev else None,
        )
        self.epoch_dependent = [data.drawn] if data.drawn else []
        if dev is not None:
            self.add_callback(KeepBest(self))

    def restore_start(self) -> None:
        """Put back the weights that the training started from."""
        start = open_trainable(str(self.encoder.folder), self.recipe.contract_changes)
        self.encoder.model.load_state_dict(start.model.state_dict())

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
            [*read_provenance(self.encoder.folder), self.describe_run(FINETUNING)],
            with_card=False,
        )


def _check_batches(
    recipe: FinetuningRecipe, data: TrainingData, arguments: SentenceTransformerTrainingArguments
) -> None:
    """Raise a ValueError if a contrast has nothing to contrast a positive with."""
    if recipe.objective != "contrastive" or data.facts["n_negatives"]:
        return
    n_devices = arguments.world_size if recipe.gather_across_devices else 1
    if arguments.train_batch_size * n_devices < 2:
        raise ValueError(
            "A batch is one pair, without negatives: set per_device_train_batch_size to 2 or more."
        )
    passages = data.examples.with_format("arrow")[:]["passages"]
    if len(pc.list_element(passages, 0).unique()) < 2:
        raise ValueError(
            f"The {len(data.examples)} examples have the same positive, so there is nothing to "
            "contrast it with: add negatives, or examples with other positives."
        )
