"""Read a part of a stream: cut its documents into blocks, and shuffle these in windows.

A window holds the blocks of some consecutive documents. A checkpoint stores where the present
window of each lane begins; the window is cut and shuffled again when a run is resumed.
"""

import logging
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from datasets import IterableDataset

from modeling_condenser.files.models import warn_of_unknown

from .data import BlockBuilder
from .rows import parts_of_stream

logger = logging.getLogger(__name__)

_READ = 16  # documents that are read and cut together


class Place(NamedTuple):
    """Where a window of a lane begins.

    Attributes:
        epoch: how often the lane's documents were read before.
        n_documents: documents of the lane before it in this epoch.
        state: `IterableDataset.state_dict()` there; None at the beginning of an epoch, and where
            it is not exact: then as many documents are read and left out.
        window: windows before it.
        n_blocks: blocks before it.
        batch: of the lane, in which the block before it stands.
        filled: blocks or tokens of this batch before it.
    """

    epoch: int = 0
    n_documents: int = 0
    state: dict[str, Any] | None = None
    window: int = 0
    n_blocks: int = 0
    batch: int = 0
    filled: int = 0


Columns = tuple[np.ndarray, ...]
"""The ids of a block; of a text of which a pair is made, also where its parts begin."""

Cut = tuple[list[Columns], Place]
"""Blocks of consecutive documents, and where the next documents begin."""


class Block(NamedTuple):
    """A block of a lane, its number there, and the place of its window."""

    number: int
    columns: Columns
    place: Place


class _Window:
    """Blocks that are shuffled together: of some documents, and never of two epochs."""

    def __init__(self, place: Place, cuts: Iterator[Cut], size: int):
        self.place, self._cuts, self._size = place, cuts, size
        self.blocks: list[Columns] = []
        self._end = place  # of the documents that were read

    def fill(self, least: int) -> None:
        """Read documents until there are `least` blocks, or the window is complete."""
        while len(self.blocks) < min(least, self._size) and not self._ends_epoch:
            blocks, self._end = next(self._cuts)
            self.blocks += blocks

    @property
    def _ends_epoch(self) -> bool:
        return bool(self.blocks) and self._end.epoch > self.place.epoch

    @property
    def next_place(self) -> Place:
        """Where the next window begins, once this one is complete, but not in which batch."""
        n_blocks = self.place.n_blocks + len(self.blocks)
        return self._end._replace(window=self.place.window + 1, n_blocks=n_blocks)


@dataclass(frozen=True)
class Lane:
    """The shuffled blocks of a part of the documents, again and again.

    Attributes:
        documents: of this lane, with the columns that the builder reads.
        builder: cuts documents.
        number, n_lanes: of this lane, and of all.
        window: blocks that are shuffled together.
        capacity: blocks of this lane in a batch; tokens at most, with special ones, if they are
            counted.
        least: tokens that a block counts as at least; 0 if blocks are counted.
        seed: of the order.
    """

    documents: IterableDataset
    builder: BlockBuilder
    _: KW_ONLY
    number: int
    n_lanes: int
    window: int
    capacity: int
    least: int
    seed: int

    def read(self, place: Place, first: int) -> Iterator[list[Block]]:
        """The blocks of each batch from the `first` on.

        `place` is that of the window in which batch `first` begins, or of an earlier window.
        """
        cuts = self._cut(place)
        window = _Window(place, cuts, self.window)
        window.fill(self.window)
        blocks: list[Block] = []
        batch, filled = place.batch, place.filled
        while True:
            key = [self.seed, self.number, window.place.window]
            order = np.random.default_rng(key).permutation(len(window.blocks))
            following = _Window(window.next_place, cuts, self.window)
            for n_read, i in enumerate(order.tolist()):
                size = self._size(window.blocks[i])
                if filled + size > self.capacity:
                    if batch >= first:
                        yield blocks
                    blocks, batch, filled = [], batch + 1, 0
                number = window.place.n_blocks + n_read
                blocks.append(Block(number, window.blocks[i], window.place))
                filled += size
                # The next window fills as this one empties, so that no batch waits for all of it.
                following.fill(n_read + 1)
            following.fill(self.window)
            if self.number == 0 and following.place.epoch > window.place.epoch:
                logger.warning(
                    "The first of %d lanes has reached the end of its documents (time %d), and "
                    "begins them again until max_steps.",
                    *(self.n_lanes, following.place.epoch),
                )
            window = following
            window.place = window.place._replace(batch=batch, filled=filled)

    def _size(self, columns: Columns) -> int:
        """What a block takes of the capacity."""
        if not self.least:
            return 1
        n_special = self.builder.max_length - self.builder.text_length
        return max(len(columns[0]) + n_special, self.least)

    def _cut(self, place: Place) -> Iterator[Cut]:
        """Cut the documents from a place on, a few at a time, epoch after epoch."""
        epoch, n_read, state = place.epoch, place.n_documents, place.state
        # Buffers of `shuffle` are not in the state.
        kinds = {type(part).__name__ for part in parts_of_stream(self.documents._ex_iterable)}
        has_exact_state = "BufferShuffledExamplesIterable" not in kinds
        while True:
            is_whole, n_blocks = n_read == 0, 0
            documents = self.documents
            documents.set_epoch(epoch)
            if state is not None:
                documents.load_state_dict(state)
            n_skipped = 0 if state is not None else -(-n_read // _READ)  # the last may be short
            for batch in islice(documents.iter(batch_size=_READ), n_skipped, None):
                n_rows = len(next(iter(batch.values())))
                numbers = np.arange(n_read, n_read + n_rows) * self.n_lanes + self.number
                n_read += n_rows
                columns = self.builder.cut(batch, numbers.tolist())
                columns.pop("document", None)
                blocks = [*zip(*columns.values(), strict=True)]
                n_blocks += len(blocks)
                if blocks and self.number == epoch == 0 and n_read == n_rows:  # the first ones
                    self._check_tokenizer(np.concatenate([ids for ids, *_ in blocks]), n_rows)
                state = documents.state_dict() if has_exact_state else None
                yield blocks, Place(epoch, n_read, state)
            if is_whole and n_blocks == 0:
                raise ValueError(self._explain_nothing(n_read))
            epoch, n_read, state = epoch + 1, 0, None
            yield [], Place(epoch)

    def _check_tokenizer(self, ids: np.ndarray, n_texts: int) -> None:
        tokenizer: Any = self.builder.tokenizer
        n_unknown = int(np.sum(ids == tokenizer.unk_token_id))
        warn_of_unknown(tokenizer, n_unknown=n_unknown, n_tokens=len(ids), n_texts=n_texts)

    def _explain_nothing(self, n_read: int) -> str:
        unit = "text that can be cut in two to make a pair" if self.builder.for_pairs else "text"
        return (
            f"Lane {self.number + 1} of {self.n_lanes} has read {n_read} documents, and none has "
            f"{unit}: give more documents, lower stream_lanes, remove empty files (a lane reads "
            "whole files where it can), or make the stream of a function that can be called again."
        )
