"""The models of a pre-training run, from its start to its end: a run folder in, names out."""

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml
from transformers import set_seed

from modeling_condenser.hub.model_folder import CONFIG_FILE, find_model_folder
from modeling_condenser.pretraining.pretrain import open_model, open_tokenizer
from modeling_condenser.publishing.export import resolve_checkpoint
from modeling_condenser.repository.contract import CONTRACT_FILE
from modeling_condenser.runs.checkpoints import is_complete
from modeling_condenser.runs.run_folder import MODEL_FOLDER, RECIPE_FILE, RUN_FILE

from .subject import Subject, open_subject
from .while_training import own_recipe

logger = logging.getLogger(__name__)

_USUAL_SEED = 42  # transformers.TrainingArguments.seed


@dataclass(frozen=True)
class Measurable:
    """A model that can be opened to be measured.

    Attributes:
        label: in tables and pictures.
        open: opens it, for texts of so many tokens.
        step: of the run that it is of, where it is of one.
        tokens_seen: in that run.
        folder: its files; None where it is made anew.
    """

    label: str
    open: Callable[[int], Subject]
    step: int | None = None
    tokens_seen: int | None = None
    folder: Path | None = None


def is_pretraining_run(folder: Path) -> bool:
    """Whether a folder is a run of pre-training, finished or not."""
    is_finetuned = (folder / MODEL_FOLDER / CONTRACT_FILE).is_file()
    holds_models = (folder / MODEL_FOLDER).is_dir() or any(folder.glob("checkpoint-*"))
    return (folder / RECIPE_FILE).is_file() and holds_models and not is_finetuned


def models_of_run(run: Path) -> list[Measurable]:
    """Start, whole checkpoints and final model of a run, in the order of their steps.

    The start is made anew from the encoder and the seed that the recipe names; where that encoder
    is gone, it is left out with a warning. The last checkpoint is left out where the final model is
    the same.

    Raises:
        ValueError: the run holds no whole model.
    """
    final = _final(run)
    checkpoints = [c for c in _checkpoints(run) if final is None or c.step != final.step]
    models = [*_start(run), *checkpoints, *([final] if final else [])]
    if not checkpoints and final is None:
        raise ValueError(f"{run} holds no whole checkpoint and no {MODEL_FOLDER}/: train it first.")
    return models


def _start(run: Path) -> Iterator[Measurable]:
    settings = yaml.safe_load((run / RECIPE_FILE).read_text(encoding="utf-8")) or {}
    recipe = own_recipe(settings)
    try:
        find_model_folder(recipe.encoder)
    except FileNotFoundError as error:
        logger.warning("The start of %s is not measured: %s", run, error)
        return

    def open_start(max_length: int) -> Subject:
        set_seed(int(settings.get("seed", _USUAL_SEED)))  # as `pretrain` does before it opens it
        model = open_model(recipe).eval()
        return Subject.of_model(model, open_tokenizer(recipe), max_length=max_length)

    yield Measurable("start", open_start, 0, 0)


def _checkpoints(run: Path) -> list[Measurable]:
    found = []
    for folder in run.glob("checkpoint-*"):
        if not is_complete(folder):
            logger.warning("%s is not measured: not written to its end.", folder)
            continue
        state = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
        step, tokens = int(state["global_step"]), int(state.get("num_input_tokens_seen", 0))
        found.append(Measurable(f"step {step:,}", _opener(folder), step, tokens, folder))
    return sorted(found, key=lambda model: model.step or 0)


def _final(run: Path) -> Measurable | None:
    folder = run / MODEL_FOLDER
    if not (folder / CONFIG_FILE).is_file():
        return None
    record = run / RUN_FILE
    facts = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    step, tokens = facts.get("steps"), facts.get("tokens_seen")
    label = "end" if step is None else f"end, step {step:,}"
    return Measurable(label, _opener(folder), step, tokens, folder)


def _opener(folder: str | Path) -> Callable[[int], Subject]:
    return lambda max_length: open_subject(folder, max_length=max_length)


def single_model(name: str, label: str) -> Measurable:
    """A model by its name, which must exist, though it is opened later.

    Raises:
        FileNotFoundError: it does not.
    """
    folder = find_model_folder(resolve_checkpoint(name))
    return Measurable(label, _opener(folder), folder=folder)
