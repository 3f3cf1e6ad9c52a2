"""Open any encoder as sentence-transformers modules together with its encoding contract.

Three kinds of folders hold an encoder, and they say in different ways how it encodes:

encoding_contract.json   an export of this package: the contract says everything
modules.json             a sentence-transformers model: the contract is read from its files
config.json alone        a plain encoder: the caller must state the pooling

Missing information is never guessed, because a wrong pooling gives vectors that look right.
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

from modeling_condenser.hub.model_folder import (
    CONFIG_FILE,
    MODULES_FILE,
    find_model_folder,
    is_checkpoint,
    module_paths,
)
from modeling_condenser.hub.quiet_loading import quiet_loading
from modeling_condenser.pretraining.positions import n_positions
from modeling_condenser.repository.contract import (
    CONTRACT_FILE,
    EncodingContract,
    Pooling,
    Similarity,
)

from .fingerprints import read_modules_config
from .precision import FLOAT32, Dtype, check_dtype, convert_weights

_UNLIMITED = 10**9  # transformers writes 10^30 for a tokenizer without a maximum length
_ADAPTER_FILE = "adapter_config.json"
_PASSAGE_PROMPTS = ("document", "passage", "corpus")  # in sentence-transformers' order
_LOAD_FLOAT32 = {"dtype": torch.float32}


@dataclasses.dataclass(frozen=True)
class OpenedEncoder:
    """An encoder in evaluation mode.

    Attributes:
        folder: its files.
        model: its modules. The first is a `Transformer` with a text tokenizer.
        contract: how it encodes. For a sentence-transformers model whose pooling `Pooling` does
            not cover, `contract.pooling` is sentence-transformers' name for it ("weightedmean",
            "lasttoken", "cls+mean" for concatenated vectors, "none" without a pooling module).
            Such a contract is correct but cannot be saved.
        stated: the contract fields that the caller stated.
    """

    folder: Path
    model: SentenceTransformer
    contract: EncodingContract
    stated: Mapping[str, Any]


def open_encoder(
    name: str | Path,
    *,
    device: str | torch.device | None = None,
    dtype: Dtype = FLOAT32,
    **stated: Any,
) -> OpenedEncoder:
    """Load an encoder and find out how it encodes.

    Args:
        name: folder or Hub name of an export, a sentence-transformers model or a plain encoder.
        device: by default an accelerator if there is one.
        dtype: of the weights.
        **stated: fields of `EncodingContract`, such as `pooling="cls"`, that complete or override
            what the files say; None means not stated.

    Raises:
        FileNotFoundError: there is no such model, or the folder holds no encoder.
        ValueError: a field is neither in the files nor stated, or does not fit the encoder.
    """
    check_dtype(dtype)
    stated = {field: value for field, value in stated.items() if value is not None}
    _check_choice(stated, "similarity", Similarity)
    _check_device(device)
    folder = find_model_folder(name)
    try:
        model, contract = _open(folder, stated, None if device is None else str(device))
    except (json.JSONDecodeError, SafetensorError) as error:
        raise ValueError(
            f"A file in {folder} is damaged: {error}. Save or download the model again."
        ) from error
    check_length(
        folder,
        model,
        query_max_length=contract.query_max_length,
        passage_max_length=contract.passage_max_length,
    )
    convert_weights(model, dtype)
    model.eval()
    return OpenedEncoder(folder, model, contract, stated)


def _open(
    folder: Path, stated: Mapping[str, Any], device: str | None
) -> tuple[SentenceTransformer, EncodingContract]:
    if (folder / CONTRACT_FILE).is_file():
        _check_choice(stated, "pooling", Pooling)
        contract = dataclasses.replace(EncodingContract.load(folder), **stated)
        return _with_pooling(_open_transformer(folder), contract, device), contract
    if (folder / MODULES_FILE).is_file() and not is_checkpoint(folder):
        _check_bi_encoder(folder)
        model = SentenceTransformer(str(folder), device=device, model_kwargs=_LOAD_FLOAT32)
        return model, _contract_of_modules(folder, model, stated)
    if (folder / CONFIG_FILE).is_file():
        _check_pooling_stated(folder, stated)
        transformer = _open_transformer(folder)
        contract = _make_contract(folder, {**_limits(folder, transformer), **stated})
        return _with_pooling(transformer, contract, device), contract
    inner = [file.parent for file in sorted(folder.glob(f"*/{CONFIG_FILE}"))]
    hint = f" Did you mean {inner[0]}?" if inner else ""
    raise FileNotFoundError(
        f"{folder} holds no encoder: expected a folder with {CONTRACT_FILE}, {MODULES_FILE} or "
        f"{CONFIG_FILE} in it.{hint}"
    )


def _open_transformer(folder: Path) -> Transformer:
    """A folder's encoder and tokenizer as a module that returns the last hidden state."""
    last_hidden = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
    with quiet_loading():  # transformers would report missing pooler weights
        transformer = Transformer(
            str(folder),
            modality_config=last_hidden,
            module_output_name="token_embeddings",
            model_kwargs=_LOAD_FLOAT32,
        )
    _tokenizer(folder, transformer)
    _check_weights(folder, transformer.model)
    return transformer


