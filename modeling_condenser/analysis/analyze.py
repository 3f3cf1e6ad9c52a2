"""The command `condenser analyze`: measure models, and write figures, tables and pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from datasets import Dataset, IterableDataset
from jinja2 import Template
from tqdm.auto import tqdm
from transformers.trainer import TRAINER_STATE_NAME

from modeling_condenser.collection.load import load_passages
from modeling_condenser.files.atomic import atomic_folder, read_json, write_json
from modeling_condenser.files.models import find_model_folder
from modeling_condenser.files.run_folder import (
    MODEL_FOLDER,
    RECIPE_FILE,
    RUN_FILE,
    all_checkpoints,
    describe_machine,
    is_complete,
)
from modeling_condenser.files.settings import parse_settings
from modeling_condenser.pretraining.documents import load_documents
from modeling_condenser.publishing import provenance, training_log
from modeling_condenser.publishing.card import write_card
from modeling_condenser.publishing.markdown import escape

from .readiness import measure_model
from .recipe import AnalysisRecipe, Measuring
from .sample import Sample

READINESS_FILE, REPORT_FILE = "readiness.json", "readiness.md"
_MOST_LINES = 10  # in the plot of entropies

Entry = dict[str, Any]
"""A model's `label`, its measures and, in a run, its step, named as in a training log."""

Measurable = tuple[str | Path, Entry]
"""A model's folder or Hub name, and its entry before it is measured."""


def analyze(settings: Mapping[str, Any]) -> pd.DataFrame:
    """Measure models and write figures, report and pictures.

    Args:
        settings: fields of `AnalysisRecipe` and `Measuring`.

    Returns:
        A row for each measure, and a column for each model.

    Raises:
        FileNotFoundError: a model, the corpus or the collection does not exist.
        ValueError: a setting is wrong, or a model cannot be measured. Nothing is written.
    """
    recipe, measuring = parse_settings(settings, AnalysisRecipe, Measuring)
    out = Path(recipe.out)
    if out.exists() and not (out / READINESS_FILE).is_file() and any(out.iterdir()):
        raise ValueError(f"{out} has other files: choose a new folder, or that of an analysis.")
    runs = [name for name in recipe.models if read_run_settings(Path(name))]
    finished = [run for run in runs if Path(run, MODEL_FOLDER).is_dir()]
    if recipe.card and not finished:
        raise ValueError("card is true, but no model is a finished pre-training run: name one.")
    models: dict[str, list[Measurable]] = {}
    for name in recipe.models:
        prefix = f"{name}, " if len(recipe.models) > 1 else ""
        if name in runs:
            models[name] = models_of_run(Path(name), prefix)
        else:
            models[name] = [(find_model_folder(name), {"label": name})]
    sample = Sample.choose(measuring, _find_documents(recipe, measuring))
    measured = {name: measure_models(own, sample) for name, own in models.items()}
    courses = {run: measured[run] for run in runs if len(measured[run]) > 1}
    entries = list(chain(*measured.values()))
    write_analysis(out, entries, sample, courses=courses)
    for run in finished if recipe.card else ():
        _put_on_card(Path(run), measured[run])
    titles = training_log.titled_measures(entries)
    table = {entry["label"]: {t: entry.get(n) for n, t in titles.items()} for entry in entries}
    return pd.DataFrame(table)


def _find_documents(recipe: AnalysisRecipe, measuring: Measuring) -> Dataset | IterableDataset:
    """The text that the sample is taken from."""
    if recipe.corpus is not None:
        return load_documents(recipe.corpus)
    for name in map(Path, recipe.models):
        if settings := read_run_settings(name) or read_run_settings(name.parent):
            return load_documents(settings["corpus"])
    if measuring.collection is not None:
        return load_passages(measuring.collection)
    raise ValueError(
        "There is no text to measure on, because no model is in a pre-training run: name a "
        "collection (--collection FOLDER) or text (--corpus FILE)."
    )


def read_run_settings(folder: Path) -> dict[str, Any]:
    """The settings of a pre-training run; empty for another folder."""
    file = folder / RECIPE_FILE
    settings = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return settings if settings.keys() >= {"encoder", "corpus"} else {}  # unlike an adaptation's


def models_of_run(run: Path, prefix: str) -> list[Measurable]:
    """Complete checkpoints and final model of a run, in the order of their steps."""
    found = {}  # step -> name, folder and tokens seen
    for folder in filter(is_complete, all_checkpoints(run)):
        state = read_json(folder / TRAINER_STATE_NAME, {})
        found[state["global_step"]] = ("", folder, state[training_log.TOKENS])
    if (run / MODEL_FOLDER).is_dir():
        record = read_json(run / RUN_FILE, {})
        found[record["steps"]] = ("end, ", run / MODEL_FOLDER, record["tokens_seen"])
    if not found:
        raise ValueError(f"{run} has no complete checkpoint and no {MODEL_FOLDER}: train it first.")
    models: list[Measurable] = []
    for step, (name, folder, tokens) in sorted(found.items()):
        label = f"{prefix}{name}step {step:,}"
        models.append((folder, {"label": label, "step": step, training_log.TOKENS: tokens}))
    return models


def measure_models(models: Sequence[Measurable], sample: Sample) -> list[Entry]:
    """Open and measure models, one after the other."""
    entries = []
    for folder, entry in tqdm(models, desc="measure", unit="model", disable=None):
        try:
            entries.append({**entry, **measure_model(folder, sample)})
        except ValueError as error:
            raise ValueError(f"{entry['label']} cannot be measured: {error}") from error
    return entries


def write_analysis(
    out: Path,
    entries: Sequence[Entry],
    sample: Sample,
    *,
    courses: Mapping[str, Sequence[Entry]] | None = None,
) -> str:
    """Write readiness.json, readiness.md and plots to a folder, and return the report.

    `courses` are runs to plot over their steps: label -> entries.
    """
    shown = training_log.spread(entries, at_most=_MOST_LINES)
    panels = {"": {entry["label"]: entry for entry in shown}}
    pictures = {training_log.ENTROPY_FILE: training_log.draw_entropies(panels)}
    if courses:
        pictures[training_log.READINESS_PICTURE] = training_log.draw_curves(courses)
    template = Template(Path(__file__).with_name("readiness.md.jinja").read_text("utf-8"))
    n_layers = max(len(training_log.layer_entropies(entry)) for entry in entries)
    report = template.render(
        entries=entries,
        escape=escape,
        sample=sample.facts(),
        how_to_read=training_log.explain(entries),
        measures=training_log.titled_measures(entries),
        layers={f"{training_log.ENTROPY}_layer_{k}": k for k in range(1, n_layers + 1)},
        even=entries[0][training_log.EVEN_ENTROPY],
        pictures=list(pictures),
    )
    settings = provenance.publishable(asdict(sample.measuring))
    facts = {"settings": settings, "measured_on": sample.facts(), **describe_machine()}
    with atomic_folder(out) as partial:
        for name, content in pictures.items():
            (partial / name).write_bytes(content)
        (partial / REPORT_FILE).write_text(f"# Readiness\n\n{report}\n", "utf-8")
        write_json(partial / READINESS_FILE, {**facts, "models": entries})
    return report


def _put_on_card(run: Path, entries: Sequence[Entry]) -> None:
    """Put the measures of a run into its final model's provenance and on its card."""
    folder = run / MODEL_FOLDER
    *earlier, last = provenance.read_provenance(folder)
    readiness = training_log.readiness_entries(entries)
    provenance.write_provenance(folder, [*earlier, replace(last, readiness=readiness)])
    write_card(folder)
