"""Write and read model cards.

A card is rendered from `card.md.jinja` and the files of the repository alone. Text that a person
adds outside of the generated block is kept when the card is written again.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCardData, RepoCard
from jinja2 import Environment, FileSystemLoader

from modeling_condenser.files.models import (
    CONFIG_FILE,
    INT8_FILE,
    STARTER_TITLE,
    EncodingContract,
    is_checkpoint,
    module_paths,
    read_config,
    states_encoding,
)
from modeling_condenser.files.run_folder import MODEL_FOLDER, atomic_file, read_json

from . import markdown
from .provenance import (
    ADAPTATION,
    FINETUNING,
    IN_MEMORY,
    KEEPS_START,
    LOCAL,
    PRETRAINING,
    EvaluationResult,
    Stage,
    drop_starter,
    hub_model,
    hub_name,
    read_provenance,
    read_results,
)
from .training_log import first_and_last_losses

CARD_FILE = "README.md"
PLACEHOLDER = "OWNER/NAME"
"""Stands in the card's examples until the repository has a name."""

_FOLDER = Path(__file__).parent
logger = logging.getLogger(__name__)

# Of each card, and of those of encoders.
GENERATED_TAGS = ("condenser", "dense-retrieval", "sentence-transformers", "feature-extraction")
GENERATED = re.compile(r"<!-- condenser:card -->.*?<!-- /condenser:card -->", re.DOTALL)
_VERBS = {PRETRAINING: "pre-trained with", FINETUNING: "fine-tuned with", ADAPTATION: "adapted by"}
_OBJECTIVES = {
    "condenser": "Condenser (Gao & Callan 2021)",
    "cocondenser": "coCondenser (Gao & Callan 2022)",
    "ict": "the Inverse Cloze Task (Lee et al. 2019)",
    "mlm": "masked language modelling",
    "contrastive": "a contrastive loss",
    "mse_cosine": "the squared error of the cosines of graded pairs",
    "triplet": "a triplet loss",
    "margin_mse": "margin-MSE distillation of a cross-encoder",
    "kl": "distillation of a cross-encoder's distribution",
    "adapt": "a linear map of query vectors",
    "adapt_both": "a linear map of query and passage vectors",
}
# Objective or setting of pre-training -> key in references.bib.
_PAPERS = {
    "mlm": "devlin-etal-2019-bert",
    "ict": "lee-etal-2019-latent",
    "condenser": "gao-callan-2021-condenser",
    "cocondenser": "gao-callan-2022-cocondenser",
    "head_mlm_probability": "xiao-etal-2022-retromae",
    "bow_weight": "ma-etal-2024-drop",
}


def write_card(
    folder: Path, *, name: str | None = None, metadata: Mapping[str, Any] | None = None
) -> None:
    """Write the README.md of a repository.

    Text outside of the generated block is kept below it. License, language and other metadata of
    an earlier card are kept, tags and data sets are added; library, task, base model and results
    are replaced.

    Args:
        folder: of a plain encoder or retriever, or a Condenser checkpoint.
        name: `owner/name` on the Hub for the examples; `OWNER/NAME` by default.
        metadata: entries to set, such as {"license": "apache-2.0"}.

    Raises:
        ValueError: the folder holds no model of this package, or the metadata cannot be read.
    """
    config, contract = read_config(folder / module_paths(folder)[0]), read_contract(folder)
    stages, results = drop_starter(read_provenance(folder)), read_results(folder)
    title = name.rpartition("/")[2] if name else _title(folder)
    existing, text = read_card(folder / CARD_FILE)
    made = _metadata(contract, stages, results, title)
    merged = _merge({**existing, **(metadata or {})}, made.to_dict())
    templates = Environment(loader=FileSystemLoader(_FOLDER))  # Markdown: nothing to escape
    card = templates.get_template("card.md.jinja").render(
        card_data=ModelCardData(**merged).to_yaml(),
        md=markdown,
        first_and_last_losses=first_and_last_losses,
        quoted=lambda text: json.dumps(text, ensure_ascii=False),
        link=link,
        yaml=lambda settings: yaml.safe_dump(settings, allow_unicode=True).strip(),
        describe_objective=describe_objective,
        title=title,
        name=name or PLACEHOLDER,
        summary=summarize(contract, config, stages),
        metadata=merged,
        config=config,
        contract=contract,
        dense_size=_dense_size(folder),
        code_files=sorted(file.name for file in folder.glob("*.py")),
        has_int8=(folder / INT8_FILE).is_file(),
        is_retriever=is_retriever(stages),
        is_adapted=bool(stages) and stages[-1].name == ADAPTATION,
        adapted_sides=stages[-1].recipe.get("sides", "query") if stages else "",
        results=results,
        stages=stages,
        citations=cite(stages),
        text_of_user=own_text(text),
    )
    with atomic_file(folder / CARD_FILE) as file:
        file.write(card.rstrip().encode() + b"\n")


