"""Open the encoder that a model starts from: its backbone and LM head (`from_encoder`).

This file is not copied to the Hub. A checkpoint there is opened without it.
"""

import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from .configuration_condenser import SUPPORTED_ENCODERS, CondenserConfig, check_encoder
from .encoder_parts import refuse_incomplete
from .files.models import (
    MODULES_FILE,
    STARTER,
    find_model_folder,
    is_checkpoint,
    module_paths,
    quiet_loading,
)
from .lm_head import take_lm_head
from .modeling_condenser import CondenserForMaskedLM

logger = logging.get_logger(__name__)

_SPECIAL_TOKENS = tuple(f"{role}_token_id" for role in ("pad", "bos", "eos", "cls", "sep", "mask"))
_HUB_ARGUMENTS = ("revision", "token", "cache_dir", "local_files_only")


@dataclass(frozen=True)
class Start:
    """What a model starts from, in float32; `lm_head` is None if there is none."""

    encoder: Any
    lm_head: nn.Module | None
    pooling: str = "cls"
    similarity: str = "dot"


def open_start(
    name: Any, changes: dict[str, Any] | None = None, *, from_retriever: bool = False, **hub: Any
) -> Start:
    """Open an encoder, or a Condenser checkpoint without its head; see `from_encoder`."""
    if unknown := hub.keys() - set(_HUB_ARGUMENTS):
        raise TypeError(f"from_encoder has no argument {', '.join(sorted(unknown))}.")
    if isinstance(name, PreTrainedModel):
        start = _copy_parts(name, changes)
        start.encoder.config.name_or_path = ""  # of its configuration, perhaps not of its weights
        return start
    if not isinstance(name, str | Path):
        raise ValueError(
            f"from_encoder is given a {type(name).__name__}, expected a Hub name, a folder or a "
            "model of transformers."
        )
    name = str(name)
    folder = find_start(name, from_retriever=from_retriever, **hub)
    config = open_config(folder, changes)
    if is_checkpoint(folder):
        checkpoint = CondenserForMaskedLM.from_pretrained(
            folder, config=config, dtype=torch.float32
        )
        encoder, lm_head = checkpoint.condenser.encoder, checkpoint.lm_head
        _untie(name, encoder, checkpoint)
        start = Start(encoder, lm_head, config.pooling, config.similarity)
    else:
        start = Start(*load_encoder(folder, config))
    # Where its tokenizer and records are found: on the Hub, or in the folder of one revision.
    is_pinned = "@" in name or any(value is not None for value in hub.values())
    is_on_hub = not is_pinned and name != STARTER and not Path(name).is_dir()
    start.encoder.config.name_or_path = name if is_on_hub else str(folder)
    return start


def _copy_parts(model: PreTrainedModel, changes: dict[str, Any] | None) -> Start:
    """Copy the parts of a model in memory: an encoder, one with its LM head, or a Condenser."""
    copied: Any = copy.deepcopy(model).float()
    if hasattr(copied, "condenser"):
        config = copied.config
        change_config(config.encoder_config, changes)
        _untie(type(model).__name__, copied.condenser.encoder, copied)
        return Start(copied.condenser.encoder, copied.lm_head, config.pooling, config.similarity)
    check_encoder(copied.config)
    change_config(copied.config, changes)
    name = type(model).__name__
    encoder = AutoModel.from_config(copied.config, dtype=torch.float32)
    missing = encoder.load_state_dict(copied.base_model.state_dict(), strict=False).missing_keys
    _refuse_incomplete(name, missing)
    with torch.device("meta"):  # its encoder is not needed
        masked_lm = AutoModelForMaskedLM.from_config(copied.config)
    loaded = masked_lm.load_state_dict(copied.state_dict(), strict=False, assign=True)
    return Start(encoder, _find_lm_head(name, encoder, masked_lm, loaded.missing_keys))


def new_encoder(
    encoder_config: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase
) -> PreTrainedModel:
    """Make a masked LM with random weights, drawn from torch's generator (`set_seed`).

    `encoder_config` has attributes of its transformers configuration, `model_type` among them. The
    tokenizer gives the size of the vocabulary and the ids of special tokens that are not set. An
    unknown attribute is refused; that of a file of an earlier transformers is left out.
    """
    kind = encoder_config.get("model_type")
    if kind not in SUPPORTED_ENCODERS:
        raise ValueError(
            f"encoder_config has the model_type {kind!r}; supported: "
            f"{', '.join(SUPPORTED_ENCODERS)}."
        )
    of_file = ("architectures", "transformers_version", "torch_dtype")  # not of the encoder
    attributes = {
        name: value
        for name, value in encoder_config.items()
        if name not in of_file and not name.startswith("_")
    }
    known, made = AutoConfig.for_model(kind), AutoConfig.for_model(**attributes)
    # The library takes some by other names, and keeps what it does not know.
    unknown = [name for name in attributes if not hasattr(known, name) and hasattr(made, name)]
    for name in unknown:
        nearest = get_close_matches(name, known.to_dict(), n=1)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        message = f"encoder_config: a {kind} encoder has no attribute {name!r}."
        if "transformers_version" not in encoder_config:
            raise ValueError(message + hint)
        logger.warning("%s It is left out.", message)
        del attributes[name]
    attributes.setdefault("vocab_size", len(tokenizer))
    for name in _SPECIAL_TOKENS:
        if hasattr(known, name):
            attributes.setdefault(name, getattr(tokenizer, name))
    config = AutoConfig.for_model(**attributes)
    check_encoder(config)
    return AutoModelForMaskedLM.from_config(config, dtype=torch.float32)


