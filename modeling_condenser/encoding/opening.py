"""A model's folder in; its sentence-transformers modules and its encoding contract out.

Three kinds of folders hold an encoder, and each says in another way how it encodes:

encoding_contract.json   our own exports: the contract says all
modules.json             sentence-transformers models: the contract is read from their files
config.json alone        plain encoders: nothing says how tokens become one vector, so it is stated

What a folder does not say is never guessed: a wrong pooling gives vectors that look right.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors import SafetensorError
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling as PoolingModule
from transformers import AutoModel, PreTrainedTokenizerBase

from modeling_condenser.hub.model_folder import CONFIG_FILE, MODULES_FILE, module_paths
from modeling_condenser.hub.quiet_loading import quiet_loading
from modeling_condenser.pretraining.positions import n_positions
from modeling_condenser.repository.contract import (
    CONTRACT_FILE,
    EncodingContract,
    Pooling,
    Similarity,
)

from .model_files import read_modules_config

_UNLIMITED = 10**9  # transformers writes 10^30 where a tokenizer has no length of its own
_ADAPTER_FILE = "adapter_config.json"
_PASSAGE_PROMPTS = ("document", "passage", "corpus")  # as sentence-transformers tries them


@dataclasses.dataclass(frozen=True)
class OpenedModel:
    """An encoder that is ready to run.

    Attributes:
        folder: its files.
        model: its modules; the first is a `Transformer` with a text tokenizer.
        contract: how it encodes, with what was stated. Where a sentence-transformers model pools in
            a way that a contract of our own has no word for, `pooling` is sentence-transformers'
            word: "weightedmean", "lasttoken", "cls+mean" for vectors put side by side, "none" where
            no module pools. Such a contract tells the truth; it cannot be saved and loaded.
    """

    folder: Path
    model: SentenceTransformer
    contract: EncodingContract


def open_model(
    folder: Path, stated: Mapping[str, Any], *, device: str | torch.device | None = None
) -> OpenedModel:
    """Load an encoder, and find out how it encodes.

    Args:
        folder: an export, a sentence-transformers model or a plain encoder.
        stated: fields of `EncodingContract` that complete or override what the folder says.
        device: by default an accelerator, where there is one.

    Raises:
        FileNotFoundError: the folder holds no encoder.
        ValueError: something is neither said nor stated, or does not fit the encoder.
    """
    _check_choice(stated, "similarity", Similarity)
    _check_device(device)
    try:
        model, contract = _open(folder, stated, device)
    except (json.JSONDecodeError, SafetensorError) as error:
        raise ValueError(
            f"A file in {folder} is damaged: {error}. Save or download the model anew."
        ) from error
    check_length(
        folder,
        model,
        query_max_length=contract.query_max_length,
        passage_max_length=contract.passage_max_length,
    )
    model.eval()
    return OpenedModel(folder, model, contract)


def _open(
    folder: Path, stated: Mapping[str, Any], device: str | torch.device | None
) -> tuple[SentenceTransformer, EncodingContract]:
    if (folder / CONTRACT_FILE).is_file():
        _check_choice(stated, "pooling", Pooling)
        contract = dataclasses.replace(EncodingContract.load(folder), **stated)
        model = _with_pooling(_open_transformer(folder), contract, device)
    elif (folder / MODULES_FILE).is_file():
        _check_bi_encoder(folder)
        model = SentenceTransformer(str(folder), device=_name(device))
        contract = _contract_of_modules(folder, model, stated)
    elif (folder / CONFIG_FILE).is_file():
        _check_pooling_stated(folder, stated)
        transformer = _open_transformer(folder)
        contract = _contract_of_plain(folder, transformer, stated)
        model = _with_pooling(transformer, contract, device)
    else:
        raise FileNotFoundError(_no_encoder(folder))
    return model, contract


def _no_encoder(folder: Path) -> str:
    inner = [file.parent for file in sorted(folder.glob(f"*/{CONFIG_FILE}"))]
    hint = f" Did you mean {inner[0]}?" if inner else ""
    return (
        f"{folder} holds no encoder: expected a folder with {CONTRACT_FILE}, {MODULES_FILE} or "
        f"{CONFIG_FILE} in it.{hint}"
    )


def _name(device: str | torch.device | None) -> str | None:
    return None if device is None else str(device)


def _open_transformer(folder: Path) -> Transformer:
    """A folder's encoder and tokenizer as a module that gives the last hidden state."""
    last_hidden = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
    with quiet_loading():  # its report of missing weights is about poolers
        transformer = Transformer(
            str(folder), modality_config=last_hidden, module_output_name="token_embeddings"
        )
    _tokenizer(folder, transformer)
    _check_weights(folder, transformer.model)
    return transformer


