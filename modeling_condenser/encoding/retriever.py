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
import pyarrow as pa
import torch
from datasets import Dataset
from torch.nn import functional as F
from tqdm.auto import tqdm

from modeling_condenser.collection.chunks import rows_a_read
from modeling_condenser.encoder_parts import n_positions
from modeling_condenser.files.progress import bar

from .batches import LENGTH_MULTIPLE, Tokens, accept_packed, make_batches, tokenize_texts
from .embeddings import Dtype, Embeddings, check_vectors, find_best
from .opening import fingerprint_retriever, open_encoder
from .unknown_tokens import warn_of_unknown

WINDOW = 4096  # texts that are sorted by length together
CPU_TOKEN_BUDGET, ACCELERATOR_TOKEN_BUDGET = 2048, 32_768
INT8_TOKEN_BUDGET = 512  # ONNX Runtime is slower with larger batches
_MANY_TEXTS = 50  # of which a tenth is no accident
_USUAL_LIMIT = 128  # tokens; who sets a lower one, as the demo does, knows it

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
        **stated: fields of `EncodingContract`, such as `pooling="cls"`, that complete or override
            the model's files; None is ignored.

    Attributes:
        folder: the model's files.
        settings: the stated fields.
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
        **stated: Any,
    ) -> None:
        if not Path(model).exists() and str(model).startswith(("bm25", "hybrid:")):
            raise ValueError(
                f"{model} has no vectors, or not only vectors: Index.build(passages, {model!r})"
                " searches with it."
            )
        self.settings = {name: value for name, value in stated.items() if value is not None}
        opened = open_encoder(model, device=device, dtype=dtype, **self.settings)
        self.folder, self.model, self.contract = opened
        self.dtype = dtype
        self.dimension: int = self.model.get_embedding_dimension()  # type: ignore[assignment]
        self.truncate_dim: int | None = None
        if truncate_dim is not None:
            self._truncate(truncate_dim)
        self._is_cuda = self.model.device.type == "cuda"
        is_cpu = self.model.device.type == "cpu"
        default = CPU_TOKEN_BUDGET if is_cpu else ACCELERATOR_TOKEN_BUDGET
        default = INT8_TOKEN_BUDGET if dtype == "int8" else default
        self.token_budget = default if token_budget is None else token_budget
        self._tokenizing = Lock()  # a tokenizer cannot be called from two threads
        if self.token_budget < 1:
            raise ValueError(f"token_budget is {token_budget}, expected at least 1.")
        # Float32 is padded, as in the evaluation script of an export.
        self._has_warned = self._has_warned_of_cuts = False
        self._is_packed = dtype == "bfloat16" and accept_packed(self.model)
        # Lengths cannot be rounded up beyond the positions. Int8 scales are those of a batch.
        longest = n_positions(self.model[0].model) or LENGTH_MULTIPLE
        can_round = longest % LENGTH_MULTIPLE == 0 and not self._is_packed
        self._is_exact = can_round and is_cpu and dtype != "int8"

    def __repr__(self) -> str:
        contract, device = self.contract, str(self.model.device)
        return (
            f"Retriever({str(self.folder)!r}, pooling={contract.pooling!r},"
            f" similarity={contract.similarity!r}, query_max_length={contract.query_max_length},"
            f" passage_max_length={contract.passage_max_length}, dimension={self.dimension},"
            f" dtype={self.dtype!r}, device={device!r})"
        )

    @cached_property
    def fingerprint(self) -> str:
        """Identifies weights, tokenizer, modules, contract and dtype, whatever the folder."""
        how: Any = {"dtype": self.dtype, "truncate_dim": self.truncate_dim}
        return fingerprint_retriever(self.folder, self.contract, **how)

    def truncated(self, dimension: int) -> "Retriever":
        """Return a copy that keeps the first numbers of each vector; it shares the weights."""
        other = copy.copy(self)
        other.__dict__.pop("fingerprint", None)
        other._truncate(dimension)
        return other

    def _truncate(self, dimension: int) -> None:
        if not 0 < dimension < self.dimension:
            raise ValueError(
                f"truncate_dim is {dimension}, but the vectors of {self.folder} have"
                f" {self.dimension} numbers: state 1 to {self.dimension - 1}, or leave it out."
            )
        self.dimension = self.truncate_dim = dimension

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Encode N queries with the query prompt: (N, D) float32."""
        contract = self.contract
        length, prompt = contract.query_max_length, contract.query_prompt
        return self._encode(texts, lambda _, text: contract.query(text), length, prompt)

    def encode_passages(
        self, passages: Dataset | Sequence[str], *, shown: tqdm | None = None
    ) -> np.ndarray:
        """Encode N passages with the passage prompt: (N, D) float32.

        A data set is read window by window; its columns are `text` and optionally `title`. `shown`
        is a bar of more passages that is moved on, in place of a new one.
        """
        contract = self.contract
        length, prompt = contract.passage_max_length, contract.passage_prompt
        return self._encode(
            passages, contract.passage, length, prompt, exact=self._is_exact, shown=shown
        )

    def search(
        self, queries: Sequence[str], passages: Sequence[str] | Embeddings, *, depth: int = 10
    ) -> list[list[tuple[str, float]]]:
        """Find the best passages for each query by exact search.

        Args:
            queries: texts.
            passages: texts, or `Embeddings` that were made with this retriever.
            depth: passages per query.

        Returns:
            For each query (text, score), or with embeddings (id, score), of the best passages.
        """
        self.check_inner_product()
        if depth < 1:
            raise ValueError(f"depth is {depth}, expected at least 1.")
        if isinstance(passages, Embeddings) and passages.retriever != self.fingerprint:
            raise ValueError(
                f"{passages.folder} holds the vectors of another model, or of other settings of"
                f" {self.folder}: encode the passages with this retriever."
            )
        if isinstance(passages, Iterator):  # which can be read only once
            passages = list(passages)
        vectors = self.encode_queries(queries)
        blocks: Any
        names: Any
        if isinstance(passages, Embeddings):
            blocks, names = passages.blocks(), passages.passage_ids
        else:
            blocks, names = [self.encode_passages(passages)], pa.array(list(passages))
        scores, rows = find_best(vectors, blocks, depth=min(depth, len(names)))
        return [
            list(zip(names.take(pa.array(own)).to_pylist(), found, strict=True))
            for own, found in zip(rows, scores.tolist(), strict=True)
        ]

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
        exact: bool = False,
        shown: tqdm | None = None,
    ) -> np.ndarray:
        """Encode `write(title, text)` of each row."""
        if isinstance(texts, str | Mapping) or not isinstance(texts, Iterable):
            raise ValueError(f"Got {texts!r:.80}, expected a list of texts, such as [text].")
        if not isinstance(texts, Dataset):
            texts = list(texts)
        elif "text" not in texts.column_names:
            names = ", ".join(texts.column_names)
            raise ValueError(f"The data set has the columns {names}; expected text, and title.")
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        self.model.eval()
        with self._tokenizing:
            features: Any = self.model.preprocess([""], prompt=prompt) if prompt else {}
        # A pooling that excludes the prompt needs the prompt's length.
        extra = {name: features[name] for name in ("prompt_length",) if name in features}

        def tokenize(first: int) -> Tokens:
            with self._tokenizing:
                return tokenize_texts(
                    self.model.tokenizer,
                    _read_window(texts, first, write),
                    max_length=max_length,
                    token_type_ids=self.contract.token_type_ids,
                )

        n_full = 0
        total: Any = nullcontext(shown)
        if shown is None:
            total = bar(None, "encode", unit="text", total=len(texts))
        with total as shown, ThreadPoolExecutor(max_workers=1) as reader:
            coming = reader.submit(tokenize, 0)
            for first in range(0, len(texts), WINDOW):
                tokens = coming.result()
                coming = reader.submit(tokenize, first + WINDOW)
                self._check_unknown(tokens)
                n_full += sum(len(ids) >= max_length for ids in tokens["input_ids"])
                found = vectors[first : first + WINDOW]
                self._encode_window(tokens, extra, found, exact, shown)
                check_vectors(found, len(found), first=first)
        self._check_cuts(n_full, len(texts), max_length)
        return vectors

    def _encode_window(
        self,
        tokens: Tokens,
        extra: dict[str, int],
        vectors: np.ndarray,
        exact: bool,
        shown: tqdm,
    ) -> None:
        """Encode the N texts of a window into `vectors`, (N, D).

        The longest texts come first, so the bar shows the share of the window's tokens that are
        encoded, as a number of texts: its time to the end would be too long otherwise.
        """
        order, parts = [], []
        lengths = np.array([len(ids) + 1 for ids in tokens["input_ids"]])  # no text is for free
        n_tokens, n_shown = 0, 0
        for rows, batch in make_batches(
            tokens,
            tokenizer=self.model.tokenizer,
            token_budget=self.token_budget,
            packed=self._is_packed,
            exact=exact,
        ):
            features = {name: self._move(column) for name, column in batch.items()}
            part = self.model({**extra, **features})["sentence_embedding"].float()
            order.append(rows)
            parts.append(part[: len(rows), : self.dimension])  # without filler and copies
            n_tokens += int(lengths[rows].sum())
            n_texts = len(lengths) * n_tokens // int(lengths.sum())
            shown.update(n_texts - n_shown)
            n_shown = n_texts
        found = torch.cat(parts)
        if self.contract.similarity == "cosine":  # bfloat16 and truncation change lengths
            found = F.normalize(found, dim=1)
        vectors[np.concatenate(order)] = found.cpu().numpy()

    def _check_unknown(self, tokens: Tokens) -> None:
        """Warn once if the tokenizer knows too little of the text."""
        if not self._has_warned:
            tokenizer = self.model.tokenizer
            n_texts = len(tokens["input_ids"])
            ids = np.concatenate(tokens["input_ids"])
            self._has_warned = warn_of_unknown(
                tokenizer,
                n_unknown=int((ids == tokenizer.unk_token_id).sum()),
                n_tokens=len(ids) - n_texts * tokenizer.num_special_tokens_to_add(),
                n_texts=n_texts,
            )

    def _check_cuts(self, n_full: int, n_texts: int, max_length: int) -> None:
        """Warn once if more than a tenth of many texts is as long as the limit, or was longer."""
        if n_texts < _MANY_TEXTS or max_length < _USUAL_LIMIT or self._has_warned_of_cuts:
            return
        if n_full > n_texts / 10:
            self._has_warned_of_cuts = True
            logger.warning(
                "%d of %d texts fill the %d tokens that the model reads, so what they say after "
                "these is not found: make shorter passages, as `condenser collect --model` does.",
                *(n_full, n_texts, max_length),
            )

    def _move(self, column: Any) -> Any:
        """Copy a column to the device without waiting, so that the next batch can be prepared."""
        if not isinstance(column, torch.Tensor):
            return column
        column = column.pin_memory() if self._is_cuda else column
        return column.to(self.model.device, non_blocking=self._is_cuda)


def _read_window(
    texts: Dataset | Sequence[str], first: int, write: Callable[[str, str], str]
) -> Iterator[str]:
    """Read the rows of the window that begins with row `first`, as they are encoded."""
    size = rows_a_read(texts, most=WINDOW) if isinstance(texts, Dataset) else WINDOW
    last = min(first + WINDOW, len(texts))
    for start in range(first, last, size):
        rows: Any = texts[start : min(start + size, last)]
        if isinstance(texts, Dataset):
            own = rows["text"]
            titles = rows.get("title", [""] * len(own))
        else:
            titles, own = [""] * len(rows), rows
        for row, (title, text) in enumerate(zip(titles, own, strict=True), start=start):
            if not isinstance(text, str):
                raise ValueError(
                    f"Row {row} is {text!r}, expected a text: use an empty one for none."
                )
            yield write(title, text)
