"""Opens any encoder as sentence-transformers modules with an encoding contract, and identifies it.

encoding_contract.json   an export of this package
modules.json             a sentence-transformers model; the contract is read from its files
config.json alone        a plain encoder; the caller must state the pooling, because vectors of a
                         wrong pooling look right

Stored vectors and runs are reused only for a model with the same fingerprint, which depends neither
on the folder, nor on the card, nor on the versions of libraries that saved the model.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, get_args

import torch
from safetensors import SafetensorError
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling as PoolingModule
from transformers import AutoModel

from modeling_condenser import register_auto_classes
from modeling_condenser.encoder_parts import n_positions
from modeling_condenser.files.atomic import checksum_file
from modeling_condenser.files.contract import (
    CONTRACT_FILE,
    UNLIMITED,
    EncodingContract,
    Pooling,
    Similarity,
    choose_prompts,
)
from modeling_condenser.files.models import (
    CONFIG_FILE,
    DENSE_FOLDER,
    INT8_FILE,
    MODULES_CONFIG_FILE,
    MODULES_FILE,
    find_model_folder,
    is_checkpoint,
    module_paths,
    quiet_loading,
    read_config,
    read_json,
)
from modeling_condenser.files.settings import parse_settings

from .embeddings import Dtype
from .onnx_encoder import OnnxEncoder

register_auto_classes()  # a command imports the package without registering

_POOLINGS, _SIMILARITIES = (", ".join(get_args(kind)) for kind in (Pooling, Similarity))
_ADAPTER_FILE = "adapter_config.json"
_LOAD_FLOAT32 = {"dtype": torch.float32}

_ENCODER_FILES = tuple(
    "config.json sentence_*_config.json tokenizer*.json special_tokens_map.json added_tokens.json "
    "vocab.* merges.txt *.model adapter_* model*.safetensors pytorch_model*.bin".split()
)
_MODULE_FILES = ("*.json", "*.txt", "*.model", "*.safetensors", "*.bin")
# Fields that do not change a vector.
_VERSION_FIELDS = {"__version__", "transformers_version", "_name_or_path", "name_or_path"}


def open_encoder(
    name: str | Path,
    *,
    device: str | torch.device | None = None,
    dtype: Dtype = "float32",
    **stated: Any,
) -> tuple[Path, SentenceTransformer, EncodingContract]:
    """Load an encoder and its contract; see `Retriever` for arguments and errors.

    Returns:
        Its folder, its modules in evaluation mode, and its contract. A pooling that is not in
        `Pooling`, such as "weightedmean" or "cls+mean", can be used but not saved.
    """
    parse_settings(
        {"query_max_length": 1, "passage_max_length": 1, **stated}, EncodingContract
    )  # checks
    if dtype not in get_args(Dtype):
        raise ValueError(f"dtype is {dtype!r}, expected one of {', '.join(get_args(Dtype))}.")
    place = None if device is None else str(device)
    if dtype == "int8" and (place := place or "cpu") != "cpu":
        raise ValueError(f"dtype=int8 is for a CPU, but the device is {place}: leave out one.")
    if place is not None:
        check_devices([place])
    folder = find_model_folder(name)
    has_contract = (folder / CONTRACT_FILE).is_file()
    if has_contract:
        stated = {**vars(EncodingContract.load(folder)), **stated}
    try:
        if (folder / MODULES_FILE).is_file() and not has_contract and not is_checkpoint(folder):
            model, stated = _open_modules(folder, stated, place)
        else:
            model = _open_plain(folder, stated.get("pooling"), place)
            if is_checkpoint(folder):  # as its export states
                trained = {"similarity": stated_similarity(folder), "token_type_ids": False}
                stated = {**trained, **stated}
    except (SafetensorError, UnpicklingError) as error:
        raise ValueError(
            f"The weights of {folder} cannot be read ({str(error).partition('. ')[0]}): download "
            "them again, with Git LFS and as safetensors."
        ) from error
    except ImportError as error:
        raise ValueError(f"{folder} needs a library that is missing: {error}") from error
    _check_transformer(folder / module_paths(folder)[0], model[0])
    contract = _complete_contract(folder, model, stated)
    if dtype == "int8":
        transformer: Any = model[0]
        transformer.model = OnnxEncoder(_int8_file(folder), transformer.model.config)
    else:
        for weight in model.parameters():  # rotary angles and other buffers stay in float32
            if weight.is_floating_point():
                weight.data = weight.data.to(getattr(torch, dtype))
    return folder, model.eval(), contract


def stated_similarity(folder: Path) -> Similarity | None:
    """The similarity that a model's files state; None for a plain encoder.

    A pre-training checkpoint has that of its contrast, as its export has.
    """
    if (folder / CONTRACT_FILE).is_file():
        return EncodingContract.load(folder).similarity
    if is_checkpoint(folder):
        encoding = read_config(folder).get("encoding") or {}
        return encoding.get("similarity", "dot")
    stated = read_json(folder / MODULES_CONFIG_FILE, {}).get("similarity_fn_name")
    if stated is None:  # as in models saved by old versions; the library's default states nothing
        modules = read_json(folder / MODULES_FILE, [{"type": ""}])
        return "cosine" if modules[-1]["type"].endswith(".Normalize") else None
    return stated


def check_devices(names: Iterable[str]) -> None:
    """Raise a ValueError unless this machine has all of these devices."""
    known = ["cpu"]
    if accelerator := torch.accelerator.current_accelerator(check_available=True):
        kind = accelerator.type
        known += [kind, *(f"{kind}:{i}" for i in range(torch.accelerator.device_count()))]
    for name in names:
        if name not in known:
            raise ValueError(f"There is no device {name!r}; this machine has {', '.join(known)}.")


def _open_plain(folder: Path, pooling: str | None, device: str | None) -> SentenceTransformer:
    """Open an encoder with the pooling of its contract or of the caller."""
    if not (folder / CONFIG_FILE).is_file():
        raise FileNotFoundError(
            f"{folder} holds no encoder: expected {CONTRACT_FILE}, {MODULES_FILE} or {CONFIG_FILE}."
        )
    if pooling is None and is_checkpoint(folder):
        raise ValueError(
            f"{folder} is a pre-training checkpoint: `condenser export {folder} ENCODER` writes its"
            " encoder, which states how it is used. Or state pooling=cls."
        )
    if pooling is None:
        raise ValueError(
            f"{folder} is a plain encoder and does not say how it pools token vectors: state "
            f"pooling, one of {_POOLINGS}, such as {folder.name},pooling=cls in a command, or "
            "--pooling cls for `condenser finetune`."
        )
    last_hidden = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
    with quiet_loading():  # transformers would report missing pooler weights
        transformer = Transformer(
            str(folder),
            modality_config=last_hidden,
            module_output_name="token_embeddings",
            model_kwargs=_LOAD_FLOAT32,
        )
    modules: list[Any] = [transformer]
    modules.append(PoolingModule(transformer.get_embedding_dimension(), pooling_mode=pooling))
    if DENSE_FOLDER in module_paths(folder):
        modules.append(Dense.load(str(folder), subfolder=DENSE_FOLDER))
    return SentenceTransformer(modules=modules, device=device)


def _open_modules(
    folder: Path, stated: Mapping[str, Any], device: str | None
) -> tuple[SentenceTransformer, dict[str, Any]]:
    """Open a sentence-transformers model, and read what is not stated from its files."""
    config = read_json(folder / MODULES_CONFIG_FILE, {})  # models saved by old versions have none
    kind = config.get("model_type", SentenceTransformer.__name__)
    if kind != SentenceTransformer.__name__:
        raise ValueError(f"{folder} is a {kind}: name a SentenceTransformer or an encoder.")
    with quiet_loading():  # `_check_transformer` reports missing weights
        model = SentenceTransformer(str(folder), device=device, model_kwargs=_LOAD_FLOAT32)
    places = [place for place, module in enumerate(model) if isinstance(module, PoolingModule)]
    old: Any = model[places[-1]] if places else None
    if pooling := stated.get("pooling"):
        if old is None:
            raise ValueError(f"{folder} does not pool token vectors: leave out pooling={pooling}.")
        how = {"pooling_mode": pooling, "include_prompt": old.include_prompt}
        model[places[-1]] = PoolingModule(old.embedding_dimension, **how)
    found = {
        **choose_prompts(model.prompts),
        "similarity": stated_similarity(folder),
        "pooling": _name_pooling(old),
        **stated,
    }
    if found["similarity"] not in get_args(Similarity):
        raise ValueError(
            f"{folder} has the similarity {found['similarity']!r}: state one of {_SIMILARITIES}."
        )
    return model, found


def _name_pooling(module: Any) -> str:
    if module is None:
        return "none"
    modes = module.pooling_mode
    name = modes if isinstance(modes, str) else "+".join(modes)
    return name if module.include_prompt else f"{name} without prompt"


def _complete_contract(folder: Path, model: Any, found: Mapping[str, Any]) -> EncodingContract:
    """Add the maximum lengths, from the limits of module, tokenizer and positions."""
    transformer, tokenizer = model[0], model.tokenizer
    longest = n_positions(transformer.model)
    fields = {"token_type_ids": "token_type_ids" in tokenizer.model_input_names, **found}
    for kind, theirs in (("query", "query_length"), ("passage", "document_length")):
        name = f"{kind}_max_length"
        limits = (getattr(transformer, theirs, None), tokenizer.model_max_length, longest)
        known = [limit for limit in limits if limit and limit < UNLIMITED]
        if name not in found and not known:
            raise ValueError(f"{folder} has no maximum length: state {name}, for example 512.")
        fields.setdefault(name, min(known, default=0))
        length = fields[name]
        if not 1 <= length <= (longest or length):
            most = longest or "any number of"
            raise ValueError(f"{name} is {length}, but {folder} encodes 1 to {most} tokens.")
    return EncodingContract(**fields)


def _check_transformer(folder: Path, transformer: Any) -> None:
    """Check that the first module encodes text and that no weights or tokens are missing."""
    if not isinstance(transformer, Transformer) or set(transformer.modality_config) != {"text"}:
        raise ValueError(
            f"The first module of {folder} is {type(transformer).__name__}; expected a Transformer "
            "for text only. Use sentence-transformers itself, and `search_exact_arrays`."
        )
    tokenizer = transformer.tokenizer
    # If its files are missing, transformers opens a tokenizer with only special tokens.
    if tokenizer.pad_token_id is None or len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise ValueError(
            f"The tokenizer of {folder} has no padding token, or only special tokens: save the "
            "whole tokenizer there, and set `pad_token` in tokenizer_config.json."
        )
    if (folder / _ADAPTER_FILE).is_file():  # the weights of the encoder are in another folder
        return
    with quiet_loading():  # the meta device does not read the weights again
        _, info = AutoModel.from_pretrained(folder, output_loading_info=True, device_map="meta")
    # A decoder or a trained pooler in the folder is not used.
    used = {name for name in transformer.model.state_dict() if "pooler" not in name}
    missing = sorted(used & set(info["missing_keys"]))
    if missing:  # transformers would initialise them at random
        raise ValueError(
            f"{folder} lacks {len(missing)} of the encoder's weights, such as {missing[0]}: it is "
            "damaged, or its config.json describes another architecture."
        )


def fingerprint_retriever(
    folder: Path,
    contract: EncodingContract,
    *,
    dtype: Dtype = "float32",
    truncate_dim: int | None = None,
) -> str:
    """Return the SHA-256 of everything that a retriever's vectors depend on."""
    digest = hashlib.sha256(json.dumps(asdict(contract), sort_keys=True).encode())
    if dtype != "float32":  # float32 fingerprints are older than this argument
        digest.update(dtype.encode())
    if truncate_dim is not None:
        digest.update(f"truncate_dim={truncate_dim}".encode())
    for file in [*encoding_files(folder), *([_int8_file(folder)] if dtype == "int8" else [])]:
        digest.update(file.relative_to(folder).as_posix().encode())
        digest.update(bytes.fromhex(_checksum(file)))
    return digest.hexdigest()


