"""Write and read model cards.

A card is rendered from `card.md.jinja` and the files of the repository alone. Text that a person
adds outside of the generated block is kept when the card is written again.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from jinja2 import Template

from modeling_condenser.files.atomic import atomic_file
from modeling_condenser.files.contract import EncodingContract, states_encoding
from modeling_condenser.files.models import STARTER_TITLE, is_checkpoint, read_config
from modeling_condenser.files.run_folder import MODEL_FOLDER

from . import markdown, training_log
from .provenance import (
    ADAPTATION,
    FINETUNING,
    EvaluationResult,
    Stage,
    drop_starter,
    hub_name,
    label_stages,
    read_provenance,
    read_results,
)

CARD_FILE = "README.md"
CURVES_FILE = "training_curves.png"
PLACEHOLDER = "OWNER/NAME"
"""Stands in the card's examples until the repository has a name."""

_TEMPLATE = Path(__file__).with_name("card.md.jinja")
_GENERATED = re.compile(r"<!-- condenser:card -->.*?<!-- /condenser:card -->", re.DOTALL)
# Word in a stage's name, objective or settings -> key in references.bib.
_PAPERS = {
    "ict": "lee-etal-2019-latent",
    "tsdae": "wang-etal-2021-tsdae",
    "condenser": "gao-callan-2021-condenser",
    "cocondenser": "gao-callan-2022-cocondenser",
    "head_mlm_probability": "xiao-etal-2022-retromae",
    "bow_weight": "ma-etal-2024-drop",
    "contrastive": "karpukhin-etal-2020-dense",
    "margin_mse": "hofstatter-etal-2020-improving",
    "cache_chunk_size": "gao-etal-2021-scaling",
    "mini_batch_size": "gao-etal-2021-scaling",
    "matryoshka_dims": "kusupati-etal-2022-matryoshka",
    FINETUNING: "reimers-gurevych-2019-sentence-bert",
}


def write_card(
    folder: Path, *, name: str | None = None, metadata: Mapping[str, Any] | None = None
) -> None:
    """Write the README.md of a repository and its pictures.

    Text outside of the generated block is kept below it. License, language and other metadata of
    an earlier card are kept, tags and data sets are added, base model and results are replaced.

    Args:
        folder: with an encoding contract, or a Condenser checkpoint.
        name: `owner/name` on the Hub for the examples; `OWNER/NAME` by default.
        metadata: entries to set, such as {"license": "apache-2.0"}.

    Raises:
        ValueError: the folder holds no model of this package, or the metadata cannot be read.
    """
    config, contract = read_config(folder), read_contract(folder)
    stages, results = read_provenance(folder), read_results(folder)
    own_stages = drop_starter(stages)
    labelled = label_stages(own_stages).items()
    logs = {label: s.log for label, s in labelled if training_log.has_curves(s.log)}
    readiness = {label: s.readiness for label, s in labelled if s.readiness}
    pictures = _draw_pictures(logs, readiness)
    is_retriever = any(stage.name in (FINETUNING, ADAPTATION) for stage in stages)
    title = name.rpartition("/")[2] if name else _title(folder)
    existing, text = read_card(folder / CARD_FILE)
    task, tags = "fill-mask", ["condenser", "dense-retrieval"]
    if contract:
        task = "sentence-similarity" if is_retriever else "feature-extraction"
        tags += ["sentence-transformers", "feature-extraction"]
    encoders = [hub_name(stage.recipe.get("encoder")) for stage in reversed(stages)]
    made = ModelCardData(
        library_name="sentence-transformers" if contract else "transformers",
        pipeline_tag=task,
        tags=tags,
        base_model=next(filter(None, encoders), None),
        datasets=_find_data(stages) or None,
        model_name=title if results else None,
        eval_results=_list_figures(results) or None,
    )
    merged = _merge_metadata({**existing, **(metadata or {})}, made.to_dict())
    card = ModelCard.from_template(
        ModelCardData(**merged),
        template_path=str(_TEMPLATE),
        md=markdown,
        log=training_log,
        quoted=lambda text: json.dumps(text, ensure_ascii=False),
        title=title,
        repository=name,
        metadata=merged,
        config=config,
        encoder=config if contract else config.get("encoder_config") or {},
        contract=contract,
        code_files=sorted(file.name for file in folder.glob("*.py")),
        objectives=[stage.run.get("objective") for stage in stages],
        is_retriever=is_retriever,
        is_adapted=bool(stages) and stages[-1].name == ADAPTATION,
        verdict=stages[-1].run.get("verdict") if stages else None,
        results=results,
        readiness=readiness,
        pictures=pictures,
        training=training_section(own_stages),
        citations=cite(stages),
        own_text=re.sub(r"\n{3,}", "\n\n", _GENERATED.sub("", text)).strip(),
    )
    files = {**pictures, CARD_FILE: str(card).rstrip().encode() + b"\n"}
    for file_name, content in files.items():
        with atomic_file(folder / file_name) as file:
            file.write(content)


def read_contract(folder: Path) -> EncodingContract | None:
    """The contract of a repository; None for a Condenser checkpoint, a ValueError otherwise."""
    if is_checkpoint(folder):
        return None
    if states_encoding(folder):
        return EncodingContract.load(folder)
    raise ValueError(
        f"{folder} has neither modules.json nor the config.json of a Condenser checkpoint: name"
        " a folder that `condenser export`, `finetune`, `pretrain` or `adapt` wrote. (Where `adapt`"
        " kept the start, or `export --onnx int8` added a file to a published model, the folder is"
        " a copy of that model: `hf upload` publishes it.)"
    )


