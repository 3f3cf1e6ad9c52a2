"""Tokenizes texts, and groups texts of similar length into batches, padded or packed.

Texts of a collection differ in length by a factor of a hundred, so batches of a fixed number of
texts would be mostly padding. Batches depend on the texts alone, so vectors are reproducible.

A packed batch is one row without padding, in which each text attends only to itself (`packing.py`).
If only CLS is pooled, the last layer is computed for CLS alone. The vectors are the same.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from torch import nn
from transformers import PreTrainedTokenizerBase

from modeling_condenser import packing
from modeling_condenser.collection.chunks import in_chunks
from modeling_condenser.configuration_condenser import SUPPORTED_ENCODERS
from modeling_condenser.encoder_parts import position_offset

_TEXTS_A_CALL = 512  # limits memory: the tokenizer keeps offsets and strings of all tokens
_CHARACTERS_A_TOKEN = 16  # that a text is cut to; three times as many as a token of English has
_MARGIN = 256  # characters before a cut whose tokens may be others without it
# In batches of such shapes, torch's kernels for CPUs add the numbers of a text in the same order.
# In batches of fewer tokens, threads may share a sum (MKL, in encoders of up to 1,024 units).
LENGTH_MULTIPLE = 16
_LEAST_TOKENS = 512

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

    A blank text is the padding token, if the tokenizer adds no special tokens.
    """
    tokens: dict[str, list[np.ndarray]] = {"input_ids": []}
    if token_type_ids:
        tokens["token_type_ids"] = []
    for chunk in in_chunks(texts, most=_TEXTS_A_CALL, text=str):
        encoded = _tokenize_heads(
            tokenizer, chunk, max_length=max_length, return_token_type_ids=token_type_ids
        )
        for name, column in tokens.items():
            column += [row[name] for row in encoded]
    return tokens


def _tokenize_heads(
    tokenizer: PreTrainedTokenizerBase,
    texts: list[str],
    *,
    max_length: int,
    n_characters: int | None = None,
    **options: Any,
) -> list[dict[str, np.ndarray]]:
    """The tokens of each text, of which only the first characters are read if these are enough."""
    n_characters = n_characters or _CHARACTERS_A_TOKEN * max_length + _MARGIN
    if tokenizer.truncation_side != "right" or not tokenizer.is_fast:
        n_characters = max(map(len, texts))
    encoded = tokenizer(
        [text[:n_characters] for text in texts],
        truncation=True,
        max_length=max_length,
        padding=False,
        return_attention_mask=False,
        **options,
    )
    nothing = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
    rows = [
        {n: np.array(column[i] or [nothing[n]], dtype=np.int32) for n, column in encoded.items()}
        for i in range(len(texts))
    ]
    is_cut = [len(text) > n_characters for text in texts]
    again = [
        i
        for i in np.flatnonzero(is_cut)
        if len(rows[i]["input_ids"]) < max_length
        or max(end for _, end in encoded.encodings[i].offsets) > n_characters - _MARGIN
    ]
    if again:
        longer = _tokenize_heads(
            tokenizer,
            [texts[i] for i in again],
            max_length=max_length,
            n_characters=8 * n_characters,
            **options,
        )
        for i, row in zip(again, longer, strict=True):
            rows[i] = row
    return rows


def make_batches(
    texts: Tokens,
    *,
    tokenizer: PreTrainedTokenizerBase,
    token_budget: int,
    packed: bool = False,
    exact: bool = False,
) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
    """Make the batches of `plan_batches`.

    With `exact`, the other texts of a padded batch do not change the bits of a vector on a CPU:
    lengths are rounded up to a multiple of 16, and a small batch is filled up with copies.

    Yields:
        The rows of a batch, (B,) int64, and the model's inputs on the CPU: int64 columns, (B, T) or
        with copies after B, if padded, or those of `lay_end_to_end`, whose filler counts as one
        more text.
    """
    lengths = np.array([len(ids) for ids in texts["input_ids"]], dtype=np.int64)
    widths = lengths
    if exact:
        widths = -(-np.maximum(lengths, 1) // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    fill = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
    for rows in plan_batches(widths, token_budget=token_budget, packed=packed):
        width = int(widths[rows[0]])
        least = min(-(-_LEAST_TOKENS // width), token_budget // width) if exact else 0
        filled = np.resize(rows, max(len(rows), least))  # repeats the rows
        tokens = {name: np.concatenate([ids[i] for i in filled]) for name, ids in texts.items()}
        if packed:
            columns = {name: (torch.from_numpy(ids), fill[name]) for name, ids in tokens.items()}
            yield rows, packing.lay_end_to_end(lengths[rows].tolist(), columns)
            continue
        places = np.arange(width)
        if tokenizer.padding_side == "left":
            places = places[::-1]
        is_token = places < lengths[filled, None]  # (B, T), as all columns
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
