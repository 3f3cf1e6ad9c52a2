"""How a Condenser uses the parts of any encoder, and saves the encoder with its dense vector.

Travels to the Hub with `modeling_condenser.py`.
"""

import copy
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.modeling_outputs import BaseModelOutput

from .losses import block_of_rows, widen

FINAL_NORMS = ("final_norm", "norm")  # what encoders call the norm of their output
HEAD_WEIGHTS = ("head.", "head_norm.")  # how the names of the Condenser head's weights begin


def find_layers(encoder: nn.Module) -> list[nn.Module]:
    """An encoder's layers in order; a shared layer is listed once."""
    lists = [module for module in encoder.modules() if isinstance(module, nn.ModuleList)]
    members = [member for modules in lists for member in modules]
    return [m for m in members if not any(inner in lists for inner in m.modules())]


def build_like(layer: Any, encoder_config: Any) -> nn.Module:
    """A new layer of the same class."""
    if "layer_idx" not in signature(type(layer)).parameters:
        return type(layer)(encoder_config)
    indices = [getattr(module, "layer_idx", None) for module in layer.modules()]
    return type(layer)(encoder_config, next((i for i in indices if i is not None), None))


def build_final_norm(encoder: Any) -> nn.Module:
    """A norm like the one that a new encoder ends in, if it has one.

    The LM head of such an encoder was trained on normalised vectors.
    """
    modules = dict(encoder.named_modules())
    for name in FINAL_NORMS:
        if name in modules:
            return copy.deepcopy(modules[name])
    return nn.Identity()


@dataclass(frozen=True)
class LayerCall:
    """The arguments of a backbone layer beside hidden states: masks, positions, biases.

    The head's layers repeat the call. So tables that the backbone's layers share (of relative
    positions in MPNet and DeBERTa) get gradients from the head, too.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def repeat(self, layer: nn.Module, hidden: torch.Tensor, *, rows: Any = None) -> torch.Tensor:
        """Call another layer of the same class: (B, T, H) to (B, T, H), or to only these rows."""
        args, kwargs = (hidden, *self.args), self.kwargs
        if rows is not None:
            args, kwargs = rows.narrow(args, kwargs)
        result = layer(*args, **kwargs)
        return result[0] if isinstance(result, tuple) else result


class _Embedded(Exception):
    """Carries the embeddings out of an encoder before its first layer runs."""


class LayerRecorder:
    """Records what an encoder's layers are called with while a recording is open.

    Its hooks are registered once, because torch.compile cannot register hooks in a graph.
    """

    def __init__(self, layers: list[nn.Module], repeated: nn.Module):
        self.recording: Recording | None = None
        self.is_embedding = False
        for layer in layers:
            layer.register_forward_pre_hook(self._record_input)
        repeated.register_forward_pre_hook(self._record_call, with_kwargs=True)

    def _record_input(self, _: nn.Module, args: tuple[Any, ...]) -> None:
        if self.is_embedding:
            raise _Embedded(args[0])
        if (recording := self.recording) is not None:
            if recording.n_calls == recording.skip_from:
                recording.early = args[0]
            recording.n_calls += 1

    def _record_call(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if (recording := self.recording) is None:
            return None
        recording.call = LayerCall(args[1:], kwargs)
        return None if recording.rows is None else recording.rows.narrow(args, kwargs)

    @contextmanager
    def record(self, skip_from: int, rows: Any = None) -> Iterator["Recording"]:
        """Record the calls of one forward pass; see `Recording`."""
        self.recording = recording = Recording(skip_from, rows)
        try:
            yield recording
        finally:
            self.recording = None

    def embed(self, encoder: nn.Module, **inputs: Any) -> torch.Tensor:
        """The input of the encoder's first layer, (B, T, H)."""
        self.is_embedding = True
        try:
            encoder(**inputs)
        except _Embedded as embedded:
            return embedded.args[0]
        finally:
            self.is_embedding = False
        raise AssertionError("an encoder calls its first layer")


@dataclass
class Recording:
    """Recorded calls of one forward pass.

    Attributes:
        skip_from: number of layers that are called before `early` is recorded.
        rows: narrows the call of the layer that the head repeats, if not None.
        n_calls: of all layers so far; shared layers are called several times.
        early: (B, T, H) the output of layer `skip_from`; None if it is the last.
        call: the last of the layer that the head repeats, before it was narrowed.
    """

    skip_from: int
    rows: Any
    n_calls: int = 0
    early: torch.Tensor | None = None
    call: LayerCall | None = None


