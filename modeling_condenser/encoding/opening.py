"""Open any encoder as sentence-transformers modules with its encoding contract.

encoding_contract.json   an export of this package: the contract says everything
modules.json             a sentence-transformers model: the contract is read from its files
config.json alone        a plain encoder: the caller must state the pooling, because a wrong one
                         gives vectors that look right
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling as PoolingModule
from transformers import AutoModel

from modeling_condenser.hub.contract import (
    CONTRACT_FILE,
    EncodingContract,
    Pooling,
    Similarity,
)
from modeling_condenser.hub.model_folder import (
    CONFIG_FILE,
    MODULES_FILE,
    find_model_folder,
    is_checkpoint,
    module_paths,
)
from modeling_condenser.hub.quiet_loading import quiet_loading
from modeling_condenser.positions import n_positions

from .fingerprints import Dtype, read_modules_config

_CHOICES = {"pooling": Pooling, "similarity": Similarity, "dtype": Dtype}
_UNLIMITED = 10**9  # transformers writes 10^30 for a tokenizer without a maximum length
_ADAPTER_FILE = "adapter_config.json"
_PASSAGE_PROMPTS = ("document", "passage", "corpus")  # in sentence-transformers' order
_LOAD_FLOAT32 = {"dtype": torch.float32}


@dataclasses.dataclass(frozen=True)
class OpenedEncoder:
    """An encoder in evaluation mode, its folder, and how it encodes.

    The contract of a sentence-transformers model can have a pooling that is not in `Pooling`, such
    as "weightedmean" or "cls+mean"; it cannot be saved.
    """

    folder: Path
    model: SentenceTransformer
    contract: EncodingContract


def open_encoder(
    name: str | Path,
    *,
    device: str | torch.device | None = None,
    dtype: Dtype = "float32",
    **stated: Any,
) -> OpenedEncoder:
    """Load an encoder and find out how it encodes.

    Args:
        name: folder or Hub name of an export, a sentence-transformers model or a plain encoder.
        device: by default an accelerator if there is one.
        dtype: of the weights.
        **stated: fields of `EncodingContract`, such as `pooling="cls"`, that complete or override
            the files; None means not stated.

    Raises:
        FileNotFoundError: there is no such model, or the folder holds no encoder.
        ValueError: a field is neither in the files nor stated, or does not fit the encoder.
    """
    stated = {field: value for field, value in stated.items() if value is not None}
    for field, value in {**stated, "dtype": dtype}.items():
        if field in _CHOICES and value not in get_args(_CHOICES[field]):
            raise ValueError(f"{field} is {value!r}, expected one of {_names(field)}.")
    folder = find_model_folder(name)
    model, contract = _open(folder, stated, None if device is None else str(device))
    lengths = ("query_max_length", "passage_max_length")
    check_length(folder, model, **{name: getattr(contract, name) for name in lengths})
    for weight in model.parameters():  # rotary angles and other buffers stay in float32
        if weight.is_floating_point():
            weight.data = weight.data.to(getattr(torch, dtype))
    return OpenedEncoder(folder, model.eval(), contract)


def _open(
    folder: Path, stated: Mapping[str, Any], device: str | None
) -> tuple[SentenceTransformer, EncodingContract]:
    if (folder / CONTRACT_FILE).is_file():
        contract = dataclasses.replace(EncodingContract.load(folder), **stated)
        return _with_pooling(_open_transformer(folder), contract, device), contract
    if (folder / MODULES_FILE).is_file() and not is_checkpoint(folder):
        kind = read_modules_config(folder).get("model_type", SentenceTransformer.__name__)
        if kind != SentenceTransformer.__name__:
            raise ValueError(f"{folder} is a {kind}: name a SentenceTransformer or an encoder.")
        model = SentenceTransformer(str(folder), device=device, model_kwargs=_LOAD_FLOAT32)
        return model, _contract_of_modules(folder, model, stated)
    if (folder / CONFIG_FILE).is_file():
        if "pooling" not in stated:
            raise ValueError(
                f"{folder} is a plain encoder and does not say how it pools token vectors: state "
                f"pooling, one of {_names('pooling')}, e.g. {folder},pooling=cls in a command."
            )
        transformer = _open_transformer(folder)
        contract = _make_contract(folder, transformer, stated)
        return _with_pooling(transformer, contract, device), contract
    inner = [file.parent for file in sorted(folder.glob(f"*/{CONFIG_FILE}"))]
    hint = f" Did you mean {inner[0]}?" if inner else ""
    raise FileNotFoundError(
        f"{folder} holds no encoder: expected {CONTRACT_FILE}, {MODULES_FILE} or {CONFIG_FILE} in "
        f"it.{hint}"
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
    _check_transformer(folder, transformer)
    return transformer


def _with_pooling(
    transformer: Transformer, contract: EncodingContract, device: str | None
) -> SentenceTransformer:
    dimension = transformer.get_embedding_dimension()
    modules = [transformer, PoolingModule(dimension, pooling_mode=contract.pooling)]
    if contract.similarity == "cosine":
        modules.append(Normalize())
    return SentenceTransformer(
        modules=modules, similarity_fn_name=contract.similarity, device=device
    )


def _contract_of_modules(
    folder: Path, model: SentenceTransformer, stated: Mapping[str, Any]
) -> EncodingContract:
    """Read a sentence-transformers model's contract; replace its pooling if another is stated."""
    _check_transformer(folder / next(iter(module_paths(folder))), model[0])
    if stated.get("pooling") not in (None, _pooling_of_modules(model)):
        _replace_pooling(folder, model, stated["pooling"])
    prompts = model.prompts
    found = {
        "query_prompt": prompts.get("query") or "",
        "passage_prompt": next(filter(None, map(prompts.get, _PASSAGE_PROMPTS)), ""),
        "similarity": stated.get("similarity") or _similarity_of_modules(folder, model),
        "pooling": _pooling_of_modules(model),
    }
    return _make_contract(folder, model[0], {**found, **stated})