def _with_pooling(
    transformer: Transformer, contract: EncodingContract, device: str | torch.device | None
) -> SentenceTransformer:
    """A model that does what a contract says."""
    dimension = transformer.get_embedding_dimension()
    modules = [transformer, PoolingModule(dimension, pooling_mode=contract.pooling)]
    if contract.similarity == "cosine":
        modules.append(Normalize())
    return SentenceTransformer(
        modules=modules, similarity_fn_name=contract.similarity, device=_name(device)
    )


def _contract_of_plain(
    folder: Path, transformer: Transformer, stated: Mapping[str, Any]
) -> EncodingContract:
    tokenizer = _tokenizer(folder, transformer)
    longest = _shortest(tokenizer.model_max_length, n_positions(transformer.model))
    read = {
        "query_max_length": longest,
        "passage_max_length": longest,
        "token_type_ids": "token_type_ids" in tokenizer.model_input_names,
    }
    return _made(folder, {**read, **stated})


def _contract_of_modules(
    folder: Path, model: SentenceTransformer, stated: Mapping[str, Any]
) -> EncodingContract:
    """The contract of a sentence-transformers model; its pooling is changed to a stated one."""
    transformer: Any = model[0]
    tokenizer = _tokenizer(folder, transformer)
    _check_weights(folder / next(iter(module_paths(folder))), transformer.model)
    longest = _shortest(tokenizer.model_max_length, n_positions(transformer.model))
    prompts = [model.prompts.get(name) for name in _PASSAGE_PROMPTS]
    read = {
        "query_max_length": _shortest(transformer.query_length, longest),
        "passage_max_length": _shortest(transformer.document_length, longest),
        "token_type_ids": "token_type_ids" in tokenizer.model_input_names,
        "query_prompt": model.prompts.get("query") or "",
        "passage_prompt": next(filter(None, prompts), ""),
        "similarity": None if "similarity" in stated else _similarity_of_modules(folder, model),
    }
    # What the model does already may be stated, too: a contract can be stated as it was read.
    if stated.get("pooling") not in (None, _pooling_of_modules(model)):
        _change_pooling(folder, model, stated["pooling"])
    return _made(folder, {**read, "pooling": _pooling_of_modules(model), **stated})


def _tokenizer(folder: Path, transformer: Any) -> PreTrainedTokenizerBase:
    """The text tokenizer of a model's first module."""
    is_plain = (
        isinstance(transformer, Transformer)
        and isinstance(transformer.processor, PreTrainedTokenizerBase)
        and set(transformer.modality_config) == {"text"}
        and not transformer.processing_kwargs
    )
    if not is_plain:
        raise ValueError(
            f"{folder} begins with {type(transformer).__name__}, whose texts do not become tokens "
            "in the plain way: expected a Transformer for text alone. Encode with "
            "sentence-transformers itself, and search the arrays with `search_exact_arrays`."
        )
    if transformer.tokenizer.pad_token_id is None:
        raise ValueError(
            f"The tokenizer of {folder} has no padding token, so texts cannot share a batch: set "
            "`pad_token` in its tokenizer_config.json."
        )
    n_special = len(transformer.tokenizer.all_special_tokens)
    if len(transformer.tokenizer) <= n_special:  # so transformers opens one without any files
        raise ValueError(
            f"The tokenizer of {folder} knows no words beside {n_special} special ones: its files "
            "are missing, such as tokenizer.json; save the tokenizer there, too."
        )
    return transformer.tokenizer


def _pooling_of_modules(model: SentenceTransformer) -> str:
    poolings = [module for module in model if isinstance(module, PoolingModule)]
    if not poolings:
        return "none"
    modes = poolings[-1].pooling_mode
    name = modes if isinstance(modes, str) else "+".join(modes)
    return name if poolings[-1].include_prompt else f"{name} without prompt"


def _change_pooling(folder: Path, model: SentenceTransformer, pooling: str) -> None:
    _check_choice({"pooling": pooling}, "pooling", Pooling)
    places = [name for name, module in model.named_children() if isinstance(module, PoolingModule)]
    if len(places) != 1:
        raise ValueError(
            f"pooling={pooling} cannot be applied to {folder}, which has {len(places)} pooling "
            "modules; expected one: leave the pooling to the model."
        )
    old: Any = getattr(model, places[0])
    new = PoolingModule(
        old.embedding_dimension, pooling_mode=pooling, include_prompt=old.include_prompt
    )
    if new.pooling_output_dimension != old.pooling_output_dimension and model[-1] is not old:
        raise ValueError(
            f"pooling={pooling} gives vectors of {new.pooling_output_dimension} numbers, but the "
            f"modules of {folder} that follow expect {old.pooling_output_dimension}: leave the "
            "pooling to the model."
        )
    setattr(model, places[0], new)


