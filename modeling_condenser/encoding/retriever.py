"""`Retriever` encodes queries and passages with any bi-encoder, as its contract says.

Texts are read in windows. A window is sorted by length and encoded in batches of about the same
number of tokens, padded in float32 and packed in bfloat16, while the next window is tokenized.
"""

import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch.nn import functional as F
from tqdm.auto import tqdm

from modeling_condenser.files.progress import bar

from .batches import Tokens, accept_packed, make_batches, tokenize_texts
from .embeddings import Dtype, check_vectors, find_best
from .opening import fingerprint_model, open_model
from .unknown_tokens import warn_of_unknown

WINDOW = 4096  # texts that are sorted by length together
CPU_TOKEN_BUDGET, ACCELERATOR_TOKEN_BUDGET = 2048, 32_768
INT8_TOKEN_BUDGET = 512  # ONNX Runtime is slower with larger batches
_ROWS_A_READ = 256  # of a data set, whose texts may be long
_MANY_TEXTS = 50  # of which a tenth is no accident
_USUAL_LIMIT = 128  # tokens; who sets a lower one knows it

logger = logging.getLogger(__name__)


class Retriever:
    """A bi-encoder: one encoder for queries and passages.

    A plain encoder needs a stated pooling. Its defaults are the dot product, a space between title
    and text, no prompts, and the maximum length that its tokenizer and positions allow. Threads may
    share a retriever.

    Example:
        >>> retriever = Retriever("my-encoder")
        >>> queries = retriever.encode_queries(["where do rivers begin?"])  # (1, D)
        >>> passages = retriever.encode_passages(["At a spring.", "In May."])  # (2, D)
        >>> [[(text, score)]] = retriever.search(["rivers"], ["At a spring.", "In May."], depth=1)

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
        self.token_budget = token_budget or self._default_token_budget()
        self.truncate_dim: int | None = None
        self.arguments = {"dtype": dtype, "token_budget": self.token_budget, **overrides}
        if truncate_dim is not None:
            self._truncate(truncate_dim)
        self._is_packed = dtype == "bfloat16" and accept_packed(self.model)
        self._tokenizing = Lock()  # a tokenizer cannot be called from two threads
        self._has_warned = False

    def _default_token_budget(self) -> int:
        if self.dtype == "int8":
            return INT8_TOKEN_BUDGET
        is_cpu = self.model.device.type == "cpu"
        return CPU_TOKEN_BUDGET if is_cpu else ACCELERATOR_TOKEN_BUDGET

    def __repr__(self) -> str:
        return (
            f"Retriever({str(self.folder)!r}, {self.contract}, dimension={self.dimension},"
            f" dtype={self.dtype!r}, device={str(self.model.device)!r})"
        )

    @property
    def fingerprint(self) -> str:
        """Identifies the model's files, contract, dtype and dimension, whatever the folder."""
        if self.truncate_dim is None:
            return self._model_fingerprint
        return f"{self._model_fingerprint} {self.truncate_dim}"

    @cached_property
    def _model_fingerprint(self) -> str:
        return fingerprint_model(self.folder, self.contract, dtype=self.dtype)

    def truncated(self, dimension: int) -> "Retriever":
        """Return a copy that keeps the first numbers of each vector; it shares the weights."""
        truncated = copy.copy(self)
        truncated._truncate(dimension)
        return truncated

    def _truncate(self, dimension: int) -> None:
        if not 0 < dimension < self.dimension:
            raise ValueError(
                f"truncate_dim is {dimension}, but the vectors of {self.folder} have"
                f" {self.dimension} numbers: state 1 to {self.dimension - 1}, or leave it out."
            )
        self.dimension = self.truncate_dim = dimension
        self.arguments = {**self.arguments, "truncate_dim": dimension}

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Encode N queries with the query prompt: (N, D) float32."""
        contract = self.contract
        length, prompt = contract.query_max_length, contract.query_prompt
        return self._encode(texts, lambda _, text: contract.query(text), length, prompt)

    def encode_passages(
        self, passages: Dataset | Sequence[str], *, progress: tqdm | None = None
    ) -> np.ndarray:
        """Encode N passages with the passage prompt: (N, D) float32.

        A data set is read window by window; its columns are `text` and optionally `title`.
        `progress` is a bar of more passages, which is used instead of a new one.
        """
        contract = self.contract
        length, prompt = contract.passage_max_length, contract.passage_prompt
        return self._encode(passages, contract.passage, length, prompt, progress=progress)

    def search(
        self, queries: Sequence[str], passages: Sequence[str], *, depth: int = 10
    ) -> list[list[tuple[str, float]]]:
        """Find the best passages for each query by exact search: their texts and scores.

        For more than some thousand passages, use `Index`, which stores their vectors.
        """
        self.check_inner_product()
        vectors, texts = self.encode_queries(queries), list(passages)
        blocks = [self.encode_passages(texts)]
        scores, rows = find_best(vectors, blocks, depth=min(depth, len(texts)))
        answers = []
        for query_scores, query_rows in zip(scores.tolist(), rows.tolist(), strict=True):
            best = [texts[row] for row in query_rows]
            answers.append(list(zip(best, query_scores, strict=True)))
        return answers

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
        prompt: str,
        *,
        progress: tqdm | None = None,
    ) -> np.ndarray:
        """Encode `write(title, text)` of each row."""
        if isinstance(texts, str | Mapping) or not isinstance(texts, Iterable):
            raise ValueError(f"Got {texts!r:.80}, expected a list of texts, such as [text].")
        if not isinstance(texts, Dataset):
            texts = list(texts)
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        self.model.eval()
        extra = self._prompt_features(prompt)

        def tokenize(first: int) -> Tokens:
            with self._tokenizing:
                return tokenize_texts(
                    self.model.tokenizer,
                    _read_window(texts, first, write),
                    max_length=max_length,
                    token_type_ids=self.contract.token_type_ids,
                )

        shown: Any = nullcontext(progress)
        if progress is None:
            shown = bar(None, "encode", unit="text", total=len(texts))
        with ThreadPoolExecutor(max_workers=1) as reader, shown as progress:
            next_tokens = reader.submit(tokenize, 0)
            for first in range(0, len(texts), WINDOW):
                tokens = next_tokens.result()
                next_tokens = reader.submit(tokenize, first + WINDOW)
                self._warn(tokens, max_length)
                window = vectors[first : first + WINDOW]
                self._encode_window(tokens, extra, window, progress)
                check_vectors(window, len(window), first=first)
        return vectors

    def _prompt_features(self, prompt: str) -> dict[str, Any]:
        """The length of a prompt, which a pooling that excludes the prompt needs."""
        if not prompt:
            return {}
        with self._tokenizing:
            features: Any = self.model.preprocess([""], prompt=prompt)
        return {name: features[name] for name in ("prompt_length",) if name in features}

    def _encode_window(
        self, tokens: Tokens, extra: dict[str, Any], vectors: np.ndarray, progress: tqdm
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
            part = self.model({**extra, **features})["sentence_embedding"].float()
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
            yield write(title, text)