def _with_pooling(
    transformer: Transformer, contract: EncodingContract, device: str | None
) -> SentenceTransformer:
    """A transformer with the pooling and normalisation that a contract states."""
    dimension = transformer.get_embedding_dimension()
    modules = [transformer, PoolingModule(dimension, pooling_mode=contract.pooling)]
    if contract.similarity == "cosine":
        modules.append(Normalize())
    return SentenceTransformer(
        modules=modules, similarity_fn_name=contract.similarity, device=device
    )


def _limits(folder: Path, transformer: Any) -> dict[str, Any]:
    """The contract fields that tokenizer, module and positions determine."""
    tokenizer = _tokenizer(folder, transformer)
    longest = _shortest(tokenizer.model_max_length, n_positions(transformer.model))
    return {
        "query_max_length": _shortest(getattr(transformer, "query_length", None), longest),
        "passage_max_length": _shortest(getattr(transformer, "document_length", None), longest),
        "token_type_ids": "token_type_ids" in tokenizer.model_input_names,
    }


def _contract_of_modules(
    folder: Path, model: SentenceTransformer, stated: Mapping[str, Any]
) -> EncodingContract:
    """Read a sentence-transformers model's contract; change its pooling if another is stated."""
    transformer: Any = model[0]
    limits = _limits(folder, transformer)
    _check_weights(folder / next(iter(module_paths(folder))), transformer.model)
    prompts = [model.prompts.get(name) for name in _PASSAGE_PROMPTS]
    if stated.get("pooling") not in (None, _pooling_of_modules(model)):
        _change_pooling(folder, model, stated["pooling"])
    return _make_contract(
        folder,
        {
            **limits,
            "query_prompt": model.prompts.get("query") or "",
            "passage_prompt": next(filter(None, prompts), ""),
            "similarity": stated.get("similarity") or _similarity_of_modules(folder, model),
            "pooling": _pooling_of_modules(model),
            **stated,
        },
    )