def _similarity_of_modules(folder: Path, model: SentenceTransformer) -> str:
    """What the files say; sentence-transformers itself would take cosine where they are silent."""
    said = read_modules_config(folder).get("similarity_fn_name")
    if said is None and isinstance(model[-1], Normalize):
        return "cosine"
    if said not in get_args(Similarity):
        how = f"compares by {said}" if said else "does not say how its vectors are compared"
        raise ValueError(
            f"{folder} {how}: state one of {_choices(Similarity)}, e.g. similarity=dot. Its model "
            "card tells which it was trained for."
        )
    return str(said)


def _made(folder: Path, fields: Mapping[str, Any]) -> EncodingContract:
    for name in ("query_max_length", "passage_max_length"):
        if fields[name] is None:
            raise ValueError(
                f"{folder} does not say how long its texts may be: state {name}, in tokens, e.g. "
                f"{name}=512."
            )
    return EncodingContract(**fields)


def _shortest(*lengths: int | None) -> int | None:
    known = [length for length in lengths if length is not None and length < _UNLIMITED]
    return min(known, default=None)


def _check_choice(stated: Mapping[str, Any], name: str, kind: Any) -> None:
    if name in stated and stated[name] not in get_args(kind):
        raise ValueError(f"{name} is {stated[name]!r}, expected one of {_choices(kind)}.")


def _check_device(device: str | torch.device | None) -> None:
    if device is None:
        return
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"The device {str(device)!r} cannot be used here: {str(error).splitlines()[0]} Name "
            "one that torch sees, such as cpu or cuda:0."
        ) from error


def _choices(kind: Any) -> str:
    return ", ".join(get_args(kind))


def _check_bi_encoder(folder: Path) -> None:
    kind = read_modules_config(folder).get("model_type", SentenceTransformer.__name__)
    if kind != SentenceTransformer.__name__:
        raise ValueError(
            f"{folder} is a {kind}, which does not turn a text into one dense vector: name a "
            f"{SentenceTransformer.__name__} or a plain encoder."
        )


def _check_pooling_stated(folder: Path, stated: Mapping[str, Any]) -> None:
    _check_choice(stated, "pooling", Pooling)
    if "pooling" not in stated:
        raise ValueError(
            f"{folder} is a plain encoder and does not say how its tokens become one vector: state "
            f"pooling, one of {_choices(Pooling)}, e.g. {folder},pooling=cls in a command. It is "
            "never guessed: sentence-transformers would take the mean without a word, and an "
            "encoder that was trained for CLS then looks far worse than it is."
        )


def check_length(folder: Path, model: SentenceTransformer, **lengths: int) -> None:
    """Check that an encoder can encode texts of some lengths.

    Raises:
        ValueError: there are not as many positions, or no room for text.
    """
    transformer: Any = model[0]
    longest = n_positions(transformer.model)
    n_special = model.tokenizer.num_special_tokens_to_add()
    for name, length in lengths.items():
        if longest is not None and length > longest:
            raise ValueError(
                f"{name} is {length}, but {folder} has positions for {longest} tokens only: state "
                f"{name}={longest} or less."
            )
        if length <= n_special:
            raise ValueError(
                f"{name} is {length}, expected at least {n_special + 1}, so that a token of the "
                f"text has room beside the {n_special} special ones."
            )


def _check_weights(folder: Path, encoder: torch.nn.Module) -> None:
    """Refuse an encoder some of whose weights are random, since its files lack them."""
    if (folder / _ADAPTER_FILE).is_file():  # its encoder lies elsewhere
        return
    with quiet_loading():  # on the meta device the weights are not read again
        _, info = AutoModel.from_pretrained(folder, output_loading_info=True, device_map="meta")
    # Of an encoder-decoder only the encoder is run, and no pooling here uses a trained pooler.
    used = {name for name in encoder.state_dict() if "pooler" not in name}
    missing = sorted(used & set(info["missing_keys"]))
    if missing:
        raise ValueError(
            f"{folder} lacks {len(missing)} of the encoder's weights, such as {missing[0]}, and "
            "random ones would be taken in their place: it is damaged, or of another architecture "
            "than its config.json says."
        )
