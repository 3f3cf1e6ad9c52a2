"""The command `condenser analyze`: measure models, and write figures and a table."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from tqdm.auto import tqdm

from modeling_condenser.collection.load import load_passages
from modeling_condenser.files.models import find_model_folder
from modeling_condenser.files.run_folder import (
    MODEL_FOLDER,
    RECIPE_FILE,
    all_checkpoints,
    atomic_folder,
    describe_machine,
    is_complete,
    write_json,
)
from modeling_condenser.files.settings import parse_settings
from modeling_condenser.pretraining.corpus import load_some
from modeling_condenser.publishing.markdown import escape

from .readiness import measure_model
from .recipe import AnalysisRecipe, Measuring
from .sample import Sample
from .titles import ENTROPY, titled_measures

READINESS_FILE, REPORT_FILE = "readiness.json", "readiness.md"
_LAYER = f"{ENTROPY}_layer_"


def analyze(**settings: Any) -> pd.DataFrame:
    """Measure models and write figures and a table.

    Args:
        **settings: fields of `AnalysisRecipe` and `Measuring`.

    Returns:
        A row for each measure, and a column for each model.

    Raises:
        FileNotFoundError: a model, the corpus or the collection does not exist.
        ValueError: a setting is wrong, or a model cannot be measured. Nothing is written.
    """
    recipe, measuring = parse_settings(settings, AnalysisRecipe, Measuring)
    out, corpus = Path(recipe.out), recipe.corpus
    own = {READINESS_FILE, REPORT_FILE}
    if out.is_file() or {file.name for file in out.glob("[!.]*")} - own:
        raise ValueError(f"{out} has other files: choose a new folder, or that of an analysis.")
    models: dict[str, Path] = {}
    for name in recipe.models:
        run = _read_pretraining(Path(name))
        corpus = corpus or run.get("corpus")
        models |= _list_run(Path(name)) if run else {name: find_model_folder(name)}
    if corpus is None and measuring.collection is None:
        raise ValueError("There is no text to measure on: state a collection, or text as corpus.")
    documents = load_some(corpus) if corpus else load_passages(str(measuring.collection))
    sample = Sample.choose(measuring, documents)
    entries = {}
    for name, folder in tqdm(models.items(), desc="measure", unit="model", disable=None):
        try:
            entries[name] = measure_model(folder, sample)
        except ValueError as error:
            raise ValueError(f"{name} cannot be measured: {error}") from error
    table = make_table(entries)
    write_analysis(out, entries, table, sample)
    return table


def _read_pretraining(folder: Path) -> dict[str, Any]:
    """The settings of a pre-training run; empty for another folder."""
    file = folder / RECIPE_FILE
    settings = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else {}
    has_start = "encoder" in settings or "encoder_config" in settings  # unlike an adaptation's
    is_finetuned = "collection" in settings or "data" in settings
    return settings if has_start and not is_finetuned else {}


def _list_run(run: Path) -> dict[str, Path]:
    """The complete checkpoints of a run, oldest first, and its final model, by their paths."""
    folders = [folder for folder in all_checkpoints(run) if is_complete(folder)]
    if (run / MODEL_FOLDER).is_dir():
        folders.append(run / MODEL_FOLDER)
    if not folders:
        raise ValueError(f"{run} has no complete checkpoint and no {MODEL_FOLDER}: train it first.")
    return {str(folder): folder for folder in folders}


def make_table(entries: dict[str, dict[str, float]]) -> pd.DataFrame:
    """A row for each measure, then for the entropy of each layer; a column for each model."""
    titles = titled_measures(list(entries.values()))
    n_layers = max(sum(name.startswith(_LAYER) for name in entry) for entry in entries.values())
    for layer in range(1, n_layers + 1):
        titles[f"{_LAYER}{layer}"] = f"CLS attention entropy, layer {layer}"
    columns = {}
    for name, entry in entries.items():
        columns[name] = {title: entry.get(measure) for measure, title in titles.items()}
    return pd.DataFrame(columns, dtype=float)


def write_analysis(
    out: Path, entries: dict[str, dict[str, float]], table: pd.DataFrame, sample: Sample
) -> None:
    """Write readiness.json and readiness.md to a folder."""
    facts = sample.facts()
    lines = [
        "# Readiness\n",
        f"Measured on {facts['texts']} texts and {facts['pairs']} pairs ({facts['pairs_are']}).\n",
        f"| measure | {' | '.join(map(escape, table))} |",
        f"| --- |{' ---: |' * len(table.columns)}",
    ]
    for title, values in table.iterrows():
        cells = ["" if pd.isna(value) else f"{value:.4f}" for value in values]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    content = {"settings": asdict(sample.measuring), "measured_on": facts, "models": entries}
    with atomic_folder(out) as partial:
        (partial / REPORT_FILE).write_text("\n".join([*lines, ""]), "utf-8")
        write_json(partial / READINESS_FILE, {**content, **describe_machine()})
