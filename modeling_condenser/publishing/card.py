"""Model cards, made from what lies in the folders of a run and from nothing else."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from modeling_condenser.pretraining.run_folder import RECIPE_FILE, RUN_FILE

from .contract import EncodingContract

CARD_FILE = "README.md"

_CITATIONS = """```bibtex
@inproceedings{gao-callan-2021-condenser,
  title = {Condenser: a Pre-training Architecture for Dense Retrieval},
  author = {Gao, Luyu and Callan, Jamie},
  booktitle = {Proceedings of EMNLP 2021},
  year = {2021}
}
```"""


@dataclass(frozen=True)
class ReportedResult:
    """A figure on a card: one measure of one system on one collection.

    Attributes:
        collection: its name.
        split: whose queries were judged.
        measure: such as "MRR@10".
        value: of this model.
        baseline: what it is compared with, and its value and p-value, where it is.
    """

    collection: str
    split: str
    measure: str
    value: float
    baseline: str | None = None
    baseline_value: float | None = None
    p_value: float | None = None


@dataclass(frozen=True)
class CardFacts:
    """What a card states.

    Attributes:
        title: first heading.
        summary: what the model is, in a paragraph.
        contract: how it encodes.
        stages: (heading, recipe as read, run record as read) of each stage that made it.
        results: of its evaluation; empty if it was not evaluated.
        commands: that reproduce the results.
        base_model: Hub name of the encoder it started from, if it is one.
    """

    title: str
    summary: str
    contract: EncodingContract
    stages: Sequence[tuple[str, dict[str, Any], dict[str, Any]]] = ()
    results: Sequence[ReportedResult] = ()
    commands: Sequence[str] = ()
    base_model: str | None = None
    tags: Sequence[str] = field(default_factory=lambda: ("condenser", "dense-retrieval"))


def write_export_card(
    folder: Path, *, checkpoint: str | Path, contract: EncodingContract
) -> None:
    """Write the card of an export that has not been evaluated, from its checkpoint's run folder."""
    run_folder = run_folder_of(checkpoint)
    recipe, run = read_stage(run_folder)
    objective = run.get("objective", recipe.get("objective", "condenser"))
    summary = (
        "A plain encoder, condensed for dense retrieval: its CLS vector was trained to carry what "
        "a masked-LM head needs (Gao & Callan 2021). Fine-tune it into a retriever."
        if objective == "condenser"
        else "A plain encoder, trained further with plain masked language modelling."
    )
    encoder = str(recipe.get("encoder", ""))
    facts = CardFacts(
        title=folder_title(folder),
        summary=summary,
        contract=contract,
        stages=[("Pre-training", recipe, run)] if recipe else [],
        base_model=None if not encoder or Path(encoder).exists() else encoder,
    )
    write_card(folder, facts)


def write_card(folder: Path, facts: CardFacts) -> None:
    """Write a repository's README.md with its metadata."""
    (folder / CARD_FILE).write_text(str(render_card(facts)), encoding="utf-8")


def render_card(facts: CardFacts) -> ModelCard:
    """Make a card: metadata for the Hub (results as `model-index`), then the text."""
    data = ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=list(facts.tags),
        base_model=facts.base_model,
        model_name=facts.title if facts.results else None,
        eval_results=[_eval_result(result) for result in facts.results] or None,
    )
    sections = [
        f"# {facts.title}",
        facts.summary,
        _use_section(facts.contract),
        *(_stage_section(*stage) for stage in facts.stages),
        _results_section(facts),
        f"## Citation\n\n{_CITATIONS}",
    ]
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(sections) + "\n")


def _eval_result(result: ReportedResult) -> EvalResult:
    return EvalResult(
        task_type="information-retrieval",
        task_name="Retrieval",
        dataset_type=result.collection,
        dataset_name=result.collection,
        dataset_split=result.split,
        metric_type=result.measure,
        metric_name=result.measure,
        metric_value=round(result.value, 4),
    )


def _use_section(contract: EncodingContract) -> str:
    rows = [
        ("vector", f"{contract.pooling.upper()} (position 0) of the last hidden state"),
        ("similarity", contract.similarity),
        ("longest query", f"{contract.query_max_length} tokens"),
        ("longest passage", f"{contract.passage_max_length} tokens"),
        ("title", f"put before the text with {contract.title_separator!r} between"),
        ("segment ids", "passed" if contract.token_type_ids else "not passed"),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    return f"""## How to use

The encoding contract, also in `encoding_contract.json`:

| | |
| --- | --- |
{table}

With sentence-transformers:

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("FOLDER_OR_HUB_NAME")
queries = model.encode_query(["what does it do"])
passages = model.encode_document(["It encodes."])
scores = model.similarity(queries, passages)
```

With transformers:

```python
from transformers import AutoModel, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER_OR_HUB_NAME")
encoder = AutoModel.from_pretrained("FOLDER_OR_HUB_NAME").eval()
batch = tokenizer(["It encodes."], padding=True, truncation=True, return_tensors="pt")
vectors = encoder(**batch).last_hidden_state[:, 0]
```"""


def _stage_section(heading: str, recipe: dict[str, Any], run: dict[str, Any]) -> str:
    public = {name: value for name, value in recipe.items() if not _is_local_path(value)}
    lines = [f"## {heading}", "", "Recipe:", "", "```yaml"]
    lines += [yaml.safe_dump(public, sort_keys=True).strip(), "```", "", "Run:", "", "```yaml"]
    lines += [yaml.safe_dump(run, sort_keys=True).strip(), "```"]
    return "\n".join(lines)


def _is_local_path(value: Any) -> bool:
    return isinstance(value, str) and Path(value).is_absolute()


def _results_section(facts: CardFacts) -> str:
    if not facts.results:
        return "## Results\n\nThis model has not been evaluated."
    lines = [
        "## Results",
        "",
        "| collection | split | measure | value | compared with | its value | p |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for r in facts.results:
        other = "" if r.baseline is None else r.baseline
        other_value = "" if r.baseline_value is None else f"{r.baseline_value:.4f}"
        p_value = "" if r.p_value is None else f"{r.p_value:.4f}"
        lines.append(
            f"| {r.collection} | {r.split} | {r.measure} | {r.value:.4f} | {other} | {other_value} "
            f"| {p_value} |"
        )
    lines += ["", "p is of a two-sided paired randomisation test over queries. Commands:", ""]
    lines += ["```bash", *facts.commands, "```"]
    return "\n".join(lines)


def folder_title(folder: Path) -> str:
    """A folder's name, also while it is being written."""
    return folder.name.removeprefix(".").removesuffix(".partial")


def run_folder_of(checkpoint: str | Path) -> Path:
    """The run folder that a checkpoint lies in, or the checkpoint itself."""
    folder = Path(checkpoint)
    return folder if (folder / RECIPE_FILE).is_file() else folder.parent


def read_stage(run_folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A stage's recipe and record; empty where the folder has none."""
    recipe_file, run_file = run_folder / RECIPE_FILE, run_folder / RUN_FILE
    recipe = yaml.safe_load(recipe_file.read_text()) if recipe_file.is_file() else {}
    run = json.loads(run_file.read_text()) if run_file.is_file() else {}
    return recipe, run
