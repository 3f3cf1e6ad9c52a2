"""Read how a published model makes vectors of texts, which pre-training and its export keep.

What cannot be kept is refused before anything is trained.
"""

import logging
from dataclasses import asdict
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer

from modeling_condenser.configuration_condenser import POOLINGS
from modeling_condenser.encoding.opening import stated_similarity
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.files.models import (
    MODULES_CONFIG_FILE,
    MODULES_FILE,
    find_model_folder,
    quiet_loading,
    read_json,
)

logger = logging.getLogger(__name__)

_KEPT = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
_OTHER_KINDS = ("ForSequenceClassification", "ColBERT")  # do not make one vector of a text
_HUB_ARGUMENTS = ("revision", "token", "cache_dir", "local_files_only")


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
    hub = {key: kwargs[key] for key in _HUB_ARGUMENTS if key in kwargs}
    folder = find_model_folder(name, **hub)
    modules, settings = (read_json(folder / f, {}) for f in (MODULES_FILE, MODULES_CONFIG_FILE))
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    others = [kind for kind in architectures or [] if kind.endswith(_OTHER_KINDS)]
    if not modules and not others:
        logger.info("%s states no pooling: it is %s.", name, pooling or "cls, as in the papers")
        return {"pooling": pooling or "cls"}
    if kinds not in _KEPT:
        raise ValueError(
            f"{name} has the modules {', '.join(kinds or others)}. Pre-training keeps a "
            "Transformer, CLS or mean pooling, and Normalize: start from such a model, or from the "
            "encoder that this one was trained from."
        )
    # The library's default, where nothing is stated. Unit vectors are ordered alike by all.
    is_normal = "Normalize" in kinds
    default = None if stated_similarity(folder) else "cosine"
    opened = Retriever(folder, pooling=pooling, similarity=default, device="cpu")
    contract = asdict(opened.contract)
    if contract["pooling"] not in POOLINGS:
        raise ValueError(
            f"{name} has the pooling {contract['pooling']}, which pre-training does not keep: "
            f"state pooling: {' or '.join(POOLINGS)}, or start from another model."
        )
    _check_case(name, opened.model[0], **kwargs)
    pooling = contract.pop("pooling")
    encoding = {
        **contract,
        "similarity": "cosine" if is_normal else contract["similarity"],
        "normalize": is_normal,
        "default_prompt_name": settings.get("default_prompt_name"),
        # `encode_document` looks for this name first.
        "prompts": {
            **(settings.get("prompts") or {}),
            "query": contract["query_prompt"],
            "document": contract["passage_prompt"],
        },
    }
    with quiet_loading():  # the meta device reads no weights
        model = AutoModel.from_pretrained(name, dtype="auto", device_map="meta", **kwargs)
    if model.dtype != torch.float32:
        encoding["dtype"] = str(model.dtype).removeprefix("torch.")
    logger.info("%s: %s pooling, %s similarity.", name, pooling, encoding["similarity"])
    logger.warning(
        "%s already makes vectors. Further pre-training made a good retriever worse more often "
        "than better: compare the result with it, or use `condenser adapt`.",
        name,
    )
    return {"pooling": pooling, "encoding": encoding}


def _check_case(name: str, transformer: Any, **kwargs: Any) -> None:
    """Raise a ValueError if the module, but not its tokenizer, makes texts lower case."""
    tokenizer = AutoTokenizer.from_pretrained(name, **kwargs)
    if transformer.do_lower_case and tokenizer.tokenize("A") != tokenizer.tokenize("a"):
        raise ValueError(
            f"{name} has do_lower_case: true, but its tokenizer keeps capitals: put the lower case "
            "into the tokenizer's normalizer."
        )
