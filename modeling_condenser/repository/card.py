"""Model cards, made from what lies in a repository folder and its evaluations, nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from modeling_condenser.runs.run_folder import MODEL_FOLDER

from .contract import EncodingContract
from .provenance import Stage, read_provenance

CARD_FILE = "README.md"

_CITATION = """```bibtex
@inproceedings{gao-callan-2021-condenser,
  title = {Condenser: a Pre-training Architecture for Dense Retrieval},
  author = {Gao, Luyu and Callan, Jamie},
  booktitle = {Proceedings of EMNLP 2021},
  year = {2021}
}
```"""

_POOLINGS = {
    "cls": "CLS (position 0) of the last hidden state",
    "mean": "mean of the last hidden state over the text's tokens",
    "max": "maximum of the last hidden state over the text's tokens",
}
_POOLING_CODE = {
    "cls": "encoder(**batch).last_hidden_state[:, 0]",
    "mean": """encoder(**batch).last_hidden_state
mask = batch["attention_mask"][..., None]
vectors = (vectors * mask).sum(1) / mask.sum(1)""",
    "max": """encoder(**batch).last_hidden_state
mask = batch["attention_mask"][..., None].bool()
vectors = vectors.masked_fill(~mask, float("-inf")).amax(1)""",
}


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


def write_card(
    folder: Path, *, results: Sequence[ReportedResult] = (), commands: Sequence[str] = ()
) -> None:
    """Write a repository's README.md from its contract, its provenance and its results.

    Args:
        folder: with an encoding contract.
        results: of the model's evaluation; none if it was not evaluated, which the card then says.
        commands: that reproduce the results.
    """
    card = render_card(folder, results, commands)
    partial = folder / f".{CARD_FILE}.partial"
    partial.write_text(str(card), encoding="utf-8")
    partial.replace(folder / CARD_FILE)


def render_card(
    folder: Path, results: Sequence[ReportedResult] = (), commands: Sequence[str] = ()
) -> ModelCard:
    """Make a card: metadata for the Hub (results as `model-index`), then the text."""
    stages = read_provenance(folder)
    title = _title(folder)
    data = ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["condenser", "dense-retrieval"],
        base_model=_base_model(stages),
        model_name=title if results else None,
        eval_results=_eval_results(results) or None,
    )
    sections = [
        f"# {title}",
        _summary(stages),
        _use_section(EncodingContract.load(folder)),
        *(_stage_section(stage) for stage in stages),
        _results_section(results, commands),
        f"## Citation\n\n{_CITATION}",
    ]
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(sections) + "\n")


def _title(folder: Path) -> str:
    """A repository's name; a run's, if it lies in a run folder; the same while it is written."""
    name = folder.name.removeprefix(".").removesuffix(".partial")
    return folder.resolve().parent.name if name == MODEL_FOLDER else name


def _base_model(stages: Sequence[Stage]) -> str | None:
    """The Hub name of the encoder that the first stage started from, where it has one."""
    encoder = str(stages[0].recipe.get("encoder", "")) if stages else ""
    return encoder if encoder.count("/") == 1 else None


def _summary(stages: Sequence[Stage]) -> str:
    if not stages:
        return "A plain encoder; how it was trained is not recorded."
    condensed = any(stage.run.get("objective") == "condenser" for stage in stages)
    origin = (
        "condensed for dense retrieval: its CLS vector was trained to carry what a masked-LM head "
        "needs (Gao & Callan 2021)"
        if condensed
        else "trained with plain masked language modelling"
    )
    if any(stage.name == "Fine-tuning" for stage in stages):
        # Graded pairs train no ranking.
        is_graded = stages[-1].run.get("objective") == "mse_cosine"
        kind = "A sentence encoder" if is_graded else "A dense retriever"
        if all(stage.name == "Fine-tuning" for stage in stages):
            return f"{kind}, fine-tuned from an encoder whose pre-training is not recorded here."
        return f"{kind}, fine-tuned from an encoder that was {origin}."
    return f"A plain encoder, {origin}. Fine-tune it into a retriever."


def _eval_results(results: Sequence[ReportedResult]) -> list[EvalResult]:
    """Each figure once, however many systems it is compared with."""
    figures = {(r.collection, r.split, r.measure): r for r in results}
    return [_eval_result(result) for result in figures.values()]


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
        ("vector", _POOLINGS[contract.pooling]),
        ("similarity", contract.similarity),
        ("longest query", f"{contract.query_max_length} tokens"),
        ("longest passage", f"{contract.passage_max_length} tokens"),
        ("title", f"put before the text with {contract.title_separator!r} between"),
        ("segment ids", "passed" if contract.token_type_ids else "not passed"),
    ]
    prompts = (
        ("before a query", contract.query_prompt),
        ("before a passage", contract.passage_prompt),
    )
    rows += [(name, repr(prompt)) for name, prompt in prompts if prompt]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    vectors = _POOLING_CODE[contract.pooling]
    if contract.similarity == "cosine":
        vectors += "\nvectors = vectors / vectors.norm(dim=-1, keepdim=True)"
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
batch = tokenizer(
    [{contract.passage("", "It encodes.")!r}],
    padding=True,
    truncation=True,
    max_length={contract.passage_max_length},
    return_tensors="pt",
)
vectors = {vectors}
```"""


def _stage_section(stage: Stage) -> str:
    parts = [f"## {stage.name}"]
    for heading, content in (("Recipe", stage.recipe), ("Run", stage.run)):
        parts.append(f"{heading}:\n\n```yaml\n{yaml.safe_dump(content).strip()}\n```")
    return "\n\n".join(parts)


def _results_section(results: Sequence[ReportedResult], commands: Sequence[str]) -> str:
    if not results:
        return "## Results\n\nThis model has not been evaluated."
    lines = [
        "## Results",
        "",
        "| collection | split | measure | value | compared with | its value | p |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for r in results:
        other = "" if r.baseline is None else r.baseline
        other_value = "" if r.baseline_value is None else f"{r.baseline_value:.4f}"
        p_value = "" if r.p_value is None else f"{r.p_value:.4f}"
        lines.append(
            f"| {r.collection} | {r.split} | {r.measure} | {r.value:.4f} | {other} | {other_value} "
            f"| {p_value} |"
        )
    lines += [
        "",
        "p is of a two-sided paired randomisation test over queries, by Holm's correction for the "
        "tests of this table. Commands:",
        "",
    ]
    lines += ["```bash", *commands, "```"]
    return "\n".join(lines)
