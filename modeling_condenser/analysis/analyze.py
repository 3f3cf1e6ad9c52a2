"""The command `condenser analyze`: figures, tables and pictures of models that are measured."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset, IterableDataset
from jinja2 import Template
from tqdm.auto import tqdm

from modeling_condenser.collection.load import load_passages
from modeling_condenser.hub import training_log
from modeling_condenser.hub.card import write_card
from modeling_condenser.hub.curves import draw_entropies, draw_readiness
from modeling_condenser.hub.markdown import escape
from modeling_condenser.hub.provenance import (
    publishable,
    read_pretraining,
    read_provenance,
    write_provenance,
)
from modeling_condenser.hub.training_log import (
    ENTROPY,
    ENTROPY_FILE,
    EVEN_ENTROPY,
    layer_entropies,
)
from modeling_condenser.pretraining.data import load_documents
from modeling_condenser.runs.recipe import fill
from modeling_condenser.runs.run_folder import MODEL_FOLDER, describe_machine, whole_folder
from modeling_condenser.runs.whole_files import write_json

from .models import (
    Measurable,
    find_models,
    is_pretraining_run,
    pretraining_recipe,
    read_run_settings,
)
from .readiness import measure_readiness
from .sample import Measuring, Sample

logger = logging.getLogger(__name__)

READINESS_FILE, REPORT_FILE = "readiness.json", "readiness.md"
_MOST_LINES = 10  # in the picture of entropies


@dataclass(frozen=True)
class AnalysisRecipe:
    """What to analyse.

    Attributes:
        models: folders or Hub names of checkpoints, exports, retrievers or encoders. The folder of
            a pre-training run stands for its start, its complete checkpoints and its final model.
        out: folder to write.
        corpus: text that the sample is taken from, as for pre-training. By default that of the
            first run among the models (or that a model is in), or else the collection's passages.
        card: whether to put the measures of a run on the card of its final model.
    """

    models: list[str]
    out: str
    corpus: Any = None
    card: bool = False


class Analysis(NamedTuple):
    """What was measured."""

    entries: Mapping[str, Mapping[str, float]]  # label -> measures, named as in a training log
    sample: Sample
    runs: Mapping[Path, Sequence[str]] = {}  # folder of a run -> labels of its models


def analyze(settings: Mapping[str, Any]) -> Analysis:
    """Measure models and write figures, report and pictures.

    Args:
        settings: fields of `AnalysisRecipe` and `Measuring`.

    Raises:
        FileNotFoundError: a model, the corpus or the collection does not exist.
        ValueError: a setting does not fit, or a model cannot be measured. Nothing was written.
    """
    recipe, measuring = fill(settings, AnalysisRecipe, Measuring)
    out = Path(recipe.out)
    if out.exists() and not (out / READINESS_FILE).is_file() and any(out.iterdir()):
        raise ValueError(f"{out} has other files: choose a new folder, or one of an analysis.")
    models = find_models(recipe.models)
    if recipe.card and not any(model.run for model in models):
        raise ValueError("card is true, but no model is a pre-training run: name a run's folder.")
    analysis = measure_models(models, Sample.choose(measuring, _find_documents(recipe, measuring)))
    write_analysis(analysis, out)
    for run, labels in analysis.runs.items() if recipe.card else ():
        _put_on_card(run, [analysis.entries[label] for label in labels])
    return analysis


def _find_documents(recipe: AnalysisRecipe, measuring: Measuring) -> Dataset | IterableDataset:
    """The text that the sample is taken from."""
    folders = [folder for name in recipe.models for folder in (Path(name), Path(name).parent)]
    runs = list(filter(is_pretraining_run, folders))
    if recipe.corpus is not None:
        settings = {"encoder": "", "corpus": recipe.corpus}
    elif runs:
        settings = read_run_settings(runs[0])
    elif measuring.collection is not None:
        return load_passages(measuring.collection)
    else:
        raise ValueError(
            "There is no text to measure on, because no model is in a pre-training run: name a "
            "collection (--collection FOLDER) or text (--corpus FILE)."
        )
    pretraining = pretraining_recipe(settings)
    return load_documents(pretraining.sources, streaming=pretraining.streaming)


def measure_models(models: Sequence[Measurable], sample: Sample) -> Analysis:
    """Open and measure one model after the other."""
    entries: dict[str, dict[str, float]] = {}
    runs: dict[Path, list[str]] = {}
    for model in tqdm(models, desc="measure", unit="model", disable=None):
        try:
            entry = measure_readiness(model.open(sample.measuring.max_length), sample)
        except ValueError as error:
            raise ValueError(f"{model.label} cannot be measured: {error}") from error
        when = {"step": model.step, "num_input_tokens_seen": model.tokens_seen}
        entries[model.label] = entry | {n: value for n, value in when.items() if value is not None}
        if model.run is not None:
            runs.setdefault(model.run, []).append(model.label)
    return Analysis(entries, sample, runs)


def write_analysis(analysis: Analysis, out: Path) -> None:
    """Write readiness.json, readiness.md and pictures to a folder."""
    entries = analysis.entries
    models = [{"label": label, **entry} for label, entry in entries.items()]
    shown = [model["label"] for model in training_log.spread(models, at_most=_MOST_LINES)]
    lines = {label: layer_entropies(entries[label]) for label in shown}
    even = entries[shown[0]][EVEN_ENTROPY]
    pictures = {ENTROPY_FILE: draw_entropies({"": lines}, even=even)}
    courses = {
        run.name: [entries[label] for label in labels]
        for run, labels in analysis.runs.items()
        if len(labels) > 1
    }
    if courses:
        pictures[training_log.READINESS_FILE] = draw_readiness(courses)
    settings = publishable(asdict(analysis.sample.measuring))
    facts = {"settings": settings, "measured_on": analysis.sample.facts(), **describe_machine()}
    with whole_folder(out) as partial:
        for name, content in pictures.items():
            (partial / name).write_bytes(content)
        (partial / REPORT_FILE).write_text(f"# Readiness\n\n{report(analysis, list(pictures))}\n")
        write_json(partial / READINESS_FILE, {**facts, "models": models})


def report(analysis: Analysis, pictures: Sequence[str] = ()) -> str:
    """Tables and pictures as Markdown."""
    template = Template(Path(__file__).with_name("readiness.md.jinja").read_text("utf-8"))
    entries = list(analysis.entries.values())
    n_layers = max(len(layer_entropies(entry)) for entry in entries)
    return template.render(
        entries={escape(label): entry for label, entry in analysis.entries.items()},
        first=entries[0],
        sample=analysis.sample.facts(),
        how_to_read=training_log.HOW_TO_READ,
        measures=training_log.titled_measures(entries),
        layers={f"{ENTROPY}_layer_{number}": number for number in range(1, n_layers + 1)},
        even=entries[0][EVEN_ENTROPY],
        pictures=pictures,
    )


def _put_on_card(run: Path, entries: Sequence[Mapping[str, float]]) -> None:
    """Put the measures of a run into its final model's provenance and on its card."""
    folder = run / MODEL_FOLDER
    if not folder.is_dir():
        logger.warning("%s is not finished, so it has no card yet.", run)
        return
    *earlier, last = read_provenance(folder) or read_pretraining(run)
    readiness = training_log.readiness_entries(entries)
    write_provenance(folder, [*earlier, replace(last, readiness=readiness)])
    write_card(folder)
