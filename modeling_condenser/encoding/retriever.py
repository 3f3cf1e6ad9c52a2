"""Texts in, vectors out: any bi-encoder, run as its contract says.

A `Retriever` is opened from an export, a sentence-transformers model or a plain encoder with a
stated pooling (`opening.py`). It tokenizes a window of texts at a time, sorts the window by length
and runs it in batches of about equally many tokens, padded (`token_batches.py`) or, in bfloat16,
without padding (`packed_texts.py`), while the next window is being read and tokenized. Only the
output grows with the number of texts.
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

from modeling_condenser.hub.model_folder import find_model_folder
from modeling_condenser.repository.contract import Pooling, Similarity

from .fingerprints import fingerprint_retriever
from .opening import check_length, open_model
from .packed_encoder import use_packing
from .packed_texts import packed_batches
from .precision import (
    FLOAT32,
    LENGTH_MULTIPLE,
    Dtype,
    check_dtype,
    hold_weights,
    wants_few_shapes,
)
from .token_batches import TokenizedTexts, padded_batches, tokenize_texts

WINDOW = 4096  # texts that are sorted by length together
CPU_TOKEN_BUDGET, ACCELERATOR_TOKEN_BUDGET = 2048, 32_768

_Read = Callable[[int, int], list[str]]  # the texts from one row up to another


class Retriever:
    """A bi-encoder: one encoder for queries and passages.

    Args:
        model: folder or Hub name of one of our exports, of a sentence-transformers model, or of a
            plain encoder, for which `pooling` must be stated.
        pooling: how token vectors become one: "cls", "mean" or "max".
        similarity: "dot", "cosine" (vectors get length 1) or "euclidean".
        query_max_length: longest query in tokens.
        passage_max_length: longest passage in tokens.
        title_separator: stands between title and text.
        query_prompt: stands before every query.
        passage_prompt: stands before every passage.
        device: such as "cpu" or "cuda:1"; by default an accelerator, where there is one.
        token_budget: tokens of a batch with its padding; by default one that suits the device.
        dtype: of the weights; with "bfloat16", vectors agree with those of "float32" to about
            three digits. They are float32 numbers either way.

    What is stated goes before what the model's files say. A plain encoder is used with dot
    product, a blank between title and text, no prompts, and the longest texts that tokenizer and
    positions allow, unless otherwise stated.

    Attributes:
        folder: the model's files.
        settings: what was stated; opens the same retriever from `folder` elsewhere.
        contract: how it encodes; see `OpenedModel` for what `pooling` can be beside the three.
        model: its modules.
        dimension: D, numbers in a vector.
        token_budget: tokens of a batch.
        dtype: of the weights.

    Raises:
        FileNotFoundError: there is no such model.
        ValueError: something is neither said nor stated, or does not fit the encoder.
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
        check_dtype(dtype)
        named = {
            "pooling": pooling,
            "similarity": similarity,
            "query_max_length": query_max_length,
            "passage_max_length": passage_max_length,
            "title_separator": title_separator,
            "query_prompt": query_prompt,
            "passage_prompt": passage_prompt,
        }
        stated = {name: value for name, value in named.items() if value is not None}
        self.settings = stated if dtype == FLOAT32 else {**stated, "dtype": dtype}
        opened = open_model(find_model_folder(model), stated, device=device)
        self.folder, self.model, self.contract = opened.folder, opened.model, opened.contract
        self.dtype = dtype
        hold_weights(self.model, dtype)
        # Not in float32, whose bits are those of the evaluation script that travels with exports.
        self._packs = dtype != FLOAT32 and use_packing(self.model)
        dimension: Any = self.model.get_embedding_dimension()
        self.dimension: int = dimension
        is_cpu = self.model.device.type == "cpu"
        default = CPU_TOKEN_BUDGET if is_cpu else ACCELERATOR_TOKEN_BUDGET
        self.token_budget = default if token_budget is None else token_budget

    @cached_property
    def fingerprint(self) -> str:
        """Identifies weights, tokenizer, modules, contract and dtype, wherever the model lies."""
        return fingerprint_retriever(self.folder, self.contract, dtype=self.dtype)

    def encode_queries(self, texts: Sequence[str], *, progress: bool = False) -> np.ndarray:
        """Encode N queries with the query prompt.

        Returns:
            (N, D) float32 vectors, of length 1 where the similarity is cosine.

        Raises:
            ValueError: a text is no text, or its vector is not finite; the message has its row.
        """
        contract, given = self.contract, _listed(texts)
        return self._encode(
            lambda first, last: [contract.query(text) for text in given[first:last]],
            len(given),
            max_length=contract.query_max_length,
            prompt=contract.query_prompt,
            progress=progress,
        )

    def encode_passages(self, passages: Dataset, *, progress: bool = False) -> np.ndarray:
        """Encode N passages with the passage prompt, each behind its title.

        Args:
            passages: columns `title` and `text`; read window by window.
            progress: show a bar.

        Returns:
            (N, D) float32 vectors, of length 1 where the similarity is cosine.

        Raises:
            ValueError: a column is missing, a text is no text, or its vector is not finite.
        """
        missing = {"title", "text"} - set(passages.column_names)
        if missing:
            raise ValueError(
                f"The passages lack the columns {', '.join(sorted(missing))}; expected title and "
                f"text, came {', '.join(passages.column_names)}: rename the columns."
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
        """Encode N texts as they stand, without prompts, such as the two sides of graded pairs.

        Args:
            texts: N texts.
            max_length: longest text in tokens, special ones included; the rest is cut.
            progress: show a bar.

        Returns:
            (N, D) float32 vectors, of length 1 where the similarity is cosine.
        """
        check_length(self.folder, self.model, max_length=max_length)
        given = _listed(texts)
        return self._encode(
            lambda first, last: given[first:last],
            len(given),
            max_length=max_length,
            prompt="",
            progress=progress,
        )

    def _encode(
        self, read: _Read, n_texts: int, *, max_length: int, prompt: str, progress: bool
    ) -> np.ndarray:
        self.model.eval()
        vectors = np.empty((n_texts, self.dimension), dtype=np.float32)
        extra = self._prompt_features(prompt)
        with tqdm(total=n_texts, desc="encode", unit="text", disable=not progress) as bar:
            for first, window in self._windows(read, n_texts, max_length):
                found = self._encode_window(window, extra, bar, max_length)
                finite = np.isfinite(found).all(axis=1)
                if not finite.all():
                    row = first + int(finite.argmin())
                    raise ValueError(
                        f"The vector of row {row} holds NaN or infinity; its text begins "
                        f"{read(row, row + 1)[0][:80]!r}. Expected finite numbers: look at the "
                        f"weights in {self.folder}, whose training may have diverged."
                    )
                vectors[first : first + len(window)] = found
        return vectors

    def _prompt_features(self, prompt: str) -> dict[str, int]:
        """How long the prompt is, for a pooling that leaves it out."""
        if not prompt:
            return {}
        features: Any = self.model.preprocess([""], prompt=prompt)
        return {"prompt_length": features["prompt_length"]}

    def _windows(
        self, read: _Read, n_texts: int, max_length: int
    ) -> Iterator[tuple[int, TokenizedTexts]]:
        """Each window's first row and its tokens, read while the one before is being encoded."""

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
        """The tokens of a window that begins with row `first`, checked."""
        try:
            window = tokenize_texts(
                self.model.tokenizer,
                texts,
                max_length=max_length,
                token_type_ids=self.contract.token_type_ids,
            )
        except TypeError as error:
            _refuse_halves(texts, first, error)
            raise
        empty = np.flatnonzero(window.lengths == 0)
        if len(empty):
            raise ValueError(
                f"Row {first + empty[0]} has no tokens: its text is empty, and the tokenizer of "
                f"{self.folder} adds none of its own. Give it a text, or leave it out."
            )
        transformer: Any = self.model[0]
        n_embedded = transformer.model.get_input_embeddings().num_embeddings
        unknown = np.flatnonzero(window.ids >= n_embedded)
        if len(unknown):
            row = first + int(np.searchsorted(window.starts, unknown[0], side="right")) - 1
            raise ValueError(
                f"Row {row} has the token {window.ids[unknown[0]]}, but the encoder embeds only "
                f"{n_embedded}: tokenizer and encoder in {self.folder} do not belong together."
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
            # The copy back does not wait for the batch, so that the next one can be prepared.
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
        """The rows of each batch, and what the model takes, with what fills it up at its end."""
        tokenizer, token_budget = self.model.tokenizer, self.token_budget
        if self._packs:
            return packed_batches(window, tokenizer=tokenizer, token_budget=token_budget)
        return padded_batches(
            window,
            tokenizer=tokenizer,
            token_budget=token_budget,
            max_length=max_length,
            multiple=LENGTH_MULTIPLE if wants_few_shapes(self.model, self.dtype) else 1,
        )

    def _run(self, batch: Mapping[str, Any], extra: Mapping[str, int]) -> torch.Tensor:
        """Vectors of one batch, (B, D) float32."""
        device = self.model.device
        is_cuda = device.type == "cuda"

        def on_device(column: Any) -> Any:
            if not isinstance(column, torch.Tensor):
                return column
            return (column.pin_memory() if is_cuda else column).to(device, non_blocking=is_cuda)

        features = {**extra, **{name: on_device(column) for name, column in batch.items()}}
        try:
            vectors = self.model(features)["sentence_embedding"].float()  # (B, D)
        except torch.OutOfMemoryError as error:
            raise MemoryError(
                f"A batch of {batch['input_ids'].numel()} tokens does not fit into the memory of "
                f"{device}: open the retriever with a token_budget below {self.token_budget}."
            ) from error
        vectors = vectors[:, : self.dimension]
        if self.contract.similarity == "cosine" and not self._gives_unit_vectors:
            vectors = F.normalize(vectors, dim=1)
        return vectors

    @property
    def _gives_unit_vectors(self) -> bool:
        """Whether they need not be normalised, which bfloat16 does to three digits only."""
        is_normalised = isinstance(self.model[-1], Normalize) and self.model.truncate_dim is None
        return is_normalised and self.dtype == FLOAT32


def _listed(texts: Sequence[str]) -> list[str]:
    """The texts as a list, each of them a string."""
    if isinstance(texts, str):
        raise ValueError(f"Came one string, {texts[:80]!r}; expected a list of texts: [text].")
    listed = list(texts)
    _check_strings(listed, 0)
    return listed


def _check_strings(texts: Sequence[object], first: int) -> None:
    for row, text in enumerate(texts, start=first):
        if not isinstance(text, str):
            raise ValueError(
                f"Row {row} is {text!r}, expected a text: give an empty one, or leave it out."
            )


def _refuse_halves(texts: Sequence[str], first: int, cause: TypeError) -> None:
    """Say which text has halves of surrogate pairs, which tokenizers calls a wrong type."""
    for row, text in enumerate(texts, start=first):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"Row {row} holds {text[error.start]!r}, half of a character, at place "
                f"{error.start}: mend the text, or drop such halves by "
                'text.encode(errors="ignore").decode().'
            ) from cause