def pool(
    hidden: torch.Tensor,
    pooling: str,
    *,
    attention_mask: torch.Tensor | None = None,
    starts: torch.Tensor | None = None,
) -> torch.Tensor:
    """The dense vectors of the blocks of (B, T, H) hidden states.

    Args:
        hidden: (B, T, H), or (1, N, H) of a packed batch.
        pooling: "cls", each block's first vector, or "mean", the mean of all its vectors.
        attention_mask: (B, T), 1 for tokens and 0 for padding; by default all are tokens.
        starts: (B + 1,) where the blocks of a packed batch begin; some may be empty.

    Returns:
        (B, 1, H); of a packed batch (1, B, H).
    """
    if pooling == "cls":
        return hidden[:, :1] if starts is None else hidden.index_select(1, starts[:-1])
    if pooling != "mean":
        raise ValueError(f"pooling is {pooling!r}, expected cls or mean.")
    states = widen(hidden)  # sums need the precision
    if starts is not None:
        lengths, block = starts.diff(), block_of_rows(starts, hidden.shape[1])
        sums = states.new_zeros(1, len(lengths), hidden.shape[2]).index_add(1, block, states)
        return (sums / lengths.clamp(min=1)[:, None]).to(hidden.dtype)  # some are empty
    if attention_mask is None:
        return states.mean(dim=1, keepdim=True).to(hidden.dtype)
    is_token = attention_mask[..., None] != 0  # (B, T, 1)
    sums = states.where(is_token, 0).sum(dim=1, keepdim=True)
    return (sums / is_token.sum(dim=1, keepdim=True)).to(hidden.dtype)


def replace_cls(
    hidden: torch.Tensor, cls: torch.Tensor, starts: torch.Tensor | None
) -> torch.Tensor:
    """Hidden states (B, T, H) with other CLS vectors, shaped as `pool` returns them."""
    if starts is None:
        return torch.cat([cls, hidden[:, 1:]], dim=1)
    return hidden.index_copy(1, starts[:-1].long(), cls.to(hidden.dtype))


def position_offset(encoder: nn.Module) -> int:
    """The position of a text's first token; RoBERTa counts from the padding token's id + 1."""
    for module in encoder.modules():
        table = getattr(module, "position_embeddings", None)
        if isinstance(table, nn.Embedding):
            return 0 if table.padding_idx is None else table.padding_idx + 1
    return 0


def n_positions(encoder: Any) -> int | None:
    """The longest sequence that an encoder takes; None where there is no limit."""
    config = getattr(encoder.config, "encoder_config", encoder.config)  # of a CondenserModel
    n_rows = getattr(config, "max_position_embeddings", None)
    return n_rows - position_offset(encoder) if isinstance(n_rows, int) and n_rows > 0 else None


def refuse_incomplete(name_or_path: Any, missing: set[str], unexpected: set[str]) -> None:
    """Raise if a checkpoint has missing or unexpected weights."""
    if missing and all(key.startswith(HEAD_WEIGHTS) for key in missing):
        raise ValueError(
            f"{name_or_path} has no Condenser head, or a shorter one ({min(missing)} is missing), "
            "and a random head can corrupt the backbone: continue from a checkpoint with its head, "
            "or pass new_head=True to start a new one."
        )
    if missing or unexpected:
        raise ValueError(
            f"{name_or_path} does not fit the model: {len(missing)} weights are missing "
            f"{sorted(missing)[:3]}, {len(unexpected)} are unexpected {sorted(unexpected)[:3]}. "
            "Open a plain encoder with from_encoder."
        )


def freeze_pooler(encoder: nn.Module) -> None:
    """Freeze an encoder's pooler, because no loss reads it and data parallelism needs gradients.

    A pooler that was never trained (its bias is zero) becomes tanh(CLS).
    """
    pooler = getattr(encoder, "pooler", None) or nn.Identity()
    pooler.requires_grad_(False)
    for part in pooler.modules():
        if not isinstance(part, nn.Linear) or part.bias is None or part.weight.is_meta:
            continue
        if not part.bias.any():
            nn.init.eye_(part.weight)