def _int8_file(folder: Path) -> Path:
    if not (folder / INT8_FILE).is_file():
        raise ValueError(
            f"{folder} has no {INT8_FILE}, which dtype=int8 needs: `condenser export {folder} OUT"
            " --onnx int8` writes a copy of the model with it."
        )
    return folder / INT8_FILE


def encoding_files(folder: Path) -> list[Path]:
    """List the files that a model's vectors depend on, without cards, records and old weights."""
    found = set()
    if not (folder / CONTRACT_FILE).is_file():  # a contract replaces the description of modules
        found = {folder / MODULES_FILE, folder / MODULES_CONFIG_FILE}
    for path in module_paths(folder):
        # The encoder's folder also holds cards and records; other modules have their own folders.
        patterns = _MODULE_FILES if path else _ENCODER_FILES
        search = (folder / path).rglob if path else folder.glob
        found.update(file for name in patterns for file in search(name))
    newer = {file.parent for file in found if file.suffix == ".safetensors"}
    return sorted(
        file
        for file in found
        if file.is_file() and not (file.suffix == ".bin" and file.parent in newer)
    )


def _checksum(file: Path) -> str:
    """Return the SHA-256 of a file, of JSON without the versions of libraries."""
    if file.suffix != ".json":
        state = file.stat()
        return _checksum_once(file.resolve(), state.st_size, state.st_mtime_ns)
    content = json.loads(file.read_text(encoding="utf-8"))
    if isinstance(content, dict):
        content = {key: value for key, value in content.items() if key not in _VERSION_FIELDS}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@cache
def _checksum_once(file: Path, size: int, changed: int) -> str:
    """Return the SHA-256 of a file of this size and time of change, which is read once."""
    return checksum_file(file)
