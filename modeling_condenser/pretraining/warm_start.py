"""Start models from an encoder's backbone and LM head (Gao & Callan 2021, section 3.4).

The encoder may be a Condenser checkpoint, whose own head is then ignored.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from modeling_condenser.configuration_condenser import CondenserConfig, check_encoder
from modeling_condenser.encoder_parts import find_layers, freeze_pooler, n_positions
from modeling_condenser.files.models import (
    find_model_folder,
    quiet_loading,
    refuse_kernels,
    resolve_encoder_name,
)
from modeling_condenser.modeling_condenser import (
    CondenserForMaskedLM,
    CondenserForPreTraining,
    refuse_incomplete,
    take_lm_head,
)

from .arguments import Pooling
from .start import read_encoding

logger = logging.get_logger(__name__)


def condenser_from_encoder(
    name_or_path: str,
    *,
    n_head_layers: int = 2,
    skip_from: int | None = None,
    late_mlm: bool = True,
    head_mlm_probability: float | None = None,
    pooling: Pooling | None = None,
    config_changes: dict[str, Any] | None = None,
    **kwargs: Any,
) -> CondenserForPreTraining:
    """Warm-start backbone and LM head from an encoder, with a new Condenser head.

    The head's weights are drawn from torch's generator: call `transformers.set_seed` first.

    Args:
        name_or_path: Hub name or folder of a supported encoder, or of a Condenser checkpoint;
            "starter" for the encoder that comes with this package.
        n_head_layers, skip_from, late_mlm, head_mlm_probability: see `CondenserConfig`.
        pooling: "cls" or "mean", see `CondenserConfig`; by default that of the start if its files
            state one, else "cls".
        config_changes: attributes of the encoder's configuration, such as dropout probabilities.
        **kwargs: for the `from_pretrained` calls (`revision`, `token`, `cache_dir`, ...).

    Raises:
        ValueError: an unsupported encoder, a published model whose vectors are made in a way that
            cannot be kept, incomplete weights, or a value out of range.
    """
    head = {
        "n_head_layers": n_head_layers,
        "skip_from": skip_from,
        "late_mlm": late_mlm,
        "head_mlm_probability": head_mlm_probability,
    }
    return _start(CondenserForPreTraining, head, name_or_path, pooling, config_changes, **kwargs)


def masked_lm_from_encoder(
    name_or_path: str,
    *,
    pooling: Pooling | None = None,
    config_changes: dict[str, Any] | None = None,
    **kwargs: Any,
) -> CondenserForMaskedLM:
    """Warm-start backbone and LM head without a Condenser head; see `condenser_from_encoder`."""
    return _start(CondenserForMaskedLM, {}, name_or_path, pooling, config_changes, **kwargs)


def _start(
    model_class: Any,
    head: dict,
    name: str,
    pooling: str | None,
    changes: dict | None,
    **kwargs: Any,
) -> Any:
    name = find_start(name)
    config = open_config(name, **kwargs)
    if config.model_type == CondenserConfig.model_type:
        change_config(config.encoder_config, changes or {})
        start, _ = _open(CondenserForMaskedLM, name, config, **kwargs)
        encoder, lm_head = start.condenser.encoder, start.lm_head
        encoder.config.name_or_path = name  # where its tokenizer is
        how = {name: getattr(config, name) for name in ("pooling", "encoding", "lm_head_is_new")}
        how["pooling"] = pooling or config.pooling
    else:
        change_config(config, changes or {})
        check_encoder(config)
        how = read_encoding(name, config.architectures, pooling, **kwargs)
        encoder, lm_head = _load_parts(name, config, **kwargs)
        how["lm_head_is_new"] = lm_head is None and "encoding" in how
    model = model_class(CondenserConfig(encoder_config=encoder.config, **head, **how))
    model.condenser.encoder.load_state_dict(encoder.state_dict())
    if lm_head is not None:
        model.lm_head.load_state_dict(lm_head.state_dict())
    model.tie_weights()
    return model


def find_start(name: str) -> str:
    """What to open for the name of a start: the folder of a run or of a pinned revision, too."""
    name = resolve_encoder_name(name)
    return str(find_model_folder(name)) if "@" in name or Path(name).is_dir() else name


def _load_parts(name_or_path: str, config: Any, **kwargs: Any) -> tuple[Any, nn.Module | None]:
    """Open the backbone of a plain encoder and, if there is one, its LM head."""
    encoder, missing = _open(AutoModel, name_or_path, config, **kwargs)
    of_pooler = {key for key in missing if key.startswith("pooler.")}
    refuse_incomplete(name_or_path, missing - of_pooler, set())
    if of_pooler:
        freeze_pooler(encoder)
    masked_lm, missing = _open(AutoModelForMaskedLM, name_or_path, config, **kwargs)
    of_encoder = f"{masked_lm.base_model_prefix}."
    if all(key.startswith(of_encoder) for key in missing):
        return encoder, take_lm_head(masked_lm)[0]
    logger.warning(
        f"{name_or_path} has no LM head, so a new one is started, tied to its embeddings. "
        "An encoder saved with its masked-LM head is the better start."
    )
    return encoder, None


def open_config(name: str, **kwargs: Any) -> Any:
    """Open a configuration; code that it names is executed only with `trust_remote_code`."""
    if not kwargs.get("trust_remote_code"):
        refuse_kernels(PreTrainedConfig.get_config_dict(name, **kwargs)[0], name)
    return AutoConfig.from_pretrained(name, **{"trust_remote_code": False, **kwargs})


def _open(model_class: Any, name: str, config: Any, **kwargs: Any) -> tuple[Any, set[str]]:
    """Open a model in float32; also returns the names of the weights that are missing."""
    with quiet_loading():
        model, info = model_class.from_pretrained(
            name, config=config, output_loading_info=True, dtype=torch.float32, **kwargs
        )
    return model, set(info["missing_keys"])


def change_config(config: Any, changes: dict[str, Any]) -> None:
    """Change attributes of an encoder's configuration, which must exist."""
    for name, value in changes.items():
        if not hasattr(config, name):  # the library would add it, but never read it
            raise ValueError(
                f"config_changes names {name!r}, which a {config.model_type} encoder lacks; "
                "dropout is hidden_dropout_prob in BERT, dropout in DistilBERT."
            )
        setattr(config, name, value)