def read_config_file(file: str | Path) -> dict[str, Any]:
    """Read the JSON file of an `encoder_config`."""
    try:
        return json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"encoder_config is {str(file)!r}, expected a mapping or a JSON file: {error}."
        ) from error


def find_start(name: str, *, from_retriever: bool = False, **hub: Any) -> Path:
    """The folder of an encoder or Condenser checkpoint, or of a retriever's transformer."""
    folder = find_model_folder(name, **hub)
    if is_checkpoint(folder) or not (folder / MODULES_FILE).is_file():
        return folder
    if not from_retriever:
        raise ValueError(
            f"{name} is an export, which has no LM head, or another model of sentence-transformers,"
            " which pre-training seldom improves: use `condenser finetune` or `adapt`, or set "
            "from_retriever: true to pre-train its transformer."
        )
    return folder / module_paths(folder)[0]


def open_config(folder: Path, changes: dict[str, Any] | None) -> Any:
    """Open the configuration of an encoder or checkpoint, with changes of the encoder's."""
    config_class: Any = CondenserConfig if is_checkpoint(folder) else AutoConfig
    config = config_class.from_pretrained(folder, trust_remote_code=False)
    change_config(getattr(config, "encoder_config", config), changes)
    return config


def change_config(encoder_config: Any, changes: dict[str, Any] | None) -> None:
    """Change attributes of an encoder's configuration; an unknown one is a ValueError."""
    for name, value in (changes or {}).items():
        if not hasattr(encoder_config, name):  # the library would add it, but never read it
            raise ValueError(
                f"config_changes names {name!r}, which a {encoder_config.model_type} encoder "
                "lacks; dropout is hidden_dropout_prob in BERT, dropout in DistilBERT."
            )
        setattr(encoder_config, name, value)


def load_encoder(folder: Path, config: Any) -> tuple[Any, nn.Module | None]:
    """Open the backbone of a plain encoder in float32 and, if it has one, its LM head."""
    check_encoder(config)
    encoder, missing, unexpected = _open(AutoModel, folder, config)
    _refuse_incomplete(folder, missing)
    _warn_of_unread(folder, encoder, unexpected)
    masked_lm, missing, _ = _open(AutoModelForMaskedLM, folder, config)
    return encoder, _find_lm_head(folder, encoder, masked_lm, missing)


def _refuse_incomplete(name: Any, missing: Iterable[str]) -> None:
    """Raise if an encoder lacks weights other than a pooler's, which no loss reads."""
    refuse_incomplete(name, {key for key in missing if not key.startswith("pooler.")}, set())


def _warn_of_unread(name: Any, encoder: Any, unexpected: Iterable[str]) -> None:
    """Warn of weights of the encoder itself that its class has no place for."""
    parts = {part for part, _ in encoder.named_children() if part != "pooler"}
    prefix = f"{encoder.base_model_prefix}."
    unread = [key for key in unexpected if key.removeprefix(prefix).partition(".")[0] in parts]
    if unread:
        logger.warning(
            f"{len(unread)} weights of {name} are not read, such as {min(unread)}: its "
            "configuration, or this version of transformers, has no place for them."
        )


def _untie(name: Any, encoder: Any, masked_lm: Any) -> None:
    """Say so in the encoder's configuration if a trained output matrix is not its embeddings."""
    output, embeddings = (
        masked_lm.get_output_embeddings().weight,
        masked_lm.get_input_embeddings().weight,
    )
    if encoder.config.tie_word_embeddings and not torch.equal(output, embeddings):
        encoder.config.tie_word_embeddings = False
        logger.warning(
            f"The LM head of {name} has a matrix of its own, although its configuration ties it to "
            "the embeddings: tie_word_embeddings is now false."
        )


def _find_lm_head(
    name: Any, encoder: Any, masked_lm: Any, missing: Iterable[str]
) -> nn.Module | None:
    """The LM head of a masked LM that was opened; None, with a warning, if it lacks weights."""
    of_encoder = f"{masked_lm.base_model_prefix}."
    if all(key.startswith(of_encoder) for key in missing):
        _untie(name, encoder, masked_lm)
        return take_lm_head(masked_lm)[0]
    logger.warning(
        f"{name} has no LM head, so a new one is started, tied to its embeddings. "
        "An encoder saved with its masked-LM head is the better start."
    )
    return None


def _open(model_class: Any, folder: Path, config: Any) -> tuple[Any, set[str], set[str]]:
    """Open a model in float32; also returns the names of missing and of unexpected weights."""
    with quiet_loading():
        model, info = model_class.from_pretrained(
            folder, config=config, output_loading_info=True, dtype=torch.float32
        )
    return model, set(info["missing_keys"]), set(info["unexpected_keys"])
