"""What a batch reads: stored examples in; texts out, with negatives drawn for the epoch.

A row may hold far more negatives than a batch has room for. Which ones it takes depends on the
run's seed, the epoch and the row's number alone, so that workers, batch sizes and restarts cannot
change it. Examples of a collection hold rows of passages, whose texts are looked up only now.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from modeling_condenser.examples.passage_rows import PassageTexts
from modeling_condenser.examples.stored_examples import ROW_NUMBER
from modeling_condenser.pretraining.counter_random import random_keys, uniforms

from .lengths import LABEL


class DrawnExamples:
    """Turns stored rows into the columns that a loss reads; a transform of a `datasets.Dataset`.

    Args:
        n_negatives: how many to draw for each row; a row with fewer gives some of them again.
        seed: of the draws.
        texts: of passages, where examples hold rows of them.

    Attributes:
        epoch: shared with the data loader's worker processes.
    """

    def __init__(self, *, n_negatives: int, seed: int, texts: PassageTexts | None = None):
        self.n_negatives = n_negatives
        self.seed = seed
        self.texts = texts
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    @property
    def epoch(self) -> int:
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Draw other negatives from now on."""
        self._epoch.fill_(epoch)

    def __call__(self, rows: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        """The columns `query`, `positive`, `negative_1`, ..., and `label` where a teacher scored.

        Args:
            rows: B rows of stored examples, with their numbers in `ROW_NUMBER`.
        """
        columns: dict[str, list[Any]] = {"query": rows["query"]}
        pools = rows.get("negatives") or rows.get("negative_rows") or [[]] * len(rows["query"])
        places = [
            self._draw(len(pool), number)
            for pool, number in zip(pools, rows[ROW_NUMBER], strict=True)
        ]
        drawn = [[pool[i] for i in chosen] for pool, chosen in zip(pools, places, strict=True)]
        if self.texts is None:
            columns["positive"] = rows["positive"]
        else:
            columns["positive"], drawn = self._look_up(rows["positive_row"], drawn)
        for n in range(self.n_negatives):
            columns[f"negative_{n + 1}"] = [negatives[n] for negatives in drawn]
        if "teacher_scores" in rows:
            columns[LABEL] = [
                [scores[0], *(scores[1 + i] for i in chosen)]
                for scores, chosen in zip(rows["teacher_scores"], places, strict=True)
            ]
        return columns

    def _draw(self, n: int, number: int) -> list[int]:
        """Places of the negatives to take of a row's n: all different ones, as far as there are."""
        if self.n_negatives == 0:
            return []
        draws = uniforms(random_keys(self.seed, self.epoch, number), n)[0]
        order = np.argsort(draws, kind="stable").tolist()
        if n >= self.n_negatives:
            return sorted(order[: self.n_negatives])
        return [order[i % n] for i in range(self.n_negatives)]

    def _look_up(
        self, positives: Sequence[int], negatives: Sequence[Sequence[int]]
    ) -> tuple[list[str], list[list[str]]]:
        assert self.texts is not None
        found = iter(self.texts([*positives, *(row for pool in negatives for row in pool)]))
        first = [next(found) for _ in positives]
        return first, [[next(found) for _ in pool] for pool in negatives]