def training_section(stages: Sequence[Stage]) -> str:
    """Describe how a model was trained, stage by stage, as Markdown."""
    template = Template(_TEMPLATE.with_name("training.md.jinja").read_text(encoding="utf-8"))
    return template.render(
        md=markdown,
        hub_name=hub_name,
        starter=STARTER_TITLE,
        yaml=lambda content: yaml.safe_dump(dict(content), allow_unicode=True).strip(),
        stages=label_stages(stages),
        explanation=training_log.explain([entry for stage in stages for entry in stage.log]),
        curves_file=CURVES_FILE,
    )


class _CardLoader(yaml.SafeLoader):
    """Reads as text what YAML 1.1 would change: the language `no` (false), `012` (10), `1_0`."""

    def resolve(self, kind: type, value: Any, implicit: Any) -> str:
        tag = super().resolve(kind, value, implicit)
        if kind is not yaml.ScalarNode or not implicit[0] or tag.endswith((":str", ":null")):
            return tag
        written = yaml.safe_dump(yaml.safe_load(value)).splitlines()[0]
        return tag if written.lower() == value.lower() else self.DEFAULT_SCALAR_TAG


def read_card(file: Path) -> tuple[dict[str, Any], str]:
    """A card's metadata and text, both empty without a card; a ValueError for broken metadata."""
    content = file.read_text(encoding="utf-8-sig") if file.is_file() else ""
    block = REGEX_YAML_BLOCK.match(content)
    try:
        metadata = dict((yaml.load(block[2], _CardLoader) if block else None) or {})
    except (yaml.YAMLError, TypeError, ValueError) as error:
        raise ValueError(f"The metadata at the top of {file} cannot be read: {error}.") from error
    text = content[block.end() :] if block else content
    return {name: value for name, value in metadata.items() if value is not None}, text


def _list_figures(results: Sequence[EvaluationResult]) -> list[EvalResult]:
    return [
        EvalResult(
            task_type="information-retrieval",
            task_name="Retrieval",
            dataset_type=result.source or result.collection,
            dataset_name=result.collection,
            dataset_split=result.split,
            dataset_revision=result.revision,
            metric_type=measure,
            metric_name=measure,
            metric_value=round(value, 4),
            metric_args={"depth": result.depth, **result.search},
        )
        for result in results
        for measure, value in result.values.items()
    ]


def _find_data(stages: Sequence[Stage]) -> list[str]:
    """The data sets of the stages that are on the Hub."""
    names = [
        hub_name(part.get("path") if isinstance(part, Mapping) else part)
        for stage in stages
        for key in ("corpus", "collection", "data")
        for part in markdown.as_list(stage.recipe.get(key))
    ]
    return list(dict.fromkeys(filter(None, names)))


def _merge_metadata(existing: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in existing.items() if key != "model-index"}
    replaced = {key: made[key] for key in ("base_model", "model-index") if key in made}
    merged = {**made, **kept, **replaced}
    for key in ("tags", "datasets"):
        if values := markdown.as_list(existing.get(key)) + markdown.as_list(made.get(key)):
            merged[key] = list(dict.fromkeys(values))
    return merged


def _draw_pictures(
    logs: Mapping[str, training_log.Log], readiness: Mapping[str, training_log.Log]
) -> dict[str, bytes]:
    """File name -> picture of training curves, readiness and attention entropy, if recorded."""
    panels = {
        label: training_log.first_and_last(entries)
        for label, entries in readiness.items()
        if training_log.layer_entropies(entries[-1])
    }
    pictures = {}
    if logs:
        pictures[CURVES_FILE] = training_log.draw_curves(logs)
    if any(len(entries) > 1 for entries in readiness.values()):
        pictures[training_log.READINESS_PICTURE] = training_log.draw_curves(readiness)
    if panels:
        pictures[training_log.ENTROPY_FILE] = training_log.draw_entropies(panels)
    return pictures


def _title(folder: Path) -> str:
    """A folder's name, also while it is being written; the run folder's name for its model."""
    name = folder.resolve().name.removeprefix(".").removesuffix(".partial")
    return folder.resolve().parent.name if name == MODEL_FOLDER else name


def cite(stages: Sequence[Stage]) -> str:
    """The papers of all stages, as BibTeX; Condenser's if no method is recorded."""
    words: set[str] = set()
    for stage in stages:
        objective = str(stage.run.get("objective") or stage.recipe.get("objective", "")).lower()
        started = str(stage.recipe.get("encoder", "")).lower().removeprefix(STARTER_TITLE)
        names = f"{objective} {started.replace('-', '')}"  # of models of others, too
        words |= {stage.name, objective, *(name for name, value in stage.recipe.items() if value)}
        words |= {name for name in ("condenser", "cocondenser") if name in names}
    keys = {key for word, key in _PAPERS.items() if word in words} or {_PAPERS["condenser"]}
    entries = _TEMPLATE.with_name("references.bib").read_text("utf-8").strip().split("\n\n")
    cited = [entry for entry in entries if entry.partition("{")[2].partition(",")[0] in keys]
    return "\n\n".join(cited)
