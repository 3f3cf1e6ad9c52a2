"""Pre-training that is measured as it goes: a recipe with `readiness` in, a run folder out."""

import dataclasses
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from modeling_condenser.pretraining.arguments import PretrainingRecipe
from modeling_condenser.pretraining.corpus import load_documents
from modeling_condenser.pretraining.pretrain import READINESS, pretrain
from modeling_condenser.runs.recipe import fill

from .callback import ReadinessCallback
from .readiness import Instruments
from .settings import read_wanted


def pretrain_and_measure(settings: Mapping[str, Any]) -> Path:
    """Run a pre-training recipe, and measure readiness meanwhile where the recipe asks for it.

    Args:
        settings: as for `pretrain`, and perhaps `readiness`: a mapping of the fields of `Measuring`
            and `Rhythm`. The sample is taken from the recipe's own corpus.

    Returns:
        The folder of the trained model; its card has a section of readiness.

    Raises:
        ValueError: a setting does not fit; nothing has been written then.
        FileNotFoundError: corpus or collection does not exist.
    """
    if settings.get(READINESS) is None:
        return pretrain({name: value for name, value in settings.items() if name != READINESS})
    measuring, rhythm = read_wanted(settings[READINESS])
    recipe = own_recipe(settings)
    documents = load_documents(recipe.sources, streaming=recipe.streaming)
    instruments = Instruments.prepare(measuring, documents)
    return pretrain(
        settings,
        callbacks=[partial(ReadinessCallback, instruments=instruments, every=rhythm.every)],
        facts={READINESS: instruments.facts()},
    )


def own_recipe(settings: Mapping[str, Any]) -> PretrainingRecipe:
    """What of a pre-training recipe is not the Trainer's."""
    names = {field.name for field in dataclasses.fields(PretrainingRecipe)}
    own = {name: value for name, value in settings.items() if name in names}
    (recipe,) = fill(own, PretrainingRecipe)
    return recipe