def read_contract(folder: Path) -> EncodingContract | None:
    """How the model of a repository encodes; None for a checkpoint, a ValueError otherwise."""
    if is_checkpoint(folder):
        return None
    if not states_encoding(folder):
        raise ValueError(
            f"{folder} is neither a pre-training checkpoint nor a model that states how it encodes:"
            " name a folder that `condenser export`, `finetune`, `pretrain` or `adapt` wrote."
        )
    return EncodingContract.load(folder)


def _dense_size(folder: Path) -> int | None:
    """The size to which the last dense layer after the encoder maps a vector; None without one."""
    configs = [read_json(folder / path / CONFIG_FILE, {}) for path in module_paths(folder)]
    sizes = [config["out_features"] for config in configs if "out_features" in config]
    return sizes[-1] if sizes else None


def read_card(file: Path) -> tuple[dict[str, Any], str]:
    """A card's metadata and text, both empty without a card; a ValueError for broken metadata."""
    if not file.is_file():
        return {}, ""
    try:
        card = RepoCard(file.read_text(encoding="utf-8-sig"))
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"The metadata at the top of {file} cannot be read: {error}.") from error
    metadata = card.data.to_dict()
    language = metadata.get("language")  # YAML 1.1 reads no, the code of Norwegian, as False
    if language is False:
        metadata["language"] = "no"
    elif isinstance(language, list):
        stated = [code for code in language if code is not None]
        metadata["language"] = ["no" if code is False else code for code in stated]
    return metadata, card.text


def read_start_metadata(folder: Path) -> dict[str, Any]:
    """The metadata of a model that one starts from; without any, if they cannot be read."""
    try:
        return read_card(folder / CARD_FILE)[0]
    except ValueError as error:
        logger.warning("%s", error)
        return {}


def own_text(text: str) -> str:
    """What a person added to the text of a card."""
    return re.sub(r"\n{3,}", "\n\n", GENERATED.sub("", text)).strip()


def is_retriever(stages: Sequence[Stage]) -> bool:
    """Whether the stages ended in more than pre-training."""
    return any(stage.name in (FINETUNING, ADAPTATION) for stage in stages)


def summarize(
    contract: EncodingContract | None, config: Mapping[str, Any], stages: Sequence[Stage]
) -> str:
    """What a model is, how it was made, and what to do with it, as Markdown."""
    use = ""
    if contract is None and "CondenserForMaskedLM" in (config.get("architectures") or ()):
        kind = "A pre-training checkpoint: an encoder with its masked-LM head"
    elif contract is None:
        kind = "A pre-training checkpoint: an encoder with its masked-LM head and a Condenser head"
    elif is_retriever(stages):
        kind = "A dense retriever"
        if describe_objective(stages[-1]) == _OBJECTIVES["mse_cosine"]:
            kind = "A sentence encoder"
    else:
        kind, use = "A text encoder", " Fine-tune it to make it a retriever."
    if contract is None:
        use = " It is not a retriever: export the encoder, and fine-tune that."
    if not stages:
        return f"{kind}. How it was trained is not recorded.{use}"
    made = ", then ".join(dict.fromkeys(map(_describe_step, stages)))
    recipe = stages[0].recipe
    if recipe.get("encoder"):
        start = f"started from {link(recipe['encoder'])} and "
    else:
        start = "trained from random weights: " if recipe.get("encoder_config") else ""
    verdict = ""
    if stages[-1].run.get("verdict"):
        verdict = f" Verdict against its start: {markdown.escape(stages[-1].run['verdict'])}."
    return f"{kind}, {start}{made}.{verdict}{use}"


