"""The models that are measured: opened from files, or taken from a training that is running."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from datasets import Dataset, IterableDataset
from transformers import AutoTokenizer, TrainingArguments, set_seed

from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.encoding.token_batches import make_batches, tokenize_texts
from modeling_condenser.hub.contract import CONTRACT_FILE, EncodingContract
from modeling_condenser.hub.model_folder import MODULES_FILE, find_model_folder, read_config
from modeling_condenser.modeling_condenser import CondenserForMaskedLM, CondenserForPreTraining
from modeling_condenser.positions import n_positions
from modeling_condenser.pretraining.arguments import PretrainingRecipe
from modeling_condenser.pretraining.data import load_documents
from modeling_condenser.pretraining.pretrain import open_model, open_tokenizer
from modeling_condenser.runs.checkpoints import is_complete
from modeling_condenser.runs.recipe import fill
from modeling_condenser.runs.run_folder import MODEL_FOLDER, RECIPE_FILE, RUN_FILE

logger = logging.getLogger(__name__)

TOKENS_PER_BATCH = 2048


@dataclass(frozen=True)
class Subject:
    """An opened model."""

    encoder: Any  # the plain encoder
    tokenizer: Any
    max_length: int  # longest text in tokens
    condenser: CondenserForPreTraining | None = None  # the whole model, if it has a head
    retriever: Retriever | None = None  # of an export or an encoder; otherwise CLS is the vector

    @classmethod
    def of_model(cls, model: Any, tokenizer: Any, *, max_length: int) -> "Subject":
        """Take a `CondenserForPreTraining` or `CondenserForMaskedLM` in memory."""
        encoder = model.condenser.encoder
        longest = min(max_length, n_positions(encoder) or max_length)
        # By name, because remote code has classes of its own.
        return cls(encoder, tokenizer, longest, model if hasattr(model, "run_head") else None)

    @classmethod
    def open(cls, name: str | Path, *, max_length: int) -> "Subject":
        """Open a pre-training checkpoint, an export, a retriever or any encoder.

        The vector of an encoder whose files do not state a pooling is CLS.

        Raises:
            FileNotFoundError: there is no such model.
        """
        folder = find_model_folder(name)
        config = read_config(folder)
        if config.get("model_type") == "condenser":
            has_head = "CondenserForMaskedLM" not in (config.get("architectures") or ())
            opened: Any = CondenserForPreTraining if has_head else CondenserForMaskedLM
            device = "cuda" if torch.cuda.is_available() else "cpu"
            model = opened.from_pretrained(folder).eval().to(device)
            tokenizer = AutoTokenizer.from_pretrained(folder)
            return cls.of_model(model, tokenizer, max_length=max_length)
        states_pooling = any((folder / name).is_file() for name in (CONTRACT_FILE, MODULES_FILE))
        retriever = Retriever(folder, pooling=None if states_pooling else "cls")
        transformer: Any = retriever.model[0]
        longest = min(max_length, n_positions(transformer.model) or max_length)
        own = retriever.contract
        retriever.contract = replace(
            own,
            query_max_length=min(own.query_max_length, longest),
            passage_max_length=min(own.passage_max_length, longest),
        )
        return cls(transformer.model, retriever.model.tokenizer, longest, retriever=retriever)

    @property
    def contract(self) -> EncodingContract:
        """How a Condenser in memory encodes."""
        return EncodingContract(self.max_length, self.max_length)

    def batches(self, texts: Sequence[str]) -> Iterator[tuple[np.ndarray, dict[str, torch.Tensor]]]:
        """Batches of texts of similar length on the model's device, each with its texts' rows."""
        tokens = tokenize_texts(self.tokenizer, texts, max_length=self.max_length)
        batches = make_batches(tokens, tokenizer=self.tokenizer, token_budget=TOKENS_PER_BATCH)
        for rows, batch in batches:
            yield rows, {name: part.to(self.encoder.device) for name, part in batch.items()}

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of queries, (N, D) float32."""
        if self.retriever is not None:
            return self.retriever.encode_queries(texts)
        return self._encode(texts)

    def encode_passages(self, passages: Dataset | Sequence[str]) -> np.ndarray:
        """Vectors of texts, or of passages with columns `title` and `text`, (N, D) float32."""
        if self.retriever is not None:
            return self.retriever.encode_passages(passages)
        if isinstance(passages, Dataset):
            rows = zip(passages["title"], passages["text"], strict=True)
            passages = [self.contract.passage(title, text) for title, text in rows]
        return self._encode(passages)

    @torch.no_grad()
    def _encode(self, texts: Sequence[str]) -> np.ndarray:
        vectors = np.empty((len(texts), self.encoder.config.hidden_size), np.float32)
        for rows, batch in self.batches(texts):
            late = self.encoder(**batch).last_hidden_state[:, 0]  # (B, H)
            vectors[rows] = late.float().cpu().numpy()
        return vectors


