"""The models that are measured: opened from files, or taken from a training that is running."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from datasets import Dataset
from transformers import AutoTokenizer, TrainingArguments, set_seed

from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.encoding.token_batches import make_batches, tokenize_texts
from modeling_condenser.hub.contract import CONTRACT_FILE
from modeling_condenser.hub.model_folder import MODULES_FILE, find_model_folder, read_config
from modeling_condenser.modeling_condenser import CondenserForMaskedLM, CondenserForPreTraining
from modeling_condenser.positions import n_positions
from modeling_condenser.pretraining.arguments import PretrainingRecipe
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
        encoder, tokenizer = transformer.model, retriever.model.tokenizer
        longest = min(max_length, n_positions(encoder) or max_length)
        own = retriever.contract
        retriever.contract = replace(
            own,
            query_max_length=min(own.query_max_length, longest),
            passage_max_length=min(own.passage_max_length, longest),
        )
        return cls(encoder, tokenizer, longest, retriever=retriever)

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

    def encode_passages(
        self, texts: Sequence[str], titles: Sequence[str] | None = None
    ) -> np.ndarray:
        """Vectors of passages, (N, D) float32."""
        titles = titles or [""] * len(texts)
        if self.retriever is not None:
            passages = Dataset.from_dict({"title": titles, "text": texts})
            return self.retriever.encode_passages(passages)
        return self._encode(
            [
                f"{title} {text}" if title else text
                for title, text in zip(titles, texts, strict=True)
            ]
        )

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
    open: Callable[[int], Subject]  # for texts of so many tokens
    step: int | None = None
    tokens_seen: int | None = None
    run: Path | None = None  # folder of the run that is measured as a whole


def find_models(names: Sequence[str]) -> list[Measurable]:
    """The models of folders and Hub names; the folder of a run stands for all of its models."""
    if not names or len(set(names)) < len(names):
        raise ValueError(f"models is {', '.join(names) or 'empty'}: name each model once.")
    models = []
    for name in names:
        if is_pretraining_run(Path(name)):
            models += models_of_run(Path(name), prefix=f"{name}, " if len(names) > 1 else "")
        else:
            models.append(single_model(name, name))
    return models


def single_model(name: str | Path, label: str, **facts: Any) -> Measurable:
    """A model by folder or Hub name, which must exist."""
    folder = find_model_folder(name)
    return Measurable(label, lambda longest: Subject.open(folder, max_length=longest), **facts)


def is_pretraining_run(folder: Path) -> bool:
    return (folder / RECIPE_FILE).is_file() and "corpus" in read_run_settings(folder)


def read_run_settings(run: Path) -> dict[str, Any]:
    return yaml.safe_load((run / RECIPE_FILE).read_text(encoding="utf-8")) or {}


def pretraining_recipe(settings: Mapping[str, Any]) -> PretrainingRecipe:
    """The part of pre-training settings that is not of the Trainer."""
    names = {field.name for field in fields(PretrainingRecipe)}
    (recipe,) = fill({n: v for n, v in settings.items() if n in names}, PretrainingRecipe)
    return recipe


def models_of_run(run: Path, *, prefix: str = "") -> list[Measurable]:
    """Start, complete checkpoints and final model of a run, in the order of their steps."""
    trained: dict[int, tuple[Path, int | None]] = {}  # step -> folder, tokens seen
    for folder in filter(is_complete, run.glob("checkpoint-*")):
        state = json.loads((folder / "trainer_state.json").read_text())
        trained[state["global_step"]] = (folder, state.get("num_input_tokens_seen", 0))
    if (run / MODEL_FOLDER).is_dir():
        record = json.loads((run / RUN_FILE).read_text())
        trained[record["steps"]] = (run / MODEL_FOLDER, record.get("tokens_seen"))
    if not trained:
        raise ValueError(f"{run} has no complete checkpoint and no {MODEL_FOLDER}: train it first.")
    models = _start_of_run(run, f"{prefix}start")
    for step, (folder, tokens_seen) in sorted(trained.items()):
        label = f"{prefix}{'end, ' if folder.name == MODEL_FOLDER else ''}step {step:,}"
        models.append(single_model(folder, label, step=step, tokens_seen=tokens_seen, run=run))
    return models


def _start_of_run(run: Path, label: str) -> list[Measurable]:
    """The model that training began with, made again from the recipe's encoder and seed."""
    settings = read_run_settings(run)
    recipe = pretraining_recipe(settings)
    try:
        find_model_folder(recipe.encoder)
    except FileNotFoundError as error:
        logger.warning("The start of %s is not measured: %s", run, error)
        return []

    def open_start(max_length: int) -> Subject:
        set_seed(settings.get("seed", TrainingArguments.seed))  # as `pretrain` does
        model = open_model(recipe).eval()
        return Subject.of_model(model, open_tokenizer(recipe), max_length=max_length)

    return [Measurable(label, open_start, 0, 0, run)]
