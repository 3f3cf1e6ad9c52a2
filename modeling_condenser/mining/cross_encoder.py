"""Score pairs of a query and a passage with a cross-encoder.

Its scores find the false negatives among mined ones (RocketQA, Qu et al. 2020), and distillation
learns from them. A score is the log-odds of "relevant", without the function that a saved
cross-encoder applies to it, so that a threshold means the same for all of them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import CrossEncoder

from modeling_condenser.hub.model_folder import find_model_folder


class RelevanceScorer:
    """A cross-encoder.

    Args:
        model: folder or Hub name of a sentence-transformers cross-encoder, or of a transformers
            model for sequence classification with one label (relevant) or two (not, and yes).
        max_length: maximum tokens of a pair; the model's own by default.
        batch_size: number of pairs to score at once.
        device: such as "cuda:0"; by default the first accelerator, or CPU.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        max_length: int | None = None,
        batch_size: int = 64,
        device: str | None = None,
    ) -> None:
        folder, self._batch_size = find_model_folder(model), batch_size
        self._model = CrossEncoder(str(folder), max_length=max_length, device=device)
        encoder: Any = self._model[0]
        architectures = encoder.model.config.architectures or []
        # transformers gives a model without a trained head a random one.
        has_head = any("SequenceClassification" in name for name in architectures)
        if not has_head or self._model.num_labels not in (1, 2):
            raise ValueError(
                f"{model} ({', '.join(architectures)}, {self._model.num_labels} labels) is not a "
                "cross-encoder with 1 or 2 labels, such as cross-encoder/ms-marco-MiniLM-L6-v2."
            )

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """The log-odds that passages are relevant, (N,) float64, for texts of query and passage."""
        if not pairs:
            return np.empty(0)
        settings = {"activation_fn": torch.nn.Identity(), "show_progress_bar": False}
        logits: Any = self._model.predict(list(pairs), batch_size=self._batch_size, **settings)
        scores = logits.astype(np.float64)  # (N,) or (N, 2)
        return scores[:, 1] - scores[:, 0] if scores.ndim == 2 else scores