def write_modules(folder: Path, dimension: int, contract: Mapping[str, Any]) -> None:
    """Write the files from which sentence-transformers 6 builds the modules around an encoder.

    Without them it would pool by the mean. `contract` has the fields of the package's
    `EncodingContract`; only pooling and similarity must be there.
    """
    base = "sentence_transformers.base.modules"
    modules = {
        "": f"{base}.transformer.Transformer",
        "1_Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    }
    files: dict[str, Any] = {
        "1_Pooling/config.json": {
            "embedding_dimension": dimension,
            "pooling_mode": contract["pooling"],
        },
        "config_sentence_transformers.json": {
            "model_type": "SentenceTransformer",
            "prompts": {
                "query": contract.get("query_prompt", ""),
                "document": contract.get("passage_prompt", ""),
            },
            "default_prompt_name": None,
            "similarity_fn_name": contract["similarity"],
            "title_separator": contract.get("title_separator", " "),  # which the library ignores
        },
    }
    if contract["similarity"] == "cosine":
        modules["2_Normalize"] = f"{base}.normalize.Normalize"
        files["2_Normalize/config.json"] = {}  # the Hub has no empty folders
    if "query_max_length" in contract:
        query, passage = contract["query_max_length"], contract["passage_max_length"]
        files["sentence_bert_config.json"] = {
            "max_seq_length": max(query, passage),
            "query_length": query,
            "document_length": passage,
        }
    files["modules.json"] = [
        {"idx": place, "name": str(place), "path": path, "type": kind}
        for place, (path, kind) in enumerate(modules.items())
    ]
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (folder / name).write_text(f"{text}\n", "utf-8")


def contract_of(config: Any, *, longest: int) -> dict[str, Any]:
    """The encoding contract of a checkpoint, for texts of up to `longest` tokens.

    The fields are those of the package's `EncodingContract` without a default, and its config's.
    """
    return {
        "query_max_length": longest,
        "passage_max_length": longest,
        "pooling": config.pooling,
        "similarity": config.similarity,
    }


def write_encoder(
    folder: Path,
    encoder: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    contract: Mapping[str, Any],
) -> None:
    """Write a plain encoder: weights, tokenizer, and modules, which state its contract.

    `contract` has the fields of `contract_of`, and perhaps further ones of `EncodingContract`. The
    tokenizer is changed (`save_tokenizer`), and the encoder names no code of others any more.
    """
    vars(encoder.config).pop("auto_map", None)
    encoder.save_pretrained(folder)
    save_tokenizer(tokenizer, contract, folder)
    write_modules(folder, encoder.config.hidden_size, contract)


def find_tokenizer(model: Any) -> PreTrainedTokenizerBase:
    """The tokenizer of a model's training, or of the checkpoint that it was loaded from."""
    if model.trained_tokenizer is not None:
        return model.trained_tokenizer
    name = model.name_or_path or model.config.encoder_config.name_or_path
    if not name:
        raise ValueError(
            "The model was not loaded from a checkpoint: pass its tokenizer as processing_class "
            "(in save_encoder: tokenizer)."
        )
    return AutoTokenizer.from_pretrained(name, **model.opened_with)


def save_tokenizer(
    tokenizer: PreTrainedTokenizerBase, contract: Mapping[str, Any], folder: Path
) -> None:
    """Save a tokenizer with the lengths and inputs of a contract, and padding at the right."""
    longest = max(contract["query_max_length"], contract["passage_max_length"])
    tokenizer.model_max_length = longest
    tokenizer.padding_side = "right"  # else learned positions of a text depend on its neighbours
    segments = ["token_type_ids"] if contract.get("token_type_ids") else []
    tokenizer.model_input_names = ["input_ids", *segments, "attention_mask"]
    # The attribute alone is not saved.
    tokenizer.init_kwargs["model_input_names"] = tokenizer.model_input_names
    # Of the call that opened it, and code of others.
    for name in ("is_local", "local_files_only", "auto_map"):
        tokenizer.init_kwargs.pop(name, None)
    if tokenizer.is_fast:
        tokenizer.backend_tokenizer.no_truncation()  # of the last call
        tokenizer.backend_tokenizer.no_padding()
    tokenizer.save_pretrained(folder)


def build_lm_head(encoder_config: Any) -> tuple[nn.Module, dict[str, str]]:
    """A new LM head of the encoder's own masked-LM class, and its tied weights."""
    with torch.device("meta"):  # the encoder inside is not needed
        dtype = torch.get_default_dtype()  # not that of the configuration
        masked_lm = AutoModelForMaskedLM.from_config(copy.deepcopy(encoder_config), dtype=dtype)
    masked_lm.config = encoder_config
    lm_head, tied = take_lm_head(masked_lm)
    lm_head.to_empty(device=torch.get_default_device())
    with torch.no_grad():
        for parameter in lm_head.parameters():
            parameter.zero_()  # some are filled by no module, such as the bias of Data2VecText
    for module in lm_head.modules():
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()
    return lm_head, tied


def take_lm_head(masked_lm: PreTrainedModel) -> tuple[nn.Module, dict[str, str]]:
    """The LM head of a masked LM, and its tied weights {target: source} by a Condenser's names."""
    encoder, tied = masked_lm.base_model_prefix, dict(masked_lm._tied_weights_keys or {})
    names = [name for name, _ in masked_lm.named_children() if name != encoder]
    if len(names) == 1:
        lm_head, prefix, new_prefix = getattr(masked_lm, names[0]), f"{names[0]}.", "lm_head."
    else:
        lm_head, prefix, new_prefix = _LMHead(masked_lm), "", "lm_head.masked_lm."

    def rename(key: str) -> str:
        if key.startswith(f"{encoder}."):
            return "condenser.encoder" + key.removeprefix(encoder)
        return new_prefix + key.removeprefix(prefix)

    return lm_head, {rename(target): rename(source) for target, source in tied.items()}


class _LMHead(nn.Module):
    """A masked LM without its encoder, (..., H) to (..., V), for LM heads of several modules."""

    def __init__(self, masked_lm: PreTrainedModel):
        super().__init__()
        setattr(masked_lm, masked_lm.base_model_prefix, _GivenHiddenStates())
        masked_lm._tied_weights_keys = masked_lm.all_tied_weights_keys = {}
        self.masked_lm = masked_lm

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.masked_lm(inputs_embeds=hidden).logits


class _GivenHiddenStates(nn.Module):
    """Replaces an encoder, and returns its input."""

    def forward(self, *args: Any, inputs_embeds: torch.Tensor, **kwargs: Any) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=inputs_embeds)
