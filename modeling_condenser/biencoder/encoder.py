"""The encoder to fine-tune: its name in; modules to train and the encoding contract out.

Three kinds of folders hold an encoder. Our exports say by their contract how they encode, and
sentence-transformers models by their modules; a plain encoder does not say how its tokens become
one vector, so the recipe must. It is never guessed: sentence-transformers would take the mean
without a word, and the papers' vector is CLS.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling as PoolingModule
from torch import nn
from transformers import AutoModel

from modeling_condenser.hub.model_folder import CONFIG_FILE, MODULES_FILE, find_model_folder
from modeling_condenser.hub.quiet_loading import quiet_loading
from modeling_condenser.repository.contract import CONTRACT_FILE, EncodingContract, Pooling

from .lengths import check_lengths, longest_input

_UNLIMITED = 10**9  # transformers writes 10^30 where a tokenizer has no length of its own
_PASSAGE_PROMPTS = ("document", "passage", "corpus")  # as sentence-transformers tries them


@dataclass(frozen=True)
class OpenedEncoder:
    """An encoder that is ready to be trained.

    Attributes:
        folder: its files.
        model: two modules, the transformer in float32 and the pooling; it does not normalise, which
            is the loss's affair.
        contract: how it encodes, with the recipe's changes.
    """

    folder: Path
    model: SentenceTransformer
    contract: EncodingContract


def open_encoder(name: str, changes: Mapping[str, Any]) -> OpenedEncoder:
    """Load an encoder to fine-tune.

    Args:
        name: folder or Hub name.
        changes: fields of `EncodingContract` that complete or override what the encoder says.

    Raises:
        FileNotFoundError: there is no such encoder.
        ValueError: it does not say how it pools and neither do the changes, it has modules that a
            plain encoder's repository cannot hold, weights are missing, or a length is beyond its
            positions.
    """
    folder = find_model_folder(name)
    _check_holds_encoder(folder, name)
    if (folder / CONTRACT_FILE).is_file():
        transformer, contract = _open_transformer(folder), EncodingContract.load(folder)
    elif (folder / MODULES_FILE).is_file():
        transformer, contract = _open_modules(folder, name, changes)
    else:
        transformer, contract = _open_plain(folder, name, changes)
    contract = dataclasses.replace(contract, **changes)
    check_lengths(contract, transformer.model, transformer.tokenizer, name=name)
    _settle_pooler(transformer)
    pooling = PoolingModule(transformer.get_embedding_dimension(), pooling_mode=contract.pooling)
    return OpenedEncoder(folder, SentenceTransformer(modules=[transformer, pooling]), contract)


def _check_holds_encoder(folder: Path, name: str) -> None:
    if not any((folder / file).is_file() for file in (CONFIG_FILE, MODULES_FILE)):
        inner = [file.parent for file in sorted(folder.glob(f"*/{CONFIG_FILE}"))]
        hint = f" Did you mean {inner[0]}?" if inner else ""
        raise FileNotFoundError(
            f"{name} holds no encoder: expected a folder with {CONFIG_FILE} in it.{hint}"
        )


def _open_transformer(folder: Path) -> Any:
    config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    if config.get("model_type") == "condenser":
        raise ValueError(
            f"{folder} is a Condenser checkpoint, whose head has no part in fine-tuning: export "
            f"its encoder first (condenser export {folder} OUT), and name OUT."
        )
    # Half precision in a file is for inference: updates of 1e-5 would be lost in it.
    with quiet_loading():
        return Transformer(str(folder), model_kwargs={"dtype": torch.float32})


def _open_plain(
    folder: Path, name: str, changes: Mapping[str, Any]
) -> tuple[Any, EncodingContract]:
    if "pooling" not in changes:
        raise ValueError(
            f"{name} has no {CONTRACT_FILE} and is no sentence-transformers model, so how its "
            "tokens become one vector is unknown: add pooling, one of "
            f"{', '.join(get_args(Pooling))}."
        )
    transformer = _open_transformer(folder)
    return transformer, _said_by_tokenizer(transformer, name, changes)


def _said_by_tokenizer(transformer: Any, name: str, changes: Mapping[str, Any]) -> EncodingContract:
    """Lengths and segment ids, as tokenizer, module and positions have them."""
    tokenizer = transformer.tokenizer
    longest = (tokenizer.model_max_length, longest_input(transformer.model))
    said = {
        "query_max_length": _shortest(getattr(transformer, "query_length", None), *longest),
        "passage_max_length": _shortest(getattr(transformer, "document_length", None), *longest),
    }
    for field_name, length in said.items():
        if length is None and field_name not in changes:
            raise ValueError(
                f"{name} does not say how long its texts may be: add {field_name}, in tokens, to "
                "the recipe."
            )
    return EncodingContract(
        said["query_max_length"] or changes["query_max_length"],
        said["passage_max_length"] or changes["passage_max_length"],
        token_type_ids="token_type_ids" in tokenizer.model_input_names,
    )


def _shortest(*lengths: int | None) -> int | None:
    known = [length for length in lengths if length is not None and length < _UNLIMITED]
    return min(known, default=None)


def _open_modules(
    folder: Path, name: str, changes: Mapping[str, Any]
) -> tuple[Any, EncodingContract]:
    """Read a sentence-transformers model whose modules a contract can tell."""
    with quiet_loading():
        model = SentenceTransformer(
            str(folder), device="cpu", model_kwargs={"dtype": torch.float32}
        )
    modules: list[Any] = list(model)
    kinds = [type(module) for module in modules]
    if kinds not in (
        [Transformer],
        [Transformer, PoolingModule],
        [Transformer, PoolingModule, Normalize],
    ):
        raise ValueError(
            f"{folder} has the modules {', '.join(kind.__name__ for kind in kinds)}, but what is "
            "published is a plain encoder: expected Transformer, Pooling and perhaps Normalize. "
            "Train this model with sentence-transformers itself."
        )
    contract = _said_by_tokenizer(modules[0], name, changes)
    if "pooling" not in changes:
        contract = dataclasses.replace(contract, pooling=_pooling_of(folder, modules[1:]))
    prompts = {name: prompt or "" for name, prompt in model.prompts.items()}
    passage_prompt = next(filter(None, map(prompts.get, _PASSAGE_PROMPTS)), "")
    return modules[0], dataclasses.replace(
        contract, query_prompt=prompts.get("query", ""), passage_prompt=passage_prompt
    )


def _pooling_of(folder: Path, modules: list[Any]) -> Pooling:
    mode: Any = modules[0].pooling_mode if modules else None
    mode = mode[0] if isinstance(mode, list | tuple) and len(mode) == 1 else mode
    if mode not in get_args(Pooling) or not modules[0].include_prompt:
        raise ValueError(
            f"{folder} pools by {mode or 'nothing'}, which an encoding contract cannot say: add "
            f"pooling, one of {', '.join(get_args(Pooling))}, to the recipe to train it anew so."
        )
    return mode


def _settle_pooler(transformer: Any) -> None:
    """Check that no weight is random, and take the pooler, which is in no loss, out of training.

    A pooler that the checkpoint lacks becomes the identity, tanh(CLS), instead of random noise.
    """
    folder = transformer.model.config.name_or_path
    with quiet_loading():
        loaded: Any = AutoModel.from_pretrained(folder, output_loading_info=True)
    absent = set(loaded[1]["missing_keys"])
    missing = sorted(key for key in absent if not key.startswith("pooler."))
    if missing:
        raise ValueError(
            f"{folder} lacks {len(missing)} of the encoder's weights, such as {missing[0]}, and "
            "random ones would be trained in their place: it is damaged, or its config.json is of "
            "another architecture."
        )
    pooler = getattr(transformer.model, "pooler", None)
    if pooler is None:
        return
    pooler.requires_grad_(False)
    if absent:
        for module in pooler.modules():
            if isinstance(module, nn.Linear):
                nn.init.eye_(module.weight)
                nn.init.zeros_(module.bias)
