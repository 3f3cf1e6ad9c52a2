"""The card's section on training: a table, recipe and record for each stage."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from .curves import has_curves
from .markdown import as_list, code, code_block, escape, table
from .provenance import Stage, label_stages
from .publishable import hub_name

CURVES_FILE = "training_curves.png"
_OBJECTIVES = {
    "condenser": "Condenser: the masked-LM losses of head and late output",
    "cocondenser": "coCondenser: the Condenser's losses, and a contrast of spans over the batch",
    "ict": "Inverse Cloze Task: a sentence against the passages of the batch",
    "tsdae": "TSDAE: a decoder reconstructs a text from the vector of a noisy copy",
    "mlm": "plain masked language modelling",
    "contrastive": "contrastive: the positive against the batch's other passages",
    "mse_cosine": "squared error of cosines of graded pairs",
    "triplet": "triplet loss",
    "margin_mse": "margin-MSE distillation of a cross-encoder",
    "kl": "distillation of a cross-encoder's distribution",
}
_SOURCES = ("corpus", "collection", "data", "negatives")
_LOSSES = {
    "late_loss": "late",
    "head_loss": "head",
    "swap_cost": "swap cost",
    "bow_loss": "bag-of-words",
    "contrastive_loss": "contrastive",
}
_CAPTION = (
    "Late loss: of the encoder's own output. Head loss: of the Condenser head, which reads the CLS "
    "vector. Swap cost: rise of the head's loss when CLS vectors are exchanged within a batch; "
    "near zero, the head does not use the vector. Bag-of-words loss: of the CLS vector's "
    "prediction of the distinct tokens of its block, before its weight."
)


def training_section(stages: Sequence[Stage]) -> str:
    """How the model was made, stage by stage, as Markdown."""
    if not stages:
        return "## Training\n\nHow this model was trained is not recorded."
    parts = ["## Training"]
    if any(has_curves(stage.log) for stage in stages):
        parts += [f"![Losses of pre-training over the tokens seen]({CURVES_FILE})", _CAPTION]
    for label, stage in label_stages(stages).items():
        parts += [f"### {label}", table(["", ""], list(_rows(stage)), numbers_from=2)]
        for summary, content in (("Full recipe", stage.recipe), ("Full record", stage.run)):
            text = code_block(yaml.safe_dump(dict(content), allow_unicode=True).strip(), "yaml")
            parts.append(f"<details>\n<summary>{summary}</summary>\n\n{text}\n\n</details>")
    return "\n\n".join(parts)


def _rows(stage: Stage) -> Iterator[tuple[str, str]]:
    recipe, run = stage.recipe, stage.run
    if objective := run.get("objective") or recipe.get("objective"):
        yield "objective", escape(_OBJECTIVES.get(objective, objective))
    if "encoder" in recipe:
        yield "started from", _link(recipe["encoder"])
    for name in _SOURCES:
        if recipe.get(name):
            yield name, "; ".join(_source(part) for part in as_list(recipe[name]))
    for name, value in run.items():  # counts, checksums, seconds
        if isinstance(value, int | float):
            yield escape(name.removeprefix("n_").replace("_", " ")), f"{value:,}"
        elif "fingerprint" in name or "sha256" in name:
            yield escape(name.replace("_", " ").replace("sha256", "SHA-256")), code(value)
    last = stage.log[-1] if stage.log else {}
    losses = [f"{title} {last[name]:.4f}" for name, title in _LOSSES.items() if name in last]
    if losses or "loss" in last:
        yield "last logged loss", ", ".join(losses) or f"{last['loss']:.4f}"
    hardware = run.get("hardware") or {}
    if parts := [*as_list(hardware.get("cpu")), *as_list(hardware.get("gpus"))]:
        yield "hardware", ", ".join(map(escape, parts))


def _source(part: Any) -> str:
    """A part of the training data, linked where it has a name on the Hub."""
    if not isinstance(part, Mapping):
        return _link(part, "datasets/")
    more = [f"{key} {escape(part[key])}" for key in ("name", "split", "revision") if part.get(key)]
    source = _link(part.get("path", ""), "datasets/")
    return f"{source} ({', '.join(more)})" if more else source


def _link(name: Any, kind: str = "") -> str:
    if known := hub_name(name):
        return f"[{escape(name)}](https://huggingface.co/{kind}{known})"
    text = str(name)
    is_local = text.startswith("local: ")
    return f"{code(text.removeprefix('local: '))}, not on the Hub" if is_local else code(text)
