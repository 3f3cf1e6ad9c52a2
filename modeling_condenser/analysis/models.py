"""The models that are measured: opened from files, or taken from a training that is running."""

import dataclasses
import json
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from datasets import Dataset
from transformers import AutoTokenizer, set_seed

from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.encoding.token_batches import padded_batches, tokenize_texts
from modeling_condenser.hub.contract import CONTRACT_FILE
from modeling_condenser.hub.model_folder import CONFIG_FILE, MODULES_FILE, find_model_folder
from modeling_condenser.modeling_condenser import CondenserForMaskedLM, CondenserForPreTraining
from modeling_condenser.positions import n_positions
from modeling_condenser.pretraining.arguments import PretrainingRecipe
from modeling_condenser.pretraining.pretrain import open_model, open_tokenizer
from modeling_condenser.runs.checkpoints import is_complete
from modeling_condenser.runs.recipe import fill
from modeling_condenser.runs.run_folder import MODEL_FOLDER, RECIPE_FILE, RUN_FILE

logger = logging.getLogger(__name__)

_TOKENS_PER_BATCH = 2048
_DEFAULT_SEED = 42  # transformers.TrainingArguments.seed


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
        longest = _longest_text(encoder, tokenizer, max_length)
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
        file = folder / CONFIG_FILE
        config = json.loads(file.read_text()) if file.is_file() else {}
        if config.get("model_type") == "condenser":
            has_head = "CondenserForMaskedLM" not in (config.get("architectures") or ())
            opened: Any = CondenserForPreTraining if has_head else CondenserForMaskedLM
            device = "cuda" if torch.cuda.is_available() else "cpu"
            model = opened.from_pretrained(folder).eval().to(device)
            tokenizer = AutoTokenizer.from_pretrained(folder)
            return cls.of_model(model, tokenizer, max_length=max_length)
        retriever = Retriever(folder, pooling=None if states_pooling(folder) else "cls")
        encoder, tokenizer = retriever.model[0].model, retriever.model.tokenizer
        longest = _longest_text(encoder, tokenizer, max_length)
        contract = retriever.contract
        retriever.contract = dataclasses.replace(
            contract,
            query_max_length=min(contract.query_max_length, longest),
            passage_max_length=min(contract.passage_max_length, longest),
        )
        return cls(encoder, tokenizer, longest, retriever=retriever)

    def batches(self, texts: Sequence[str]) -> Iterator[tuple[np.ndarray, dict[str, torch.Tensor]]]:
        """Batches of texts of similar length on the model's device, each with its texts' rows."""
        padded = padded_batches(
            tokenize_texts(self.tokenizer, texts, max_length=self.max_length),
            tokenizer=self.tokenizer,
            token_budget=_TOKENS_PER_BATCH,
            max_length=self.max_length,
        )
        for rows, batch in padded:
            yield rows, {name: part.to(self.encoder.device) for name, part in batch.items()}

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of queries, (N, D) float32."""
        if self.retriever is not None:
            return self.retriever.encode_queries(texts)
        return self._encode(texts)

    def encode_passages(self, passages: Dataset) -> np.ndarray:
        """Vectors of passages with the columns `title` and `text`, (N, D) float32."""
        if self.retriever is not None:
            return self.retriever.encode_passages(passages)
        rows = zip(passages["title"], passages["text"], strict=True)
        return self._encode([f"{title} {text}" if title else text for title, text in rows])

    @torch.no_grad()
    def _encode(self, texts: Sequence[str]) -> np.ndarray:
        vectors = np.empty((len(texts), self.encoder.config.hidden_size), np.float32)
        for rows, batch in self.batches(texts):
            late = self.encoder(**batch).last_hidden_state[:, 0]  # (B, H)
            vectors[rows] = late.float().cpu().numpy()
        return vectors


def states_pooling(folder: Path) -> bool:
    """Whether an encoder's files state how token vectors become one vector."""
    return any((folder / file).is_file() for file in (CONTRACT_FILE, MODULES_FILE))


def _longest_text(encoder: Any, tokenizer: Any, at_most: int) -> int:
    limits = (tokenizer.model_max_length, n_positions(encoder), at_most)
    return int(min(limit for limit in limits if limit is not None))


@contextmanager
def undisturbed(model: torch.nn.Module | None = None) -> Iterator[None]:
    """Restore global random states and a model's modes; it is in evaluation mode meanwhile."""
    modules = [] if model is None else list(model.modules())
    modes = [module.training for module in modules]
    python, numpy = random.getstate(), np.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=list(devices)):
        try:
            for module in modules:
                module.training = False
            yield
        finally:
            for module, was_training in zip(modules, modes, strict=True):
                module.training = was_training
            random.setstate(python)
            np.random.set_state(numpy)


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
    short = ["/".join(Path(name).parts[-2:]) for name in names]
    labels = short if len(set(short)) == len(names) else names
    models = []
    for name, label in zip(names, labels, strict=True):
        if is_pretraining_run(Path(name)):
            prefix = f"{label}, " if len(names) > 1 else ""
            own = models_of_run(Path(name))
            models += [dataclasses.replace(model, label=prefix + model.label) for model in own]
        else:
            models.append(single_model(name, label))
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
    names = {field.name for field in dataclasses.fields(PretrainingRecipe)}
    (recipe,) = fill({n: v for n, v in settings.items() if n in names}, PretrainingRecipe)
    return recipe


def models_of_run(run: Path) -> list[Measurable]:
    """Start, complete checkpoints and final model of a run, in the order of their steps."""
    trained: dict[int, Measurable] = {}
    for folder in run.glob("checkpoint-*"):
        if not is_complete(folder):
            logger.warning("%s is incomplete, so it is not measured.", folder)
            continue
        state = json.loads((folder / "trainer_state.json").read_text())
        step, tokens = state["global_step"], state.get("num_input_tokens_seen", 0)
        facts = {"step": step, "tokens_seen": tokens, "run": run}
        trained[step] = single_model(folder, f"step {step:,}", **facts)
    if (run / MODEL_FOLDER / CONFIG_FILE).is_file():
        record = json.loads((run / RUN_FILE).read_text())
        step = record["steps"]
        facts = {"step": step, "tokens_seen": record.get("tokens_seen"), "run": run}
        trained[step] = single_model(run / MODEL_FOLDER, f"end, step {step:,}", **facts)
    if not trained:
        raise ValueError(f"{run} has no complete checkpoint and no {MODEL_FOLDER}: train it first.")
    return [*_start_of_run(run), *(trained[step] for step in sorted(trained))]


def _start_of_run(run: Path) -> list[Measurable]:
    """The model that training began with, made again from the recipe's encoder and seed."""
    settings = read_run_settings(run)
    recipe = pretraining_recipe(settings)
    try:
        find_model_folder(recipe.encoder)
    except FileNotFoundError as error:
        logger.warning("The start of %s is not measured: %s", run, error)
        return []

    def open_start(max_length: int) -> Subject:
        set_seed(int(settings.get("seed", _DEFAULT_SEED)))  # as `pretrain` does
        model = open_model(recipe).eval()
        return Subject.of_model(model, open_tokenizer(recipe), max_length=max_length)

    return [Measurable("start", open_start, 0, 0, run)]