def _tokenizer(folder: Path, transformer: Any) -> PreTrainedTokenizerBase:
    """The text tokenizer of a model's first module, checked."""
    is_plain = (
        isinstance(transformer, Transformer)
        and isinstance(transformer.processor, PreTrainedTokenizerBase)
        and set(transformer.modality_config) == {"text"}
        and not transformer.processing_kwargs
    )
    if not is_plain:
        raise ValueError(
            f"The first module of {folder} is {type(transformer).__name__}; expected a Transformer "
            "for text only. Encode with sentence-transformers itself, and search the arrays with "
            "`search_exact_arrays`."
        )
    tokenizer = transformer.tokenizer
    if tokenizer.pad_token_id is None:
        raise ValueError(
            f"The tokenizer of {folder} has no padding token, which batches need: set `pad_token` "
            "in its tokenizer_config.json."
        )
    n_special = len(tokenizer.all_special_tokens)
    if len(tokenizer) <= n_special:  # transformers opens an empty tokenizer without any files
        raise ValueError(
            f"The tokenizer of {folder} has only its {n_special} special tokens: files such as "
            "tokenizer.json are missing. Save the tokenizer there as well."
        )
    return tokenizer


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
            "modules; expected one. Do not state a pooling for this model."
        )
    old: Any = getattr(model, places[0])
    new = PoolingModule(
        old.embedding_dimension, pooling_mode=pooling, include_prompt=old.include_prompt
    )
    if new.pooling_output_dimension != old.pooling_output_dimension and model[-1] is not old:
        raise ValueError(
            f"pooling={pooling} gives vectors of {new.pooling_output_dimension} numbers, but the "
            f"next module of {folder} expects {old.pooling_output_dimension}. Do not state a "
            "pooling for this model."
        )
    setattr(model, places[0], new)


def _similarity_of_modules(folder: Path, model: SentenceTransformer) -> str:
    """The similarity in the files; sentence-transformers itself would default to cosine."""
    name = read_modules_config(folder).get("similarity_fn_name")
    if name is None and isinstance(model[-1], Normalize):
        return "cosine"
    if name not in get_args(Similarity):
        problem = f"uses the similarity {name!r}" if name else "does not state its similarity"
        raise ValueError(
            f"{folder} {problem}: state one of {_choices(Similarity)}, e.g. similarity=dot. Its "
            "model card says which one it was trained for."
        )
    return str(name)


def _make_contract(folder: Path, fields: Mapping[str, Any]) -> EncodingContract:
    for name in ("query_max_length", "passage_max_length"):
        if fields[name] is None:
            raise ValueError(
                f"{folder} does not limit the length of texts: state {name}, in tokens, e.g. "
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
            f"The device {str(device)!r} cannot be used: {str(error).splitlines()[0]} Name one "
            "that torch finds, such as cpu or cuda:0."
        ) from error


def _choices(kind: Any) -> str:
    return ", ".join(get_args(kind))


def _check_bi_encoder(folder: Path) -> None:
    kind = read_modules_config(folder).get("model_type", SentenceTransformer.__name__)
    if kind != SentenceTransformer.__name__:
        raise ValueError(
            f"{folder} is a {kind}, which does not encode a text as one dense vector: name a "
            f"{SentenceTransformer.__name__} or a plain encoder."
        )


def _check_pooling_stated(folder: Path, stated: Mapping[str, Any]) -> None:
    _check_choice(stated, "pooling", Pooling)
    if "pooling" not in stated:
        raise ValueError(
            f"{folder} is a plain encoder and does not say how it pools token vectors: state "
            f"pooling, one of {_choices(Pooling)}, e.g. {folder},pooling=cls in a command."
        )


def check_length(folder: Path, model: SentenceTransformer, **lengths: int) -> None:
    """Check that an encoder can encode texts of the given lengths in tokens.

    Raises:
        ValueError: a length exceeds the encoder's positions, or leaves no room for text.
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
                f"{name} is {length}, expected at least {n_special + 1}: {n_special} special "
                "tokens and one of the text."
            )


def _check_weights(folder: Path, encoder: torch.nn.Module) -> None:
    """Refuse an encoder with missing weights, which transformers would initialise at random."""
    if (folder / _ADAPTER_FILE).is_file():  # the base encoder is in another folder
        return
    with quiet_loading():  # the meta device does not read the weights again
        _, info = AutoModel.from_pretrained(folder, output_loading_info=True, device_map="meta")
    # Neither the decoder of an encoder-decoder nor a trained pooler is used.
    used = {name for name in encoder.state_dict() if "pooler" not in name}
    missing = sorted(used & set(info["missing_keys"]))
    if missing:
        raise ValueError(
            f"{folder} lacks {len(missing)} of the encoder's weights, such as {missing[0]}: it is "
            "damaged, or its config.json describes another architecture."
        )
