"""Read how a published model makes vectors of texts, which pre-training and its export keep.

The files are those of sentence-transformers, and the contract of an export of this package. What
cannot be kept is refused before anything is trained.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import torch
from transformers import AutoModel, AutoTokenizer

from modeling_condenser.configuration_condenser import POOLINGS
from modeling_condenser.encoder_parts import n_positions
from modeling_condenser.model_files.contract import (
    CONTRACT_FILE,
    UNLIMITED,
    Similarity,
    choose_prompts,
)
from modeling_condenser.model_files.model_folder import (
    MODULES_CONFIG_FILE,
    MODULES_FILE,
    quiet_loading,
)

logger = logging.getLogger(__name__)

_KEPT = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
_ADVICE = (
    "Pre-training keeps a Transformer, CLS or mean pooling, and Normalize: start from such a model "
    "or from a plain encoder."
)


def read_encoding(
    name: str, architectures: list[str] | None, pooling: str | None, **kwargs: Any
) -> dict[str, Any]:
    """Read `pooling` and `encoding` for the `CondenserConfig` that starts from a model.

    Args:
        name: folder or Hub name of an encoder or a sentence-transformers model.
        architectures: of its config.json.
        pooling: the stated one, which replaces that of the model.
        **kwargs: of `from_pretrained`, such as `revision`.

    Raises:
        ValueError: it is a model of another kind, or has modules or settings that are not kept.
    """
    hub = {key: kwargs.get(key) for key in ("token", "revision")}
    hub |= {"cache_folder": kwargs.get("cache_dir")}
    hub |= {"local_files_only": kwargs.get("local_files_only", False)}
    settings = _read_json(name, MODULES_CONFIG_FILE, hub) or {}
    prompts = settings.get("prompts") or {}
    modules = _read_json(name, MODULES_FILE, hub)
    _refuse_other_kinds(name, settings, modules, architectures or [])
    if modules is None:
        logger.info("%s states no pooling: it is %s.", name, pooling or "cls, as in the papers")
        return {"pooling": pooling or "cls"}
    kinds = [_kind(module) for module in modules]
    if kinds not in _KEPT:
        raise ValueError(f"{name} has the modules {', '.join(kinds)}. {_ADVICE}")
    own = _read_json(name, CONTRACT_FILE, hub) or {}
    pooling = pooling or _read_pooling(name, modules[1]["path"], hub)
    normalize = "Normalize" in kinds
    # Unit vectors are ordered alike by all of them.
    similarity = "cosine" if normalize else settings.get("similarity_fn_name") or "cosine"
    if similarity not in get_args(Similarity):
        choices = ", ".join(get_args(Similarity))
        raise ValueError(f"{name} has the similarity {similarity!r}, expected one of {choices}.")
    encoding = {
        **_read_transformer(name, hub, **kwargs),
        "similarity": similarity,
        **choose_prompts(prompts),
        **{field: value for field, value in own.items() if field != "pooling"},
        "normalize": normalize,
        "default_prompt_name": settings.get("default_prompt_name"),
    }
    # `encode_document` looks for this name first.
    named = {"query": encoding["query_prompt"], "document": encoding["passage_prompt"]}
    encoding["prompts"] = {**prompts, **named}
    logger.info("%s: %s pooling, %s similarity.", name, pooling, similarity)
    return {"pooling": pooling, "encoding": encoding}


def _refuse_other_kinds(
    name: str, settings: Mapping[str, Any], modules: Any, architectures: list[str]
) -> None:
    """Raise a ValueError for a model that does not make one vector of a text."""
    kind = settings.get("model_type", "SentenceTransformer")
    if kind == "SentenceTransformer" and modules is None:
        others = ("ForSequenceClassification", "ColBERT")
        kind = next((a for a in architectures if a.endswith(others)), kind)
    if kind != "SentenceTransformer":
        raise ValueError(
            f"{name} is a {kind}; expected an encoder that makes one vector of a text. Start from "
            "a SentenceTransformer, or from the encoder that this model was trained from."
        )


def _kind(module: Mapping[str, str]) -> str:
    """The class of a module of sentence-transformers; of others with its package."""
    package, _, kind = module["type"].rpartition(".")
    return kind if package.startswith("sentence_transformers.") else module["type"]


def _read_pooling(name: str, path: str, hub: Mapping[str, Any]) -> str:
    from sentence_transformers.sentence_transformer.modules import Pooling

    module = Pooling.load(name, subfolder=path, **hub)
    mode = module.pooling_mode
    if mode not in POOLINGS or not module.include_prompt:
        what = mode if isinstance(mode, str) else "+".join(mode)
        what += "" if module.include_prompt else " without the prompt (include_prompt)"
        raise ValueError(f"{name} has the pooling {what}. {_ADVICE} Or state pooling: cls or mean.")
    return mode


def _read_transformer(name: str, hub: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
    """Lengths, inputs and the precision of the weights."""
    from sentence_transformers.sentence_transformer.modules import Transformer

    settings = Transformer.load_config(name, **hub)
    tokenizer = AutoTokenizer.from_pretrained(name, **kwargs)
    if settings.get("do_lower_case") and tokenizer.tokenize("A") != tokenizer.tokenize("a"):
        raise ValueError(
            f"{name} has do_lower_case: true, but its tokenizer keeps capitals: put the lower case "
            "into the tokenizer's normalizer."
        )
    with quiet_loading():  # the meta device reads no weights
        model = AutoModel.from_pretrained(name, dtype="auto", device_map="meta", **kwargs)
    found: dict[str, Any] = {"token_type_ids": "token_type_ids" in tokenizer.model_input_names}
    limit = settings.get("max_seq_length") or tokenizer.model_max_length
    for field, kind in (("query_max_length", "query"), ("passage_max_length", "document")):
        length = min(settings.get(f"{kind}_length") or limit, n_positions(model) or limit)
        found |= {field: length} if length < UNLIMITED else {}
    if model.dtype != torch.float32:
        found["dtype"] = str(model.dtype).removeprefix("torch.")
    return found


def _read_json(name: str, file: str, hub: Mapping[str, Any]) -> Any:
    """The content of a file of a folder or a repository; None if there is no such file."""
    from sentence_transformers.util import load_file_path

    path = load_file_path(name, file, **hub)
    return None if path is None else json.loads(Path(path).read_text(encoding="utf-8"))
