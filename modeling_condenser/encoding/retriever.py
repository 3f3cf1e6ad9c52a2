"""`Retriever`: encode queries and passages with any bi-encoder, as its contract says.

A retriever tokenizes a window of texts at a time, sorts the window by length, and runs batches of
about equally many tokens: padded, or without padding in bfloat16. The next window is read and
tokenized while the current one is encoded. Only the output grows with the number of texts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers.sentence_transformer.modules import Normalize
from torch.nn import functional as F
from tqdm.auto import tqdm

from modeling_condenser.repository.contract import Pooling, Similarity

from .fingerprints import fingerprint_retriever
from .opening import check_length, open_encoder
from .packed_encoder import use_packing
from .precision import FLOAT32, Dtype
from .token_batches import (
    LENGTH_MULTIPLE,
    TokenizedTexts,
    packed_batches,
    padded_batches,
    tokenize_texts,
)

WINDOW = 4096  # texts that are sorted by length together
CPU_TOKEN_BUDGET, ACCELERATOR_TOKEN_BUDGET = 2048, 32_768

_Read = Callable[[int, int], list[str]]  # reads the texts of rows first to last


class Retriever:
    """A bi-encoder: one encoder for queries and passages.

    Stated arguments take precedence over the model's files. A plain encoder must be given a
    pooling; by default it uses the dot product, a space between title and text, no prompts, and the
    longest texts that its tokenizer and positions allow.

    Args:
        model: folder or Hub name of an export, a sentence-transformers model or a plain encoder.
        pooling: how token vectors become one vector: "cls", "mean" or "max".
        similarity: "dot", "cosine" (vectors have length 1) or "euclidean".
        query_max_length: longest query in tokens.
        passage_max_length: longest passage in tokens.
        title_separator: between title and text.
        query_prompt: before every query.
        passage_prompt: before every passage.
        device: such as "cpu" or "cuda:1"; by default an accelerator if there is one.
        token_budget: tokens in a batch, with padding; the default depends on the device.
        dtype: of the weights. Vectors of "bfloat16" agree with those of "float32" to about three
            digits, and are returned as float32.

    Attributes:
        folder: the model's files.
        settings: the stated arguments but the device; `Retriever(folder, **settings)` opens the
            same retriever again.
        contract: how it encodes; see `OpenedEncoder`.
        model: its sentence-transformers modules.
        dimension: D, numbers in a vector.
        token_budget: tokens in a batch.
        dtype: of the weights.

    Raises:
        FileNotFoundError: there is no such model.
        ValueError: a setting is missing or does not fit the encoder.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        pooling: Pooling | None = None,
        similarity: Similarity | None = None,
        query_max_length: int | None = None,
        passage_max_length: int | None = None,
        title_separator: str | None = None,
        query_prompt: str | None = None,
        passage_prompt: str | None = None,
        device: str | torch.device | None = None,
        token_budget: int | None = None,
        dtype: Dtype = FLOAT32,
    ) -> None:
        opened = open_encoder(
            model,
            device=device,
            dtype=dtype,
            pooling=pooling,
            similarity=similarity,
            query_max_length=query_max_length,
            passage_max_length=passage_max_length,
            title_separator=title_separator,
            query_prompt=query_prompt,
            passage_prompt=passage_prompt,
        )
        self.folder, self.model, self.contract = opened.folder, opened.model, opened.contract
        self.dtype = dtype
        self.settings = dict(opened.stated)
        if dtype != FLOAT32:
            self.settings["dtype"] = dtype
        if token_budget is not None:
            self.settings["token_budget"] = token_budget
        # Float32 is padded, so that it has the bits of an export's evaluation script.
        self._is_packed = dtype != FLOAT32 and use_packing(self.model)
        dimension: Any = self.model.get_embedding_dimension()
        self.dimension: int = dimension
        is_cpu = self.model.device.type == "cpu"
        default = CPU_TOKEN_BUDGET if is_cpu else ACCELERATOR_TOKEN_BUDGET
        self.token_budget = default if token_budget is None else token_budget

    @cached_property
    def fingerprint(self) -> str:
        """Identifies weights, tokenizer, modules, contract and dtype; independent of the folder."""
        return fingerprint_retriever(self.folder, self.contract, dtype=self.dtype)

    def encode_queries(self, texts: Sequence[str], *, progress: bool = False) -> np.ndarray:
        """Encode N queries with the query prompt.

        Returns:
            (N, D) float32 vectors, of length 1 for cosine similarity.

        Raises:
            ValueError: an element is not a text, or its vector is not finite.
        """
        contract, listed = self.contract, _list_texts(texts)
        return self._encode(
            lambda first, last: [contract.query(text) for text in listed[first:last]],
            len(listed),
            max_length=contract.query_max_length,
            prompt=contract.query_prompt,
            progress=progress,
        )

    def encode_passages(self, passages: Dataset, *, progress: bool = False) -> np.ndarray:
        """Encode N passages with the passage prompt and their titles.

        Args:
            passages: columns `title` and `text`, read window by window.
            progress: show a bar.

        Returns:
            (N, D) float32 vectors, of length 1 for cosine similarity.

        Raises:
            ValueError: a column is missing, an element is not a text, or a vector is not finite.
        """
        missing = {"title", "text"} - set(passages.column_names)
        if missing:
            raise ValueError(
                f"The passages have the columns {', '.join(passages.column_names)}, but not "
                f"{', '.join(sorted(missing))}: expected title and text; rename the columns."
            )
        columns = passages.select_columns(["title", "text"])
        contract = self.contract

        def read(first: int, last: int) -> list[str]:
            rows = columns[first:last]
            _check_strings(rows["text"], first)
            pairs = zip(rows["title"], rows["text"], strict=True)
            return [contract.passage(title, text) for title, text in pairs]

        return self._encode(
            read,
            len(passages),
            max_length=contract.passage_max_length,
            prompt=contract.passage_prompt,
            progress=progress,
        )

    def encode_texts(
        self, texts: Sequence[str], max_length: int, *, progress: bool = False
    ) -> np.ndarray:
        """Encode N texts without prompts, such as the two sides of graded pairs.

        Args:
            texts: N texts.
            max_length: longest text in tokens, including special tokens; longer texts are cut.
            progress: show a bar.

        Returns:
            (N, D) float32 vectors, of length 1 for cosine similarity.
        """
        check_length(self.folder, self.model, max_length=max_length)
        listed = _list_texts(texts)
        return self._encode(
            lambda first, last: listed[first:last],
            len(listed),
            max_length=max_length,
            prompt="",
            progress=progress,
        )

    def _encode(
        self, read: _Read, n_texts: int, *, max_length: int, prompt: str, progress: bool
    ) -> np.ndarray:
        self.model.eval()
        vectors = np.empty((n_texts, self.dimension), dtype=np.float32)
        features: Any = self.model.preprocess([""], prompt=prompt) if prompt else {}
        # A pooling that excludes the prompt needs its length.
        extra = {name: features[name] for name in ("prompt_length",) if name in features}
        with tqdm(total=n_texts, desc="encode", unit="text", disable=not progress) as bar:
            for first, window in self._windows(read, n_texts, max_length):
                found = self._encode_window(window, extra, bar, max_length)
                finite = np.isfinite(found).all(axis=1)
                if not finite.all():
                    row = first + int(finite.argmin())
                    raise ValueError(
                        f"The vector of row {row} holds NaN or infinity; its text begins "
                        f"{read(row, row + 1)[0][:80]!r}. Check the weights in {self.folder}: "
                        "training may have diverged."
                    )
                vectors[first : first + len(window)] = found
        return vectors

    def _windows(
        self, read: _Read, n_texts: int, max_length: int
    ) -> Iterator[tuple[int, TokenizedTexts]]:
        """Yield each window's first row and its tokens; the next one is prepared in a thread."""

        def tokenize(first: int) -> TokenizedTexts:
            return self._tokenize(read(first, min(first + WINDOW, n_texts)), first, max_length)

        firsts = range(0, n_texts, WINDOW)
        with ThreadPoolExecutor(max_workers=1) as reader:
            coming = [reader.submit(tokenize, first) for first in firsts[:1]]
            for first, following in zip_longest(firsts, firsts[1:]):
                window = coming.pop().result()
                if following is not None:
                    coming.append(reader.submit(tokenize, following))
                yield first, window

    def _tokenize(self, texts: list[str], first: int, max_length: int) -> TokenizedTexts:
        """Tokenize and check a window that begins with row `first`."""
        try:
            window = tokenize_texts(
                self.model.tokenizer,
                texts,
                max_length=max_length,
                token_type_ids=self.contract.token_type_ids,
            )
        except TypeError as error:
            _explain_surrogates(texts, first, error)
            raise
        empty = np.flatnonzero(window.lengths == 0)
        if len(empty):
            raise ValueError(
                f"Row {first + empty[0]} has no tokens: its text is empty, and the tokenizer of "
                f"{self.folder} adds no special tokens. Leave the row out."
            )
        transformer: Any = self.model[0]
        n_embeddings = transformer.model.get_input_embeddings().num_embeddings
        if len(window.ids) and (largest := int(window.ids.max())) >= n_embeddings:
            raise ValueError(
                f"A text has the token {largest}, but the encoder has only {n_embeddings} token "
                f"embeddings: tokenizer and encoder in {self.folder} do not belong together."
            )
        return window

    @torch.inference_mode()
    def _encode_window(
        self, window: TokenizedTexts, extra: Mapping[str, int], bar: tqdm, max_length: int
    ) -> np.ndarray:
        is_cuda = self.model.device.type == "cuda"
        parts = []
        for rows, batch in self._batches(window, max_length):
            part = self._run(batch, extra)[: len(rows)]
            # The copy does not block, so that the next batch is prepared meanwhile.
            parts.append((rows, part.to("cpu", non_blocking=is_cuda)))
            bar.update(len(rows))
        if is_cuda:
            torch.cuda.synchronize(self.model.device)
        vectors = np.empty((len(window), self.dimension), dtype=np.float32)
        for rows, part in parts:
            vectors[rows] = part.numpy()
        return vectors

    def _batches(
        self, window: TokenizedTexts, max_length: int
    ) -> Iterator[tuple[np.ndarray, Mapping[str, Any]]]:
        """The rows of each batch and its model inputs, which can hold more rows at the end."""
        tokenizer, token_budget = self.model.tokenizer, self.token_budget
        if self._is_packed:
            return packed_batches(window, tokenizer=tokenizer, token_budget=token_budget)
        # With bfloat16 on a CPU every new shape costs time and memory.
        few_shapes = self.dtype == "bfloat16" and self.model.device.type == "cpu"
        return padded_batches(
            window,
            tokenizer=tokenizer,
            token_budget=token_budget,
            max_length=max_length,
            multiple=LENGTH_MULTIPLE if few_shapes else 1,
        )

    def _run(self, batch: Mapping[str, Any], extra: Mapping[str, int]) -> torch.Tensor:
        """Vectors of one batch, (B, D) float32."""
        device = self.model.device
        is_cuda = device.type == "cuda"

        def move(column: Any) -> Any:
            if not isinstance(column, torch.Tensor):
                return column
            return (column.pin_memory() if is_cuda else column).to(device, non_blocking=is_cuda)

        features = {**extra, **{name: move(column) for name, column in batch.items()}}
        try:
            vectors = self.model(features)["sentence_embedding"].float()  # (B, D)
        except torch.OutOfMemoryError as error:
            raise MemoryError(
                f"A batch of {batch['input_ids'].numel()} tokens does not fit into the memory of "
                f"{device}: open the retriever with a token_budget below {self.token_budget}."
            ) from error
        vectors = vectors[:, : self.dimension]
        # A final Normalize is exact in float32 only, and not after truncation.
        is_normal = isinstance(self.model[-1], Normalize) and self.model.truncate_dim is None
        if self.contract.similarity == "cosine" and not (is_normal and self.dtype == FLOAT32):
            vectors = F.normalize(vectors, dim=1)
        return vectors


def _list_texts(texts: Sequence[str]) -> list[str]:
    if isinstance(texts, str):
        raise ValueError(f"Got one string, {texts[:80]!r}; expected a list of texts: [text].")
    listed = list(texts)
    _check_strings(listed, 0)
    return listed


def _check_strings(texts: Sequence[object], first: int) -> None:
    for row, text in enumerate(texts, start=first):
        if not isinstance(text, str):
            raise ValueError(f"Row {row} is {text!r}, expected a text: use an empty one for none.")


def _explain_surrogates(texts: Sequence[str], first: int, cause: TypeError) -> None:
    """Name the text with a lone surrogate, for which tokenizers raises an unspecific TypeError."""
    for row, text in enumerate(texts, start=first):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"Row {row} holds the lone surrogate {text[error.start]!r} at position "
                f"{error.start}: remove it with "
                'text.encode(errors="ignore").decode().'
            ) from cause
