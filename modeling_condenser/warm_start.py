"""Open the encoder that a model starts from: its backbone and LM head (`from_encoder`).

This file is not copied to the Hub. A checkpoint there is opened without it.
"""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM
from transformers.utils import logging

from .configuration_condenser import CondenserConfig, check_encoder
from .encoder_parts import freeze_pooler, refuse_incomplete, take_lm_head
from .files.models import (
    MODULES_FILE,
    STARTER,
    find_model_folder,
    is_checkpoint,
    module_paths,
    quiet_loading,
)

logger = logging.get_logger(__name__)

_HUB_ARGUMENTS = ("revision", "token", "cache_dir", "local_files_only")


def find_start(name: str, *, from_retriever: bool = False, **kwargs: Any) -> Path:
    """The folder of an encoder or Condenser checkpoint, downloaded if it is on the Hub.

    Args:
        name: see `find_model_folder`.
        from_retriever: accept a model of sentence-transformers, for its transformer.
        **kwargs: of `from_pretrained`; those for the Hub are used.
    """
    hub = {key: value for key, value in kwargs.items() if key in _HUB_ARGUMENTS}
    folder = find_model_folder(name, **hub)
    if is_checkpoint(folder) or not (folder / MODULES_FILE).is_file():
        return folder
    if not from_retriever:
        raise ValueError(
            f"{name} is an embedding model of sentence-transformers, which pre-training seldom "
            "improves: use `condenser finetune` or `condenser adapt`, or set from_retriever: true "
            "to pre-train its transformer."
        )
    return folder / module_paths(folder)[0]


def name_start(name: str, folder: Path) -> str:
    """The name by which a start's tokenizer and records are found: on the Hub, or its folder."""
    is_on_hub = "@" not in name and name != STARTER and not Path(name).is_dir()
    return name if is_on_hub else str(folder)


def open_config(folder: Path, changes: dict[str, Any] | None, **kwargs: Any) -> Any:
    """Open the configuration of an encoder or checkpoint, and change attributes of the encoder's.

    Code that a configuration names is executed only with `trust_remote_code`.
    """
    config_class: Any = CondenserConfig if is_checkpoint(folder) else AutoConfig
    config = config_class.from_pretrained(folder, **{"trust_remote_code": False, **kwargs})
    encoder_config = getattr(config, "encoder_config", config)
    for name, value in (changes or {}).items():
        if not hasattr(encoder_config, name):  # the library would add it, but never read it
            raise ValueError(
                f"config_changes names {name!r}, which a {encoder_config.model_type} encoder "
                "lacks; dropout is hidden_dropout_prob in BERT, dropout in DistilBERT."
            )
        setattr(encoder_config, name, value)
    return config


def load_encoder(folder: Path, config: Any, **kwargs: Any) -> tuple[Any, nn.Module | None]:
    """Open the backbone of a plain encoder in float32 and, if it has one, its LM head."""
    check_encoder(config)
    encoder, missing = _open(AutoModel, folder, config, **kwargs)
    of_pooler = {key for key in missing if key.startswith("pooler.")}
    refuse_incomplete(folder, missing - of_pooler, set())
    if of_pooler:
        freeze_pooler(encoder)
    masked_lm, missing = _open(AutoModelForMaskedLM, folder, config, **kwargs)
    of_encoder = f"{masked_lm.base_model_prefix}."
    if all(key.startswith(of_encoder) for key in missing):
        return encoder, take_lm_head(masked_lm)[0]
    logger.warning(
        f"{folder} has no LM head, so a new one is started, tied to its embeddings. "
        "An encoder saved with its masked-LM head is the better start."
    )
    return encoder, None


def _open(model_class: Any, folder: Path, config: Any, **kwargs: Any) -> tuple[Any, set[str]]:
    """Open a model; also returns the names of the weights that are missing."""
    options = {"output_loading_info": True, "dtype": torch.float32, **kwargs}
    with quiet_loading():
        model, info = model_class.from_pretrained(folder, config=config, **options)
    return model, set(info["missing_keys"])