def check_fit(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, max_length: int) -> None:
    """Raise a ValueError if a tokenizer or a sequence length does not fit a model."""
    vocab_size = model.config.encoder_config.vocab_size
    if len(tokenizer) > vocab_size:
        raise ValueError(
            f"The tokenizer has {len(tokenizer)} tokens, but the model embeds {vocab_size}: use "
            "the model's own, or call model.resize_token_embeddings(len(tokenizer)) and save it."
        )
    encoder: Any = model.base_model.encoder
    padding = encoder.get_input_embeddings().padding_idx
    # RoBERTa and similar encoders count positions from the padding token's id.
    if padding is not None and tokenizer.pad_token_id != padding:
        raise ValueError(
            f"The tokenizer pads with token {tokenizer.pad_token_id}, the model with {padding}: "
            "use the model's own tokenizer."
        )
    longest = n_positions(encoder)
    if longest is not None and max_length > longest:
        raise ValueError(
            f"max_length is {max_length}, but the encoder has positions for {longest} tokens only."
        )


def fingerprint_start(model: Any) -> str:
    """SHA-256 of the backbone's configuration and layers, from which a training starts.

    Embeddings are left out, because new tokens have random ones; so is a new head.
    """
    encoder = model.condenser.encoder
    config = {
        name: value
        for name, value in encoder.config.to_diff_dict().items()
        if name not in ("transformers_version", "architectures") and not name.startswith("_")
    }
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for layer in find_layers(encoder):
        for name, weights in layer.state_dict().items():
            digest.update(name.encode())
            digest.update(weights.cpu().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
