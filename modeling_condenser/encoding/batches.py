"""Tokenizes texts, and groups texts of similar length into batches, padded or packed.

Texts of a collection differ in length by a factor of a hundred, so batches of a fixed number of
texts would be mostly padding. Batches depend on the texts alone, so vectors are reproducible.

A packed batch is one row without padding, in which each text attends only to itself (`packing.py`).
If only CLS is pooled, the last layer is computed for CLS alone. The vectors are the same.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from torch import nn
from transformers import PreTrainedTokenizerBase

from modeling_condenser import packing
from modeling_condenser.configuration_condenser import SUPPORTED_ENCODERS
from modeling_condenser.encoder_parts import position_offset

_TEXTS_A_CALL = 512  # limits memory: the tokenizer keeps offsets and strings of all tokens

Tokens = Mapping[str, Sequence[np.ndarray]]
"""`input_ids` and optionally `token_type_ids` -> (tokens,) int32 of each text."""


def tokenize_texts(
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterable[str],
    *,
    max_length: int,
    token_type_ids: bool = False,
) -> Tokens:
    """Tokenize texts without padding; `max_length` includes the special tokens.

    A blank text is the padding token, if the tokenizer adds no special tokens. Of a long text, only
    the beginning is read if it has enough tokens.
    """
    fill = {"input_ids": tokenizer.pad_token_id}
    if token_type_ids:
        fill["token_type_ids"] = tokenizer.pad_token_type_id
    n_characters = 10_000 + 64 * max_length if tokenizer.truncation_side == "right" else None
    tokens: dict[str, list[np.ndarray]] = {name: [] for name in fill}

    def tokenize(some: list[str]) -> Mapping[str, list[list[int]]]:
        return tokenizer(
            some,
            truncation=True,
            max_length=max_length,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=token_type_ids,
        )

    remaining = iter(texts)
    while chunk := list(islice(remaining, _TEXTS_A_CALL)):
        beginnings = [text[:n_characters] for text in chunk]
        encoded = tokenize(beginnings)
        for i, text in enumerate(chunk):
            ids = {name: encoded[name][i] for name in tokens}
            if len(beginnings[i]) < len(text) and len(ids["input_ids"]) < max_length:
                whole = tokenize([text])  # its words are very long
                ids = {name: whole[name][0] for name in tokens}
            for name, column in tokens.items():
                column.append(np.array(ids[name] or [fill[name]], dtype=np.int32))
    return tokens


def make_batches(
    texts: Tokens,
    *,
    tokenizer: PreTrainedTokenizerBase,
    token_budget: int,
    packed: bool = False,
) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
    """Make the batches of `plan_batches`.

    Yields:
        The rows of a batch, (B,) int64, and the model's inputs on the CPU: int64 columns, (B, T) if
        padded, or those of `lay_end_to_end`, whose filler counts as one more text.
    """
    lengths = np.array([len(ids) for ids in texts["input_ids"]], dtype=np.int64)
    fill = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
    for rows in plan_batches(lengths, token_budget=token_budget, packed=packed):
        tokens = {name: np.concatenate([ids[i] for i in rows]) for name, ids in texts.items()}
        if packed:
            columns = {name: (torch.from_numpy(ids), fill[name]) for name, ids in tokens.items()}
            yield rows, packing.lay_end_to_end(lengths[rows].tolist(), columns)
            continue
        places = np.arange(lengths[rows[0]])  # the longest text is the first
        if tokenizer.padding_side == "left":
            places = places[::-1]
        is_token = places < lengths[rows, None]  # (B, T), as all columns
        batch = {"attention_mask": torch.from_numpy(is_token).long()}
        for name, ids in tokens.items():
            column = np.full(is_token.shape, fill[name], dtype=np.int64)
            column[is_token] = ids
            batch[name] = torch.from_numpy(column)
        yield rows, batch


def plan_batches(
    lengths: np.ndarray, *, token_budget: int, packed: bool = False
) -> list[np.ndarray]:
    """Group texts by their lengths, (N,), into batches: the rows of each batch, (B,) int64.

    A batch has at most `token_budget` tokens, including padding or filler, or else only one text.
    The longest texts come first, so that a batch that does not fit into memory fails at the start.
    """
    order = np.argsort(-lengths, kind="stable")
    room = token_budget - token_budget % packing.PACK_MULTIPLE or token_budget
    ends = np.cumsum(lengths[order])
    batches, first = [], 0
    while first < len(order):
        longest = int(lengths[order[first]])
        if packed:
            last = int(np.searchsorted(ends, ends[first] - longest + room, side="right"))
        else:
            last = first + token_budget // max(longest, 1)
        last = max(last, first + 1)
        batches.append(order[first:last])
        first = last
    return batches


def accept_packed(model: SentenceTransformer) -> bool:
    """Change a model to accept packed batches; return False and change nothing if it cannot."""
    modules: list[Any] = list(model)
    if not _can_pack(*modules):
        return False
    transformer, pooling = modules[:2]
    encoder = transformer.model
    encoder.set_attn_implementation(packing.PACKED)
    offset = position_offset(encoder)
    # The module calls the encoder's `forward` directly, which skips hooks of the encoder.
    transformer.register_forward_pre_hook(
        lambda _, args: (packing.offset_positions(args[0], offset), *args[1:])
    )
    # If it excludes the prompt, sentence-transformers pools the first token after the prompt.
    is_cls = pooling.pooling_mode in ("cls", ("cls",), ["cls"]) and pooling.include_prompt
    if is_cls and (layer := packing.layer_to_narrow(encoder)) is not None:
        layer.register_forward_pre_hook(_keep_cls, with_kwargs=True)
        transformer.register_forward_hook(_rename_cls)
    return True


def _can_pack(transformer: Any, pooling: Any, *following: Any) -> bool:
    """Return whether a supported encoder is pooled and later modules read only the vector."""
    encoder = transformer.model
    return (
        encoder.config.model_type in SUPPORTED_ENCODERS  # for which tests compare vectors
        and packing.why_not_packed(encoder) is None
        and encoder.config._attn_implementation == "sdpa"
        and transformer.tokenizer.padding_side == "right"  # left padding shifts positions
        and not any(getattr(module, "is_causal", False) for module in encoder.modules())
        and isinstance(pooling, Pooling)
        and all(
            isinstance(module, Normalize)
            or getattr(module, "module_input_name", None) == "sentence_embedding"
            for module in following
        )
    )


def _keep_cls(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Change a layer's call so that CLS of each text is its only query; keys are all tokens."""
    starts = kwargs.get("cu_seq_lens_q")
    if starts is None:
        return args, kwargs
    one_each = torch.arange(len(starts), dtype=starts.dtype, device=starts.device)
    args, kwargs = packing.SelectedRows(starts[:-1].long(), one_each).narrow(args, kwargs)
    return args, {**kwargs, "max_length_q": 1}


def _rename_cls(_: nn.Module, args: tuple, features: dict[str, Any]) -> None:
    """Pass the rows of a packed batch, (B, H), to the pooling as CLS embeddings."""
    if "cu_seq_lens_q" in features:
        features["cls_token_embeddings"] = features["token_embeddings"][0]