@dataclass(frozen=True)
class Measurable:
    """A model that can be opened to be measured."""

    label: str  # in tables and pictures
    open: Callable[..., Subject]  # with `max_length`
    run: Path | None = None  # folder of the run that is measured as a whole
    progress: Mapping[str, int] = field(default_factory=dict)  # in the run; log's names


def find_models(names: Sequence[str]) -> list[Measurable]:
    """The models of folders and Hub names; the folder of a run stands for all of its models."""
    if not names or len(set(names)) < len(names):
        raise ValueError(f"models is {', '.join(names) or 'empty'}: name each model once.")
    models = []
    for name in names:
        if read_run_settings(Path(name)):
            models += models_of_run(Path(name), prefix=f"{name}, " if len(names) > 1 else "")
        else:
            models.append(single_model(name, name))
    return models


def single_model(name: str | Path, label: str) -> Measurable:
    """A model by folder or Hub name, which must exist."""
    return Measurable(label, partial(Subject.open, find_model_folder(name)))


def read_run_settings(folder: Path) -> dict[str, Any]:
    """The settings of a pre-training run; empty for another folder."""
    file = folder / RECIPE_FILE
    settings = yaml.safe_load(file.read_text()) if file.is_file() else {}
    return settings if "corpus" in settings else {}


def read_corpus(settings: Mapping[str, Any]) -> Dataset | IterableDataset:
    """The text of pre-training settings."""
    recipe = pretraining_recipe(settings)
    return load_documents(recipe.sources, streaming=recipe.streaming)


def pretraining_recipe(settings: Mapping[str, Any]) -> PretrainingRecipe:
    """The part of pre-training settings that is not of the Trainer."""
    names = {own.name for own in fields(PretrainingRecipe)}
    (recipe,) = fill({n: v for n, v in settings.items() if n in names}, PretrainingRecipe)
    return recipe


def models_of_run(run: Path, *, prefix: str) -> list[Measurable]:
    """Start, complete checkpoints and final model of a run, in the order of their steps."""
    found: dict[int, tuple[str, Callable[..., Subject], int]] = {}  # the last is tokens seen
    for folder in filter(is_complete, run.glob("checkpoint-*")):
        state = json.loads((folder / "trainer_state.json").read_text())
        step, tokens = state["global_step"], state["num_input_tokens_seen"]
        found[step] = (f"step {step:,}", partial(Subject.open, folder), tokens)
    if (run / MODEL_FOLDER).is_dir():
        record = json.loads((run / RUN_FILE).read_text())
        step, tokens = record["steps"], record["tokens_seen"]
        found[step] = (f"end, step {step:,}", partial(Subject.open, run / MODEL_FOLDER), tokens)
    if not found:
        raise ValueError(f"{run} has no complete checkpoint and no {MODEL_FOLDER}: train it first.")
    settings = read_run_settings(run)
    try:
        find_model_folder(settings["encoder"])
        found[0] = ("start", partial(_open_start, settings), 0)
    except FileNotFoundError as error:
        logger.warning("The start of %s is not measured: %s", run, error)
    return [
        Measurable(prefix + label, opened, run, {"step": step, "num_input_tokens_seen": tokens})
        for step, (label, opened, tokens) in sorted(found.items())
    ]


def _open_start(settings: Mapping[str, Any], *, max_length: int) -> Subject:
    """Make the model that training began with again, from the recipe's encoder and seed."""
    recipe = pretraining_recipe(settings)
    set_seed(settings.get("seed", TrainingArguments.seed))  # as `pretrain` does
    model = open_model(recipe).eval()
    return Subject.of_model(model, open_tokenizer(recipe), max_length=max_length)
