"""Opens any encoder as a sentence-transformers model with its encoding contract.

A model with modules.json (an export, a fine-tuned retriever, any model of sentence-transformers)
states its contract in its files. For a plain encoder (config.json alone) the caller states the
pooling, because vectors of a wrong pooling look right.
"""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, get_args

import torch
from safetensors import SafetensorError
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling as PoolingModule
from sentence_transformers.sentence_transformer.modules import Transformer
from transformers import AutoModel

from modeling_condenser import register_auto_classes
from modeling_condenser.encoder_parts import n_positions
from modeling_condenser.files.atomic import checksum_file, read_json
from modeling_condenser.files.contract import (
    EncodingContract,
    Pooling,
    Similarity,
    read_contract,
    states_encoding,
)
from modeling_condenser.files.models import (
    CONFIG_FILE,
    INT8_FILE,
    MODULES_CONFIG_FILE,
    MODULES_FILE,
    find_model_folder,
    module_paths,
    quiet_loading,
)
from modeling_condenser.files.settings import parse_settings

from .embeddings import Dtype
from .onnx_encoder import OnnxEncoder

register_auto_classes()  # a command imports the package without registering

_LENGTHS = ("query_max_length", "passage_max_length")
_LOAD_FLOAT32 = {"dtype": torch.float32}
# The files that vectors depend on, in the folder of the transformer and in those of other modules.
_TRANSFORMER_FILES = (
    "config.json sentence_*_config.json tokenizer*.json special_tokens_map.json added_tokens.json "
    "vocab.* merges.txt *.model adapter_* model*.safetensors pytorch_model*.bin"
).split()
_MODULE_FILES = "*.json *.txt *.model *.safetensors *.bin".split()


def open_model(
    name: str | Path,
    *,
    device: str | torch.device | None = None,
    dtype: Dtype = "float32",
    **overrides: Any,
) -> tuple[Path, SentenceTransformer, EncodingContract]:
    """Open a model by folder or Hub name; see `Retriever` for arguments and errors.

    Returns:
        Its folder, its modules in evaluation mode, and its contract. A pooling that is not in
        `Pooling`, such as "weightedmean" or "cls+mean", can be used but not saved.
    """
    parse_settings({**dict.fromkeys(_LENGTHS, 1), **overrides}, EncodingContract)  # checks
    if dtype not in get_args(Dtype):
        raise ValueError(f"dtype is {dtype!r}, expected one of {', '.join(get_args(Dtype))}.")
    device_name = None if device is None else str(device)
    if dtype == "int8":
        if device_name not in (None, "cpu"):
            raise ValueError(f"dtype=int8 is for a CPU, but the device is {device_name}: omit one.")
        device_name = "cpu"
    folder, pooling = find_model_folder(name), overrides.get("pooling")
    try:
        if states_encoding(folder):
            model = _open_modules(folder, pooling, device_name)
        else:
            model = _open_plain(folder, pooling, device_name)
    except (SafetensorError, UnpicklingError) as error:
        raise ValueError(
            f"The weights of {folder} cannot be read ({str(error).partition('. ')[0]}): download "
            "them again, with Git LFS and as safetensors."
        ) from error
    _check_transformer(folder / module_paths(folder)[0], model[0])
    contract = _complete_contract(folder, model, overrides)
    if dtype == "int8":
        transformer: Any = model[0]
        transformer.model = OnnxEncoder(_int8_file(folder), transformer.model.config)
    else:
        for weight in model.parameters():  # rotary angles and other buffers stay in float32
            if weight.is_floating_point():
                weight.data = weight.data.to(getattr(torch, dtype))
    return folder, model.eval(), contract