def _make_contract(folder: Path, transformer: Any, found: Mapping[str, Any]) -> EncodingContract:
    """Complete what was found by the limits of tokenizer, module and positions."""
    tokenizer = transformer.tokenizer
    fields = {"token_type_ids": "token_type_ids" in tokenizer.model_input_names, **found}
    for name, own in (
        ("query_max_length", getattr(transformer, "query_length", None)),
        ("passage_max_length", getattr(transformer, "document_length", None)),
    ):
        limits = (own, tokenizer.model_max_length, n_positions(transformer.model))
        known = [limit for limit in limits if limit and limit < _UNLIMITED]
        if name not in found and not known:
            raise ValueError(
                f"{folder} does not limit the length of texts: state {name}, e.g. 512."
            )
        fields.setdefault(name, min(known, default=None))
    return EncodingContract(**fields)


def _check_transformer(folder: Path, transformer: Any) -> None:
    """Check a model's first module, and that no weights of its encoder are missing."""
    if not isinstance(transformer, Transformer) or set(transformer.modality_config) != {"text"}:
        raise ValueError(
            f"The first module of {folder} is {type(transformer).__name__}; expected a Transformer "
            "for text only. Encode with sentence-transformers itself, and search the arrays with "
            "`search_exact_arrays`."
        )
    tokenizer = transformer.tokenizer
    # Without files, transformers opens a tokenizer that has only special tokens.
    if tokenizer.pad_token_id is None or len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise ValueError(
            f"The tokenizer of {folder} has no padding token, or only special tokens: save the "
            "whole tokenizer there, and set `pad_token` in tokenizer_config.json."
        )
    if (folder / _ADAPTER_FILE).is_file():  # the base encoder is in another folder
        return
    with quiet_loading():  # the meta device does not read the weights again
        _, info = AutoModel.from_pretrained(folder, output_loading_info=True, device_map="meta")
    # Neither the decoder of an encoder-decoder nor a trained pooler is used.
    used = {name for name in transformer.model.state_dict() if "pooler" not in name}
    missing = sorted(used & set(info["missing_keys"]))
    if missing:  # transformers would initialise them at random
        raise ValueError(
            f"{folder} lacks {len(missing)} of the encoder's weights, such as {missing[0]}: it is "
            "damaged, or its config.json describes another architecture."
        )


def _pooling_of_modules(model: SentenceTransformer) -> str:
    poolings = [module for module in model if isinstance(module, PoolingModule)]
    if not poolings:
        return "none"
    modes = poolings[-1].pooling_mode
    name = modes if isinstance(modes, str) else "+".join(modes)
    return name if poolings[-1].include_prompt else f"{name} without prompt"


def _replace_pooling(folder: Path, model: SentenceTransformer, pooling: str) -> None:
    places = [name for name, module in model.named_children() if isinstance(module, PoolingModule)]
    old: Any = getattr(model, places[0]) if len(places) == 1 else None
    if old is None or old.pooling_output_dimension != old.embedding_dimension:
        raise ValueError(
            f"pooling={pooling} cannot replace the pooling of {folder}, which is not one vector of "
            "the encoder's width: leave the pooling out."
        )
    new = PoolingModule(
        old.embedding_dimension, pooling_mode=pooling, include_prompt=old.include_prompt
    )
    setattr(model, places[0], new)


def _similarity_of_modules(folder: Path, model: SentenceTransformer) -> str:
    """The similarity in the files; sentence-transformers itself would default to cosine."""
    name = read_modules_config(folder).get("similarity_fn_name")
    if name is None and isinstance(model[-1], Normalize):
        return "cosine"
    if name not in get_args(Similarity):
        found = f"uses the similarity {name!r}" if name else "does not state its similarity"
        raise ValueError(
            f"{folder} {found}: state one of {_names('similarity')}, e.g. similarity=dot. Its "
            "model card says which one it was trained for."
        )
    return str(name)


def check_length(folder: Path, model: SentenceTransformer, **lengths: int) -> None:
    """Raise a ValueError unless an encoder can read texts of these lengths in tokens."""
    transformer: Any = model[0]
    longest = n_positions(transformer.model)
    shortest = model.tokenizer.num_special_tokens_to_add() + 1
    for name, length in lengths.items():
        if longest is not None and length > longest:
            raise ValueError(
                f"{name} is {length}, but {folder} has positions for {longest} tokens only: state "
                f"{name}={longest} or less."
            )
        if length < shortest:
            raise ValueError(f"{name} is {length}, expected at least {shortest} tokens.")


def _names(field: str) -> str:
    return ", ".join(get_args(_CHOICES[field]))
