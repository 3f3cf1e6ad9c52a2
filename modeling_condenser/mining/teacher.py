"""The cross-encoder: pairs of query and passage in, how relevant it thinks them out.

It reads both texts at once, so it is slow and right where a retriever is fast and rough: it finds
the false negatives among mined ones (RocketQA, Qu et al. 2020), and its scores are
what distillation learns from.

A score is always the log-odds of "relevant": the one logit of a model with one label, the second
minus the first of a model with two. Saved cross-encoders differ in what they apply to that (some a
sigmoid, some nothing), so a threshold on what they return would mean something else for each.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import CrossEncoder
from tqdm.auto import tqdm

from modeling_condenser.encoding.fingerprints import encoding_files, fingerprint_files
from modeling_condenser.hub.model_folder import CONFIG_FILE, MODULES_FILE, find_model_folder

_PAIRS_A_CALL = 2048  # sorted by length together


class Teacher:
    """A cross-encoder.

    Args:
        model: folder or Hub name of a sentence-transformers cross-encoder, or of a transformers
            model for sequence classification with one label (relevant) or two (not, and yes).
        max_length: longest pair in tokens; the model's own by default. The rest is cut.
        batch_size: pairs at once.
        device: such as "cuda:0"; by default the first accelerator, or CPU.
        progress: whether to show a bar while scoring takes long.

    Attributes:
        fingerprint: of its files.

    Raises:
        FileNotFoundError: there is no such model.
        ValueError: it is no cross-encoder.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        max_length: int | None = None,
        batch_size: int = 64,
        device: str | None = None,
        progress: bool = False,
    ) -> None:
        folder = find_model_folder(model)
        if not any((folder / name).is_file() for name in (CONFIG_FILE, MODULES_FILE)):
            raise ValueError(
                f"{folder} holds neither {CONFIG_FILE} nor {MODULES_FILE}, so it is no model: name "
                "the folder of a cross-encoder."
            )
        self.fingerprint = fingerprint_files(encoding_files(folder))
        self.name = str(model)
        self._batch_size, self._progress = batch_size, progress
        self._model = CrossEncoder(str(folder), max_length=max_length, device=device)
        if len(self._model) == 1:
            self._check_head()
        if self._model.num_labels not in (1, 2):
            raise ValueError(
                f"{model} has {self._model.num_labels} labels, expected one (relevant) or two (not "
                "relevant, relevant): name a cross-encoder trained for relevance."
            )

    def _check_head(self) -> None:
        """A single module is a transformers model, whose head is random if its folder has none."""
        named = self._model[0].model.config.architectures or []
        if not any("SequenceClassification" in name for name in named):
            raise ValueError(
                f"{self.name} is a {', '.join(named) or 'model of unknown kind'}, which has no "
                "trained head to score pairs with: name a cross-encoder, such as "
                "cross-encoder/ms-marco-MiniLM-L6-v2."
            )

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """The log-odds that passages are relevant.

        Args:
            pairs: query and passage, as texts.

        Returns:
            (N,) float64.

        Raises:
            ValueError: a score is not finite.
        """
        scores = np.empty(len(pairs))
        with tqdm(
            total=len(pairs),
            desc="Scoring",
            unit="pair",
            leave=False,
            delay=5,
            disable=not self._progress,
        ) as bar:
            for first in range(0, len(pairs), _PAIRS_A_CALL):
                part = list(pairs[first : first + _PAIRS_A_CALL])
                scores[first : first + len(part)] = self._log_odds(part)
                bar.update(len(part))
        if not np.isfinite(scores).all():
            query, passage = pairs[int(np.flatnonzero(~np.isfinite(scores))[0])]
            raise ValueError(
                f"{self.name} gives no finite score for query {query[:60]!r} and passage "
                f"{passage[:60]!r}: its weights are damaged, or overflow in half precision; load "
                "it in float32."
            )
        return scores

    def _log_odds(self, pairs: list[tuple[str, str]]) -> np.ndarray:
        logits: Any = self._model.predict(
            pairs,
            batch_size=self._batch_size,
            activation_fn=torch.nn.Identity(),
            show_progress_bar=False,
        )
        logits = logits.astype(np.float64)  # (N,) or (N, 2)
        return logits[:, 1] - logits[:, 0] if logits.ndim == 2 else logits

    @staticmethod
    def probability(score: float) -> float:
        """What a score says as a probability, from 0 to 1."""
        # Written with tanh, the logistic function does not overflow.
        return 0.5 * (1.0 + math.tanh(score / 2.0))
