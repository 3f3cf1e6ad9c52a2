"""Score pairs of a query and a passage with a cross-encoder.

Its scores find the false negatives among mined ones (RocketQA, Qu et al. 2020), and distillation
learns from them. A score is always the log-odds of "relevant": the one logit of a model with one
label, the second minus the first of a model with two. Saved cross-encoders differ in the function
that they apply to it, and a threshold would mean something else for each.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import CrossEncoder

from modeling_condenser.encoding.fingerprints import encoding_files, fingerprint_files
from modeling_condenser.hub.model_folder import CONFIG_FILE, MODULES_FILE, find_model_folder


class RelevanceScorer:
    """A cross-encoder.

    Args:
        model: folder or Hub name of a sentence-transformers cross-encoder, or of a transformers
            model for sequence classification with one label (relevant) or two (not, and yes).
        max_length: maximum tokens of a pair; the model's own by default.
        batch_size: number of pairs to score at once.
        device: such as "cuda:0"; by default the first accelerator, or CPU.
        progress: whether to show a bar.

    Attributes:
        fingerprint: identifies the content of its files.

    Raises:
        FileNotFoundError: there is no such model.
        ValueError: it is not a cross-encoder.
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
                f"{folder} contains neither {CONFIG_FILE} nor {MODULES_FILE}: name the folder of a "
                "cross-encoder."
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
        """Refuse a transformers model without a head, to which the library gives a random one."""
        architectures = self._model[0].model.config.architectures or []
        if not any("SequenceClassification" in name for name in architectures):
            raise ValueError(
                f"{self.name} is a {', '.join(architectures) or 'model of unknown type'} and has "
                "no trained head to score with: name a cross-encoder, such as "
                "cross-encoder/ms-marco-MiniLM-L6-v2."
            )

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """The log-odds that passages are relevant: (N,) float64 for N texts of query and passage.

        Raises:
            ValueError: a score is not finite.
        """
        if not pairs:
            return np.empty(0)
        logits: Any = self._model.predict(
            list(pairs),
            batch_size=self._batch_size,
            activation_fn=torch.nn.Identity(),
            show_progress_bar=self._progress,
        )
        scores = logits.astype(np.float64)  # (N,) or (N, 2)
        if scores.ndim == 2:
            scores = scores[:, 1] - scores[:, 0]
        wrong = np.flatnonzero(~np.isfinite(scores))
        if len(wrong):
            query, passage = pairs[int(wrong[0])]
            raise ValueError(
                f"{self.name} gives no finite score for query {query[:60]!r} and passage "
                f"{passage[:60]!r}: its weights are damaged, or overflow in half precision."
            )
        return scores

    @staticmethod
    def probability(score: float) -> float:
        """The probability, from 0 to 1, that a score means."""
        # Written with tanh, the logistic function does not overflow.
        return 0.5 * (1.0 + math.tanh(score / 2.0))
