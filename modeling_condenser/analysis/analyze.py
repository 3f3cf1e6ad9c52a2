"""The analysis stage: models or a run in; readiness.json, readiness.md and pictures out."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from datasets import Dataset, IterableDataset
from tqdm.auto import tqdm

from modeling_condenser.collection.load import load_passages
from modeling_condenser.pretraining.corpus import Source, load_documents
from modeling_condenser.repository.card import write_card
from modeling_condenser.repository.provenance import (
    publishable,
    read_pretraining,
    read_provenance,
    write_provenance,
)
from modeling_condenser.repository.readiness import readiness_entries
from modeling_condenser.runs.recipe import fill
from modeling_condenser.runs.run_folder import (
    MODEL_FOLDER,
    RECIPE_FILE,
    describe_machine,
    whole_folder,
)
from modeling_condenser.runs.whole_files import whole_file, write_json

from .readiness import Instruments, measure_readiness
from .report import Analysis, draw_analysis, write_report
from .run_models import Measurable, is_pretraining_run, models_of_run, single_model
from .settings import Measuring
from .subject import undisturbed_randomness
from .while_training import own_recipe

logger = logging.getLogger(__name__)

READINESS_FILE, REPORT_FILE = "readiness.json", "readiness.md"


@dataclass(frozen=True)
class AnalysisRecipe:
    """What to analyse.

    Attributes:
        models: folders or Hub names: checkpoints of pre-training, exports, retrievers, encoders. A
            run of pre-training stands for its start, its whole checkpoints and its final model.
        out: folder to write, whole or not at all.
        corpus: file of text, or Hub data set, that the sample is taken from, as for pre-training.
            By default the corpus of the first run (or of a model in a run) among the models; else
            the collection's passages.
        card: whether to put the figures of a run on the card of its final model.
    """

    models: list[str]
    out: str
    corpus: Any = None
    card: bool = False


def analyze(settings: Mapping[str, Any], *, progress: bool = True) -> Analysis:
    """Measure models and write what was found.

    Args:
        settings: fields of `AnalysisRecipe` and `Measuring`.
        progress: whether to show a bar.

    Raises:
        FileNotFoundError: a model, the corpus or the collection does not exist.
        ValueError: a setting does not fit, or a model cannot be measured. Nothing is written then.
    """
    recipe, measuring = fill(settings, AnalysisRecipe, Measuring)
    out = Path(recipe.out)
    _refuse_foreign(out)
    models, runs = find_models(recipe.models)
    if recipe.card and not runs:
        raise ValueError(
            "card is true, but none of the models is a run of pre-training: only a run's figures "
            "have a place on the card of its final model. Name the run's folder."
        )
    documents = _find_documents(recipe, measuring)
    instruments = Instruments.prepare(measuring, documents)
    analysis = replace(
        measure_models(models, instruments, progress=progress),
        runs=runs,
        facts={
            "settings": publishable(asdict(measuring)),
            "measured_on": instruments.facts(),
            **describe_machine(),
        },
    )
    write_analysis(analysis, out)
    if recipe.card:
        for name, numbers in runs.items():
            _put_on_card(analysis, Path(name), numbers)
    return analysis


def find_models(names: Sequence[str]) -> tuple[list[Measurable], dict[str, list[int]]]:
    """The models that names stand for, and which of them are of which run.

    Raises:
        ValueError: a model is named twice, or none.
    """
    if not names:
        raise ValueError("No model came: name one, or the folder of a run.")
    if len(set(names)) < len(names):
        raise ValueError(f"A model is named twice among {', '.join(names)}: name each once.")
    labels = dict(zip(names, _labels(names), strict=True))
    models: list[Measurable] = []
    runs: dict[str, list[int]] = {}
    for name, label in labels.items():
        if not is_pretraining_run(Path(name)):
            models.append(single_model(name, label))
            continue
        own = models_of_run(Path(name))
        runs[name] = list(range(len(models), len(models) + len(own)))
        prefix = f"{label}, " if len(names) > 1 else ""
        models += [replace(model, label=f"{prefix}{model.label}") for model in own]
    return models, runs


def _labels(names: Sequence[str]) -> list[str]:
    """The last parts of paths, as many as tell the models apart."""
    paths = [Path(name).parts for name in names]
    for n in range(1, max(map(len, paths)) + 1):
        labels = ["/".join(parts[-n:]) for parts in paths]
        if len(set(labels)) == len(labels) and MODEL_FOLDER not in labels:
            return labels
    return list(names)


def measure_models(
    models: Sequence[Measurable], instruments: Instruments, *, progress: bool = True
) -> Analysis:
    """Open and measure one model after the other."""
    found = []
    for model in tqdm(models, desc="measure", unit="model", disable=not progress):
        # Making a start anew draws from the global generators.
        with undisturbed_randomness():
            subject = model.open(instruments.measuring.max_length)
        try:
            found.append(measure_readiness(subject, instruments))
        except ValueError as error:
            raise ValueError(f"{model.label} cannot be measured: {error}") from error
    return Analysis(models, found)


def write_analysis(analysis: Analysis, out: Path) -> None:
    """Write figures, report and pictures to a folder, whole or not at all."""
    with whole_folder(out) as partial:
        pictures = draw_analysis(analysis)
        for name, content in pictures.items():
            with whole_file(partial / name) as file:
                file.write(content)
        with whole_file(partial / REPORT_FILE) as file:
            file.write(write_report(analysis, list(pictures)).encode())
        write_json(
            partial / READINESS_FILE,
            {
                **analysis.facts,
                "models": [
                    {"label": m.label, "step": m.step, "tokens_seen": m.tokens_seen, **asdict(r)}
                    for m, r in zip(analysis.models, analysis.readiness, strict=True)
                ],
            },
        )


def _find_documents(recipe: AnalysisRecipe, measuring: Measuring) -> Dataset | IterableDataset:
    """The text that the sample is taken from."""
    if recipe.corpus is not None:
        parts = recipe.corpus if isinstance(recipe.corpus, list) else [recipe.corpus]
        return load_documents(
            [
                fill(part, Source)[0] if isinstance(part, Mapping) else Source(str(part))
                for part in parts
            ]
        )
    for name in recipe.models:
        for folder in (Path(name), Path(name).resolve().parent):
            if is_pretraining_run(folder):
                settings = yaml.safe_load((folder / RECIPE_FILE).read_text(encoding="utf-8"))
                own = own_recipe(settings)
                return load_documents(own.sources, streaming=own.streaming)
    if measuring.collection is not None:
        return load_passages(measuring.collection)
    raise ValueError(
        "There is no text to measure on: none of the models lies in a run of pre-training. Name a "
        "collection (--collection FOLDER) or a file of text (--corpus FILE)."
    )


def _put_on_card(analysis: Analysis, run: Path, numbers: Sequence[int]) -> None:
    """Put the figures of a run into the provenance of its final model, and so on its card."""
    folder = run / MODEL_FOLDER
    if not folder.is_dir():
        logger.warning("%s is not finished, so it has no card yet.", run)
        return
    stages = read_provenance(folder) or read_pretraining(run)
    entries = readiness_entries([analysis.entry(number) for number in numbers])
    write_provenance(folder, [*stages[:-1], replace(stages[-1], readiness=entries)])
    write_card(folder)


def _refuse_foreign(out: Path) -> None:
    is_taken = out.is_file() or (out.is_dir() and any(out.iterdir()))
    if is_taken and not (out / READINESS_FILE).is_file():
        raise ValueError(f"{out} exists and is no earlier analysis: choose another folder.")
