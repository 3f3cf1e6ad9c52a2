"""The command `condenser analyze`: figures, tables and pictures of models that are measured."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset, IterableDataset
from tqdm.auto import tqdm

from modeling_condenser.collection.load import load_passages
from modeling_condenser.hub.card import write_card
from modeling_condenser.hub.curves import draw_entropies, draw_readiness
from modeling_condenser.hub.markdown import escape, table
from modeling_condenser.hub.provenance import (
    publishable,
    read_pretraining,
    read_provenance,
    write_provenance,
)
from modeling_condenser.hub.training_log import (
    ENTROPY_FILE,
    EVEN_ENTROPY,
    HOW_TO_READ,
    layer_entropies,
    readiness_entries,
    readiness_table,
    spread,
    titled_measures,
)
from modeling_condenser.hub.training_log import READINESS_FILE as COURSE_FILE
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
    undisturbed,
)
from .readiness import measure_readiness
from .sample import Measuring, Sample

logger = logging.getLogger(__name__)

READINESS_FILE, REPORT_FILE = "readiness.json", "readiness.md"
_MOST_LINES = 10  # in the picture of entropies

Entries = Mapping[str, Mapping[str, float]]
"""Label of a model -> its measures, named as in a training log."""


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

    entries: Entries
    facts: Mapping[str, Any]  # settings, sample and machine
    runs: Mapping[Path, Sequence[str]]  # folder of a run -> labels of its models


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
    sample = Sample.choose(measuring, _find_documents(recipe, measuring))
    analysis = measure_models(models, sample)
    write_analysis(analysis, out)
    if recipe.card:
        for run, labels in analysis.runs.items():
            _put_on_card(run, [analysis.entries[label] for label in labels])
    return analysis


def measure_models(models: Sequence[Measurable], sample: Sample) -> Analysis:
    """Open and measure one model after the other."""
    entries: dict[str, dict[str, float]] = {}
    runs: dict[Path, list[str]] = {}
    for model in tqdm(models, desc="measure", unit="model", disable=None):
        with undisturbed():  # a start that is made again draws random weights
            subject = model.open(sample.measuring.max_length)
        try:
            entry = measure_readiness(subject, sample)
        except ValueError as error:
            raise ValueError(f"{model.label} cannot be measured: {error}") from error
        when = {"step": model.step, "num_input_tokens_seen": model.tokens_seen}
        entries[model.label] = entry | {n: value for n, value in when.items() if value is not None}
        if model.run is not None:
            runs.setdefault(model.run, []).append(model.label)
    settings = publishable(asdict(sample.measuring))
    facts = {"settings": settings, "measured_on": sample.facts(), **describe_machine()}
    return Analysis(entries, facts, runs)


def write_analysis(analysis: Analysis, out: Path) -> None:
    """Write readiness.json, readiness.md and pictures to a folder."""
    entries = analysis.entries
    listed = [{"label": label, **entry} for label, entry in entries.items()]
    shown = [model["label"] for model in spread(listed, at_most=_MOST_LINES)]
    lines = {label: layer_entropies(entries[label]) for label in shown}
    even = entries[shown[0]][EVEN_ENTROPY]
    pictures = {ENTROPY_FILE: draw_entropies({"": lines}, even=even)}
    courses = {
        run.name: [entries[label] for label in labels]
        for run, labels in analysis.runs.items()
        if len(labels) > 1
    }
    if courses:
        pictures[COURSE_FILE] = draw_readiness(courses)
    with whole_folder(out) as partial:
        for name, content in pictures.items():
            (partial / name).write_bytes(content)
        (partial / REPORT_FILE).write_text(f"# Readiness\n\n{report(analysis, list(pictures))}\n")
        write_json(partial / READINESS_FILE, {**analysis.facts, "models": listed})


def report(analysis: Analysis, pictures: Sequence[str]) -> str:
    """Tables and pictures as Markdown."""
    on = analysis.facts["measured_on"]
    parts = [
        f"Measured on {on['texts']} texts and {on['pairs']} pairs ({on['pairs_are']}).",
        HOW_TO_READ,
        measures_table(analysis.entries),
        *(f"![{Path(picture).stem.replace('_', ' ')}]({picture})" for picture in pictures),
        "CLS attention entropy by layer, in nats:",
        entropy_table(analysis.entries),
    ]
    return "\n\n".join(parts)


def measures_table(entries: Entries) -> str:
    """Measures as Markdown: a column for each of two models, or a row for each of more."""
    escaped = {escape(label): entry for label, entry in entries.items()}
    if len(escaped) <= 2:
        return readiness_table(escaped)
    titles = titled_measures(list(escaped.values()))
    rows = [
        [label, *(f"{entry[name]:.4f}" if name in entry else "" for name in titles)]
        for label, entry in escaped.items()
    ]
    return table(["", *titles.values()], rows)


def entropy_table(entries: Entries) -> str:
    """Entropy of each layer as Markdown, with the difference from the first model in brackets."""
    layers = {escape(label): layer_entropies(entry) for label, entry in entries.items()}
    n_layers = max(map(len, layers.values()))
    label, first = next(iter(layers.items()))
    rows = [[label, *(f"{entropy:.3f}" for entropy in first)]]
    for label, entropies in list(layers.items())[1:]:
        cells = [f"{entropy:.3f}" for entropy in entropies]
        if len(entropies) == len(first):
            pairs = zip(entropies, first, strict=True)
            cells = [f"{after:.3f} ({after - before:+.3f})" for after, before in pairs]
        rows.append([label, *cells])
    rows = [row + [""] * (1 + n_layers - len(row)) for row in rows]
    even = next(iter(entries.values()))[EVEN_ENTROPY]
    listing = table(["", *(str(layer) for layer in range(1, n_layers + 1))], rows)
    return f"{listing}\n\nEven attention to all tokens has {even:.3f}."


def _find_documents(recipe: AnalysisRecipe, measuring: Measuring) -> Dataset | IterableDataset:
    """The text that the sample is taken from."""
    folders = [folder for name in recipe.models for folder in (Path(name), Path(name).parent)]
    runs = [folder for folder in folders if is_pretraining_run(folder)]
    if recipe.corpus is not None or runs:
        settings = read_run_settings(runs[0]) if runs else {"encoder": ""}
        changes = {} if recipe.corpus is None else {"corpus": recipe.corpus, "streaming": False}
        own = pretraining_recipe({**settings, **changes})
        return load_documents(own.sources, streaming=own.streaming)
    if measuring.collection is not None:
        return load_passages(measuring.collection)
    raise ValueError(
        "There is no text to measure on, because no model is in a pre-training run: name a "
        "collection (--collection FOLDER) or text (--corpus FILE)."
    )


def _put_on_card(run: Path, entries: Sequence[Mapping[str, float]]) -> None:
    """Put the measures of a run into its final model's provenance and on its card."""
    folder = run / MODEL_FOLDER
    if not folder.is_dir():
        logger.warning("%s is not finished, so it has no card yet.", run)
        return
    *earlier, last = read_provenance(folder) or read_pretraining(run)
    write_provenance(folder, [*earlier, replace(last, readiness=readiness_entries(entries))])
    write_card(folder)