def _describe_step(stage: Stage) -> str:
    objective = describe_objective(stage)
    if stage.run.get(KEEPS_START):
        return f"not improved by fine-tuning with {objective} (these are the weights of the start)"
    return f"{_VERBS[stage.name]} {objective}"


def describe_objective(stage: Stage) -> str:
    """The objective of a stage in words."""
    objective = str(stage.run.get("objective") or stage.recipe.get("objective") or "")
    words = _OBJECTIVES.get(objective, markdown.escape(objective or "an unknown objective"))
    if (stage.recipe | stage.run).get("head_mlm_probability"):
        words += " with a RetroMAE-style head (Xiao et al. 2022)"
    if stage.recipe.get("bow_weight"):
        words += " and bag-of-words prediction (Ma et al. 2024)"
    return words


def link(name: object, kind: str = "") -> str:
    """A model or data set (`kind` is "datasets/") of a recipe, as Markdown."""
    text = str(name)
    if on_hub := hub_name(text) if kind else hub_model(text):
        return f"[{markdown.escape(text)}](https://huggingface.co/{kind}{on_hub})"
    if text == IN_MEMORY:
        return f"{text} (its origin is not recorded)"
    if text.startswith(LOCAL):
        place = text.removeprefix(LOCAL)
        return (
            "local files" if place.startswith("*") else f"{markdown.code(place)} (not on the Hub)"
        )
    if text.startswith(STARTER_TITLE):
        about = "a small encoder, pre-trained on English Wikipedia, CC BY-SA 3.0"
        return f"{markdown.code(text)} ({about})"
    return markdown.code(text)


def cite(stages: Sequence[Stage]) -> str:
    """The papers of the pre-training, as BibTeX."""
    words: set[str] = set()
    for stage in stages:
        words.add(str(stage.run.get("objective") or stage.recipe.get("objective")))
        words |= {name for name, value in (stage.recipe | stage.run).items() if value}
    keys = {key for word, key in _PAPERS.items() if word in words}
    entries = (_FOLDER / "references.bib").read_text("utf-8").strip().split("\n\n")
    cited = [entry for entry in entries if entry.partition("{")[2].partition(",")[0] in keys]
    return "\n\n".join(cited)


def _metadata(
    contract: EncodingContract | None,
    stages: Sequence[Stage],
    results: Sequence[EvaluationResult],
    title: str,
) -> ModelCardData:
    """The metadata that follow from the files of a repository."""
    task, tags = "fill-mask", list(GENERATED_TAGS[:2])
    if contract:
        task = "sentence-similarity" if is_retriever(stages) else "feature-extraction"
        tags = list(GENERATED_TAGS)
    languages: set[str] = set()
    for stage in stages:
        stated = stage.recipe.get("language") or stage.run.get("language")
        languages |= {*map(str, markdown.as_list(stated))}
    starts = [hub_model(stage.recipe.get("encoder")) for stage in reversed(stages)]
    figures = [
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
    return ModelCardData(
        library_name="sentence-transformers" if contract else "transformers",
        pipeline_tag=task,
        language=sorted(languages) or None,
        tags=tags,
        base_model=next(filter(None, starts), None),
        datasets=_hub_data(stages) or None,
        model_name=title if results else None,
        eval_results=figures or None,
    )


def _hub_data(stages: Sequence[Stage]) -> list[str]:
    """The data sets of the stages that are on the Hub."""
    names = dict[str, None]()
    for stage in stages:
        for key in ("corpus", "collection", "data"):
            for part in markdown.as_list(stage.recipe.get(key)):
                name = hub_name(part.get("path") if isinstance(part, Mapping) else part)
                names |= {name: None} if name else {}
    return list(names)


def _merge(existing: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of an earlier card, with what the files of the repository say now."""
    kept = {key: value for key, value in existing.items() if key != "model-index"}
    derived = ("library_name", "pipeline_tag", "base_model", "model-index")
    merged = {**made, **kept, **{key: made[key] for key in derived if key in made}}
    for key in ("tags", "datasets"):
        values = markdown.as_list(existing.get(key)) + markdown.as_list(made.get(key))
        if values:
            merged[key] = list(dict.fromkeys(values))
    return merged


def _title(folder: Path) -> str:
    """A folder's name, also while it is being written; the run folder's name for its model."""
    name = folder.resolve().name.removeprefix(".").removesuffix(".new")
    return folder.resolve().parent.name if name == MODEL_FOLDER else name