def _open_plain(folder: Path, pooling: str | None, device: str | None) -> SentenceTransformer:
    if not (folder / CONFIG_FILE).is_file():
        raise FileNotFoundError(
            f"{folder} holds no encoder: expected {MODULES_FILE} or {CONFIG_FILE}."
        )
    if pooling is None:
        raise ValueError(
            f"{folder} is a plain encoder and does not say how it pools token vectors: state "
            f"pooling, one of {', '.join(get_args(Pooling))}, such as {folder.name},pooling=cls in "
            "a command, or --pooling cls for `condenser finetune`."
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
    return SentenceTransformer(modules=modules, device=device)


def _open_modules(folder: Path, pooling: str | None, device: str | None) -> SentenceTransformer:
    """Open a sentence-transformers model; `pooling` replaces that of its last pooling module."""
    config = read_json(folder / MODULES_CONFIG_FILE, {})  # models saved by old versions have none
    kind = config.get("model_type", SentenceTransformer.__name__)
    if kind != SentenceTransformer.__name__:
        raise ValueError(f"{folder} is a {kind}: name a SentenceTransformer or an encoder.")
    with quiet_loading():  # `_check_transformer` reports missing weights
        model = SentenceTransformer(str(folder), device=device, model_kwargs=_LOAD_FLOAT32)
    if pooling is not None:
        places = [i for i, module in enumerate(model) if isinstance(module, PoolingModule)]
        if not places:
            raise ValueError(f"{folder} does not pool token vectors: leave out pooling={pooling}.")
        old: Any = model[places[-1]]
        model[places[-1]] = PoolingModule(
            old.embedding_dimension, pooling_mode=pooling, include_prompt=old.include_prompt
        )
    return model


def _complete_contract(folder: Path, model: Any, overrides: dict[str, Any]) -> EncodingContract:
    """The contract of a model's files, with the caller's fields, and limits of the positions."""
    fields = {
        "token_type_ids": "token_type_ids" in model.tokenizer.model_input_names,
        **read_contract(folder),
        **overrides,
    }
    if not states_encoding(folder):
        fields.setdefault("similarity", "dot")
    if fields.get("similarity") not in get_args(Similarity):
        raise ValueError(
            f"{folder} has the similarity {fields.get('similarity')!r}: state one of "
            f"{', '.join(get_args(Similarity))}."
        )
    longest = n_positions(model[0].model)
    for name in _LENGTHS:
        if name not in overrides:
            limits = [limit for limit in (fields.get(name), longest) if limit]
            if not limits:
                raise ValueError(f"{folder} has no maximum length: state {name}, for example 512.")
            fields[name] = min(limits)
        if not 1 <= fields[name] <= (longest or fields[name]):
            most = longest or "any number of"
            raise ValueError(f"{name} is {fields[name]}, but {folder} encodes 1 to {most} tokens.")
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
    if (folder / "adapter_config.json").is_file():  # the encoder's weights are in another folder
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


def fingerprint_model(folder: Path, contract: EncodingContract, *, dtype: Dtype = "float32") -> str:
    """SHA-256 of all that a model's vectors depend on: its files, a contract and a dtype."""
    digest = hashlib.sha256(json.dumps([asdict(contract), dtype]).encode())
    files = set(folder.glob(MODULES_FILE)) | set(folder.glob(MODULES_CONFIG_FILE))
    for path in module_paths(folder):
        # The transformer's folder also holds cards and records.
        is_transformer = path == module_paths(folder)[0]
        for pattern in _TRANSFORMER_FILES if is_transformer else _MODULE_FILES:
            files.update((folder / path).glob(pattern))
    if dtype == "int8":
        files.add(_int8_file(folder))
    for file in sorted(files):
        digest.update(file.relative_to(folder).as_posix().encode())
        digest.update(bytes.fromhex(checksum_file(file)))
    return digest.hexdigest()


def _int8_file(folder: Path) -> Path:
    if not (folder / INT8_FILE).is_file():
        raise ValueError(
            f"{folder} has no {INT8_FILE}, which dtype=int8 needs: `condenser export {folder} OUT"
            " --onnx int8` writes a copy of the model with it."
        )
    return folder / INT8_FILE
