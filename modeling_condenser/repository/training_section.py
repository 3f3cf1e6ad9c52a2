"""The card's section of training: stages in, a table a stage, pictures and the recipes out."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from .card_facts import CURVES_FILE
from .curves import has_curves
from .markdown import code, code_block, details, duration, escape, table
from .provenance import Stage
from .publishable import hub_name

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
_SETTINGS = {
    "learning_rate": "learning rate",
    "lr_scheduler_type": "schedule",
    "num_train_epochs": "epochs",
    "max_length": "longest block",
    "mlm_probability": "share of masked tokens",
    "head_mlm_probability": "share masked a second time for the head",
    "bow_weight": "weight of bag-of-words prediction",
    "bow_weight_end": "the same at the end",
    "deletion_probability": "share of deleted words",
    "temperature": "temperature",
    "margin": "margin",
    "train_size": "labels used",
}
_RUN = {
    "n_parameters": "parameters",
    "tokens_seen": "tokens seen",
    "steps": "steps",
    "seed": "seed",
}
_COUNTS = {
    "n_documents": "documents",
    "n_documents_left_out": "left out as too short",
    "n_blocks": "blocks",
    "n_spans": "spans",
    "n_passages": "passages",
    "n_examples": "examples",
    "n_negatives": "negatives for each",
}


def training_section(stages: Sequence[Stage]) -> str:
    """How the model was made, stage by stage."""
    if not stages:
        return "## Training\n\nHow this model was trained is not recorded."
    parts = ["## Training"]
    if any(has_curves(stage.log) for stage in stages):
        parts += [f"![Losses of pre-training over the tokens seen]({CURVES_FILE})", _CAPTION]
    for label, stage in label_stages(stages).items():
        parts += [f"### {label}", table(["", ""], list(_rows(stage)), numbers_from=2)]
        parts.append(details("Recipe, in full", code_block(_yaml(stage.recipe), "yaml")))
        parts.append(details("Record of the run, in full", code_block(_yaml(stage.run), "yaml")))
    return "\n\n".join(parts)


_CAPTION = (
    "Late loss: of the encoder's own output. Head loss: of the Condenser head, which reads the CLS "
    "vector. Swap cost: by how much the head's loss rises when CLS vectors are exchanged within a "
    "batch; near zero, the head does not use the vector. Bag-of-words loss: of the CLS vector's "
    "prediction of the distinct tokens of its block, before its weight."
)


def label_stages(stages: Sequence[Stage]) -> dict[str, Stage]:
    """Stages by their names, numbered where a name comes again."""
    labelled: dict[str, Stage] = {}
    for stage in stages:
        number = sum(label.partition(" ")[0] == stage.name for label in labelled) + 1
        labelled[stage.name if number == 1 else f"{stage.name} {number}"] = stage
    return labelled


def _rows(stage: Stage) -> Iterator[tuple[str, str]]:
    recipe, run = stage.recipe, stage.run
    objective = run.get("objective") or recipe.get("objective")
    if objective:
        yield "objective", escape(_OBJECTIVES.get(objective, objective))
    if "encoder" in recipe:
        yield "started from", _model(recipe["encoder"])
    for name in ("corpus", "collection", "data", "negatives"):
        if recipe.get(name):
            yield _DATA_NAMES[name], "; ".join(_source(part) for part in _as_list(recipe[name]))
    yield from _data_rows(run)
    unused = {"num_train_epochs"} if recipe.get("max_steps", 0) > 0 else set()
    settings = [
        f"{said} {escape(recipe[name])}"
        for name, said in _SETTINGS.items()
        if name in recipe and name not in unused
    ]
    settings += [f"batch {batch}"] if (batch := _batch(recipe)) else []
    if settings:
        yield "settings", ", ".join(settings)
    yield from _run_rows(stage)


_DATA_NAMES = {
    "corpus": "text",
    "collection": "collection",
    "data": "training data",
    "negatives": "hard negatives",
}


def _data_rows(run: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """How much data there was, and which exactly."""
    counts = [f"{_number(run[name])} {said}" for name, said in _COUNTS.items() if name in run]
    if counts:
        yield "amount", ", ".join(counts)
    for name, value in run.items():
        if "fingerprint" in name or "sha256" in name:
            yield escape(name.replace("_", " ").replace("sha256", "SHA-256")), code(value)


def _run_rows(stage: Stage) -> Iterator[tuple[str, str]]:
    run = stage.run
    for name, said in _RUN.items():
        if name in run:
            yield said, _number(run[name]) if name != "seed" else escape(run[name])
    last = stage.log[-1] if stage.log else {}
    losses = [
        f"{said} {last[name]:.4f}"
        for name, said in (
            ("late_loss", "late"),
            ("head_loss", "head"),
            ("swap_cost", "swap cost"),
            ("bow_loss", "bag-of-words"),
            ("contrastive_loss", "contrastive"),
        )
        if name in last
    ]
    if losses or "loss" in last:
        yield "last logged loss", ", ".join(losses) or f"{last['loss']:.4f}"
    if "train_seconds" in run:
        yield "time", duration(run["train_seconds"])
    elif "session_seconds" in run:
        yield "time of the last session", duration(run["session_seconds"])
    if hardware := _hardware(run.get("hardware") or {}):
        yield "hardware", hardware
    if versions := run.get("versions"):
        yield "versions", ", ".join(f"{escape(k)} {escape(v)}" for k, v in versions.items())


def _model(name: Any) -> str:
    known = hub_name(name)
    return f"[{escape(name)}](https://huggingface.co/{known})" if known else _local(name)


def _source(part: Any) -> str:
    """A part of the training data, with a link where it has a name on the Hub."""
    if not isinstance(part, Mapping):
        known = hub_name(part)
        link = f"[{escape(part)}](https://huggingface.co/datasets/{known})"
        return link if known else _local(part)
    more = [
        f"{name} {escape(part[name])}" for name in ("name", "split", "revision") if part.get(name)
    ]
    said = _source(part.get("path", ""))
    return f"{said} ({', '.join(more)})" if more else said


def _local(name: Any) -> str:
    text = str(name)
    is_local = text.startswith("local: ")
    return f"{code(text.removeprefix('local: '))}, not on the Hub" if is_local else code(text)


def _batch(recipe: Mapping[str, Any]) -> str:
    budget = recipe.get("tokens_per_batch")
    size = f"{budget} tokens" if budget else recipe.get("per_device_train_batch_size")
    steps = recipe.get("gradient_accumulation_steps", 1)
    if size is None:
        return ""
    return f"{escape(size)} a device" + (f", {escape(steps)} accumulated" if steps != 1 else "")


def _hardware(hardware: Mapping[str, Any]) -> str:
    said = [escape(hardware["cpu"])] if hardware.get("cpu") else []
    if hardware.get("cores"):
        said.append(f"{hardware['cores']} cores")
    gpus = _as_list(hardware.get("gpus"))
    said += [f"{gpus.count(gpu)} × {escape(gpu)}" for gpu in dict.fromkeys(gpus)]
    return ", ".join(said)


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) else escape(value)


def _yaml(content: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(content), allow_unicode=True).strip()


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value] if value else []
