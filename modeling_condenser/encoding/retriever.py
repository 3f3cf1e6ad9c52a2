"""`Retriever` encodes queries and passages with any bi-encoder, as its contract says.

Texts are read in windows. A window is sorted by length and encoded in batches of about the same
number of tokens, while the next window is tokenized: texts of a collection differ in length by a
factor of a hundred, so batches of a fixed number of texts would be mostly padding. Batches depend
on the texts alone, so vectors are reproducible.

In float32, batches are padded. In bfloat16, a batch is packed: one row without padding, in which
each text attends only to itself (`packing.py`). If only CLS is pooled, the last layer is computed
for CLS alone. The vectors are the same.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch.nn import functional as F
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from modeling_condenser.collection.collection import check_text
from modeling_condenser.files.models import (
    INT8_FILE,
    MODULES_CONFIG_FILE,
    MODULES_FILE,
    QUERY_FOLDER,
    Dtype,
    EncodingContract,
    module_paths,
    open_model,
    warn_of_unknown,
)
from modeling_condenser.files.run_folder import bar, checksum_file

WINDOW = 4096  # texts that are sorted by length together
CPU_TOKEN_BUDGET, ACCELERATOR_TOKEN_BUDGET = 2048, 32_768
INT8_TOKEN_BUDGET = 512  # ONNX Runtime is slower with larger batches
_TEXTS_A_CALL = 512  # limits memory: the tokenizer keeps offsets and strings of all tokens
_ROWS_A_READ = 256  # of a data set, whose texts may be long
_MANY_TEXTS = 50  # of which a tenth is no accident
_USUAL_LIMIT = 128  # tokens; who sets a lower one knows it

logger = logging.getLogger(__name__)
# The files that vectors depend on, in the folder of the transformer and in those of other modules.
_TRANSFORMER_FILES = (
    "config.json sentence_*_config.json tokenizer*.json special_tokens_map.json added_tokens.json "
    "vocab.* merges.txt bpe.codes *.model model*.safetensors"
).split()
_MODULE_FILES = "*.json *.txt *.model *.safetensors *.bin".split()

Tokens = Mapping[str, Sequence[np.ndarray]]
"""`input_ids` and optionally `token_type_ids` -> (tokens,) int32 of each text."""


class Retriever:
    """A bi-encoder: one encoder for queries and passages.

    A plain encoder needs a stated pooling. Its defaults are the dot product, a space between title
    and text, no prompts, and the maximum length that its tokenizer and positions allow. Threads may
    share a retriever.

    Example:
        >>> retriever = Retriever("my-encoder")
        >>> queries = retriever.encode_queries(["where do rivers begin?"])  # (1, D)
        >>> passages = retriever.encode_passages(["At a spring.", "In May."])  # (2, D)

    Args:
        model: folder or Hub name of an export, a sentence-transformers model or a plain encoder.
        device: such as "cpu" or "cuda:1"; by default an accelerator if there is one.
        token_budget: tokens in a batch, including padding; the default depends on the device.
        dtype: of the weights. Vectors of "bfloat16" agree with those of "float32" to about three
            digits, those of "int8" to about two; all are returned as float32. "int8" is for a CPU,
            and needs the file that `condenser export --onnx int8` adds to a model.
        truncate_dim: keep the first numbers of each vector (Matryoshka representations, Kusupati et
            al. 2022); all by default.
        **overrides: fields of `EncodingContract`, such as `pooling="cls"`, that complete or replace
            those of the model's files; None is ignored.

    Attributes:
        folder: the model's files.
        arguments: they open the same model again, on the default device.
        contract: how texts become vectors.
        model: its sentence-transformers modules.
        dimension: D, numbers in a vector.

    Raises:
        FileNotFoundError: there is no such model.
        ValueError: a field is missing or does not fit the encoder.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        device: str | torch.device | None = None,
        token_budget: int | None = None,
        dtype: Dtype = "float32",
        truncate_dim: int | None = None,
        **overrides: Any,
    ) -> None:
        overrides = {name: value for name, value in overrides.items() if value is not None}
        opened = open_model(model, device=device, dtype=dtype, **overrides)
        self.folder, self.model, self.contract = opened
        self.dtype = dtype
        self.dimension: int = self.model.get_embedding_dimension()  # type: ignore[assignment]
        self.truncate_dim = truncate_dim
        if truncate_dim is not None:
            if not 0 < truncate_dim < self.dimension:
                raise ValueError(
                    f"truncate_dim is {truncate_dim}, but the vectors of {self.folder} have"
                    f" {self.dimension} numbers: state 1 to {self.dimension - 1}, or leave it out."
                )
            self.dimension = truncate_dim
        budget = CPU_TOKEN_BUDGET if self.model.device.type == "cpu" else ACCELERATOR_TOKEN_BUDGET
        self.token_budget = token_budget or (INT8_TOKEN_BUDGET if dtype == "int8" else budget)
        self.arguments = {"dtype": dtype, "token_budget": self.token_budget, **overrides}
        self.arguments["truncate_dim"] = truncate_dim
        self._is_packed = False
        if dtype == "bfloat16":
            from .packed import accept_packed  # with the model files

            self._is_packed = accept_packed(self.model)
        self._tokenizing = Lock()  # a tokenizer cannot be called from two threads
        self._has_warned = False

    def __repr__(self) -> str:
        return (
            f"Retriever({str(self.folder)!r}, {self.contract}, dimension={self.dimension},"
            f" dtype={self.dtype!r}, device={str(self.model.device)!r})"
        )

    @property
    def fingerprint(self) -> str:
        """Identifies the model's files, contract, dtype and dimension, whatever the folder."""
        return self._fingerprints[0]

    @property
    def passage_fingerprint(self) -> str:
        """The same for its vectors of passages; that of its start if only queries were adapted."""
        return self._fingerprints[1]

    @cached_property
    def _fingerprints(self) -> tuple[str, str]:
        whole, passages = fingerprint_model(self.folder, self.contract, dtype=self.dtype)
        if self.truncate_dim is not None:
            return f"{whole} {self.truncate_dim}", f"{passages} {self.truncate_dim}"
        return whole, passages

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Encode N queries with the query prompt: (N, D) float32."""
        contract = self.contract
        length = contract.query_max_length
        return self._encode(texts, lambda _, text: contract.query(text), length, "query")

    def encode_passages(self, passages: Dataset | Sequence[str]) -> np.ndarray:
        """Encode N passages with the passage prompt: (N, D) float32.

        A data set is read window by window; its columns are `text` and optionally `title`.
        """
        contract = self.contract
        return self._encode(passages, contract.passage, contract.passage_max_length, "document")

    def check_inner_product(self) -> None:
        """Raise a ValueError if this retriever does not compare by inner products."""
        if self.contract.similarity == "euclidean":
            raise ValueError(
                f"{self.folder} compares by Euclidean distance: state similarity=dot or cosine."
            )

    @torch.inference_mode()
    def _encode(
        self,
        texts: Dataset | Sequence[str],
        write: Callable[[str, str], str],
        max_length: int,
        task: str,
    ) -> np.ndarray:
        """Encode `write(title, text)` of each row; `task` is the route of a model that has some."""
        is_table = hasattr(texts, "columns")  # whose iterator gives names of columns
        if isinstance(texts, str | Mapping) or is_table or not isinstance(texts, Iterable):
            raise ValueError(f"Got {texts!r:.80}, expected a list of texts, such as [text].")
        if not isinstance(texts, Dataset):
            texts = list(texts)
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        self.model.eval()

        def tokenize(first: int) -> Tokens:
            with self._tokenizing:
                return tokenize_texts(
                    self.model.tokenizer,
                    _read_window(texts, first, write),
                    max_length=max_length,
                    token_type_ids=self.contract.token_type_ids,
                )

        progress = bar(None, "encode", unit="text", total=len(texts))
        with ThreadPoolExecutor(max_workers=1) as reader, progress:
            next_tokens = reader.submit(tokenize, 0)
            for first in range(0, len(texts), WINDOW):
                tokens = next_tokens.result()
                next_tokens = reader.submit(tokenize, first + WINDOW)
                self._warn(tokens, max_length)
                window = vectors[first : first + WINDOW]
                self._encode_window(tokens, task, window, progress)
                bad = np.flatnonzero(~np.isfinite(window).all(axis=1))
                if len(bad):
                    raise ValueError(
                        f"{len(bad)} of {len(window)} vectors hold NaN or infinity, the first in "
                        f"row {first + bad[0]}: training may have diverged."
                    )
        return vectors

    def _encode_window(
        self, tokens: Tokens, task: str, vectors: np.ndarray, progress: tqdm
    ) -> None:
        """Encode the N texts of a window into `vectors`, (N, D)."""
        order, parts = [], []
        for rows, batch in make_batches(
            tokens,
            tokenizer=self.model.tokenizer,
            token_budget=self.token_budget,
            packed=self._is_packed,
        ):
            features = {name: self._move(column) for name, column in batch.items()}
            part = self.model({"task": task, **features})["sentence_embedding"].float()
            order.append(rows)
            parts.append(part[: len(rows), : self.dimension])  # without filler
            progress.update(len(rows))
        encoded = torch.cat(parts)
        if self.contract.similarity == "cosine":  # bfloat16 and truncation change lengths
            encoded = F.normalize(encoded, dim=1)
        vectors[np.concatenate(order)] = encoded.cpu().numpy()

    def _warn(self, tokens: Tokens, max_length: int) -> None:
        """Warn once if much of the texts of a window is unknown or cut."""
        if self._has_warned:
            return
        tokenizer, n_texts = self.model.tokenizer, len(tokens["input_ids"])
        ids = np.concatenate(tokens["input_ids"])
        self._has_warned = warn_of_unknown(
            tokenizer,
            n_unknown=int((ids == tokenizer.unk_token_id).sum()),
            n_tokens=len(ids) - n_texts * tokenizer.num_special_tokens_to_add(),
            n_texts=n_texts,
        )
        n_full = sum(len(text) >= max_length for text in tokens["input_ids"])
        if n_full > n_texts / 10 and n_texts >= _MANY_TEXTS and max_length >= _USUAL_LIMIT:
            self._has_warned = True
            logger.warning(
                "%d of %d texts fill the %d tokens that the model reads; the rest of them is not "
                "read. Split long passages, as `condenser collect --model` does.",
                *(n_full, n_texts, max_length),
            )

    def _move(self, column: Any) -> Any:
        """Copy a column to the device without waiting, so that the next batch can be prepared."""
        if not isinstance(column, torch.Tensor):
            return column
        is_cuda = self.model.device.type == "cuda"
        column = column.pin_memory() if is_cuda else column
        return column.to(self.model.device, non_blocking=is_cuda)


def _read_window(
    texts: Dataset | Sequence[str], first: int, write: Callable[[str, str], str]
) -> Iterator[str]:
    """Read the rows of the window that begins with row `first`, as they are encoded."""
    last = min(first + WINDOW, len(texts))
    for start in range(first, last, _ROWS_A_READ):
        rows: Any = texts[start : min(start + _ROWS_A_READ, last)]
        titles = [""] * len(rows)
        if isinstance(texts, Dataset):
            titles = rows.get("title", [""] * len(rows["text"]))
            rows = rows["text"]
        for row, (title, text) in enumerate(zip(titles, rows, strict=True), start=start):
            if not isinstance(text, str):
                raise ValueError(
                    f"Row {row} is {text!r}, expected a text: use an empty one for none."
                )
            check_text(text, f"Row {row}")
            yield write(title, text)


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
            from modeling_condenser import packing  # with the model files

            yield rows, packing.lay_end_to_end(lengths[rows].tolist(), columns)
            continue
        places = np.arange(lengths[rows[0]])  # the longest text is the first
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
    room, ends = token_budget, np.cumsum(lengths[order])
    if packed:
        from modeling_condenser.packing import PACK_MULTIPLE  # with the model files

        room = token_budget - token_budget % PACK_MULTIPLE or token_budget
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


def fingerprint_model(
    folder: Path, contract: EncodingContract, *, dtype: Dtype = "float32"
) -> tuple[str, str]:
    """SHA-256 of all that a model's vectors depend on: its files, a contract and a dtype.

    Returns:
        That of all vectors, and that of passages, which leaves out what is of queries alone.
    """
    files = {file.name: file for file in map(folder.joinpath, (MODULES_FILE, MODULES_CONFIG_FILE))}
    files = {name: file for name, file in files.items() if file.is_file()}
    for path in module_paths(folder):
        # The transformer's folder also holds cards and records.
        is_transformer = path == module_paths(folder)[0]
        patterns = _TRANSFORMER_FILES if is_transformer else _MODULE_FILES
        if is_transformer and not any((folder / path).glob("model*.safetensors")):
            patterns = [*patterns, "pytorch_model*.bin"]  # which are not read beside the others
        for pattern in patterns:
            for file in (folder / path).glob(pattern if is_transformer else f"**/{pattern}"):
                files[file.relative_to(folder).as_posix()] = file
    if dtype == "int8":
        from modeling_condenser.files.onnx_encoder import int8_file

        files[INT8_FILE] = int8_file(folder)
    map_of_queries = f"{QUERY_FOLDER}/"
    of_passages = {
        name: each for name, each in files.items() if not name.startswith(map_of_queries)
    }
    if (modules_of_start := folder / QUERY_FOLDER / MODULES_FILE).is_file():
        of_passages[MODULES_FILE] = modules_of_start
    without_queries = replace(contract, query_prompt="", query_max_length=0)
    return _hash_files(files, contract, dtype), _hash_files(of_passages, without_queries, dtype)


def _hash_files(files: Mapping[str, Path], contract: EncodingContract, dtype: Dtype) -> str:
    digest = hashlib.sha256(json.dumps([asdict(contract), dtype]).encode())
    for name, file in sorted(files.items(), key=lambda item: Path(item[0])):
        digest.update(name.encode())
        digest.update(bytes.fromhex(checksum_file(file)))
    return digest.hexdigest()
