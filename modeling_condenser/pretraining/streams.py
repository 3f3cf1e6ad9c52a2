"""Make batches of a stream: documents that are cut, shuffled and masked as they are read.

A stream is read in lanes: independent parts, each with a share of the documents and a shuffle
buffer of its own. Every batch over all processes takes equally many blocks, or tokens, from each
lane. So the batches depend on the number of lanes, but not on that of the processes, each of which
tokenizes only the documents of its own lanes. The keys of masks are hashes of seed, lane and block.

A lane shuffles windows, the blocks of some consecutive documents. A checkpoint stores where the
present window of each lane begins; the window is cut and shuffled again when a run is resumed.
"""

import json
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import fsspec.asyn
import numpy as np
import torch
from datasets import IterableDataset
from datasets.distributed import split_dataset_by_node

from modeling_condenser.packing import BatchShape

from .batches import make_shape
from .counter_random import random_keys
from .data import BlockBuilder, MakePair, keyed_examples

logger = logging.getLogger(__name__)

PLACES = "stream_places"  # of a batch: lane -> `Place` of a window that begins in this batch
_MANY_SHARDS = 4  # for each lane
# Of a token budget: a lane's part should hold as many long blocks, and a block counts at least as
# this part of the longest, so that the number of blocks is bounded.
_BLOCKS_A_LANE, _SHORTEST = 8, 8
_READ = 16  # documents that are read and cut together
_FILE = "stream-{}.json"  # in a checkpoint, of each process


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


class _Block(NamedTuple):
    """A block of a lane, its number there, and the place of its window."""

    number: int
    columns: Columns
    place: Place


class _Cut(NamedTuple):
    """Blocks of consecutive documents, and where the next documents begin."""

    blocks: list[Columns]
    epoch: int
    n_documents: int
    state: dict[str, Any] | None


class _Window:
    """Blocks that are shuffled together: of some documents, and never of two epochs.

    Copies are left out if they are `distinct`: in a contrast, a text would be its own negative.
    """

    def __init__(self, place: Place, cuts: Iterator[_Cut], size: int, *, distinct: bool):
        self.place, self._cuts, self._size, self._distinct = place, cuts, size, distinct
        self._seen: set[bytes] = set()
        self.blocks: list[Columns] = []
        self._last: _Cut | None = None

    def fill(self, least: int) -> None:
        """Read documents until there are `least` blocks, or the window is complete."""
        while len(self.blocks) < min(least, self._size) and not self._ends_epoch:
            self._last = next(self._cuts)
            self.blocks += filter(self._is_new, self._last.blocks)

    def _is_new(self, columns: Columns) -> bool:
        if not self._distinct:
            return True
        n_seen = len(self._seen)
        self._seen.add(columns[0].tobytes())
        return len(self._seen) > n_seen

    @property
    def _ends_epoch(self) -> bool:
        return bool(self.blocks) and self._last is not None and self._last.epoch > self.place.epoch

    @property
    def next_place(self) -> Place:
        """Where the next window begins, once this one is complete, but not in which batch."""
        assert self._last is not None
        _, epoch, n_documents, state = self._last
        n_blocks = self.place.n_blocks + len(self.blocks)
        return Place(epoch, n_documents, state, self.place.window + 1, n_blocks)


@dataclass(frozen=True)
class Lane:
    """The shuffled blocks of a part of the documents, again and again.

    Attributes:
        documents: of this lane, with the columns that the builder reads.
        builder: cuts documents; blocks of fewer than `n_parts` parts are left out.
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
    n_parts: int
    seed: int

    def read(self, place: Place, first: int) -> Iterator[list[_Block]]:
        """The blocks of each batch from the `first` on.

        `place` is that of the window in which batch `first` begins, or of an earlier window.
        """
        cuts = self._cut(place)
        open_window = partial(_Window, cuts=cuts, size=self.window, distinct=self.n_parts > 1)
        window = open_window(place)
        window.fill(self.window)
        blocks: list[_Block] = []
        batch, filled = place.batch, place.filled
        while True:
            key = [self.seed, self.number, window.place.window]
            order = np.random.default_rng(key).permutation(len(window.blocks))
            following = open_window(window.next_place)
            for n_read, i in enumerate(order.tolist()):
                size = self._size(window.blocks[i])
                if filled + size > self.capacity:
                    if batch >= first:
                        yield blocks
                    blocks, batch, filled = [], batch + 1, 0
                number = window.place.n_blocks + n_read
                blocks.append(_Block(number, window.blocks[i], window.place))
                filled += size
                # The next window fills as this one empties, so that no batch waits for all of it.
                following.fill(n_read + 1)
            following.fill(self.window)
            window = following
            window.place = window.place._replace(batch=batch, filled=filled)

    def _size(self, columns: Columns) -> int:
        """What a block takes of the capacity."""
        if not self.least:
            return 1
        n_special = self.builder.max_length - self.builder.text_length
        return max(len(columns[0]) + n_special, self.least)

    def _cut(self, place: Place) -> Iterator[_Cut]:
        """Cut the documents from a place on, a few at a time, epoch after epoch."""
        epoch, n_read, state = place.epoch, place.n_documents, place.state
        can_resume = _has_exact_state(self.documents._ex_iterable)
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
                blocks = self._keep(self.builder.cut(batch, numbers.tolist()))
                n_blocks += len(blocks)
                yield _Cut(blocks, epoch, n_read, documents.state_dict() if can_resume else None)
            if is_whole and n_blocks == 0:
                raise ValueError(self._explain_nothing(epoch, n_read))
            if self.number == 0:
                logger.warning(
                    "The first of %d lanes has read its %d documents %d times, and reads them "
                    "again until max_steps.",
                    *(self.n_lanes, n_read, epoch + 1),
                )
            epoch, n_read, state = epoch + 1, 0, None
            yield _Cut([], epoch, n_read, state)

    def _keep(self, columns: Mapping[str, list]) -> list[Columns]:
        if "part_starts" not in columns:
            return [(ids,) for ids in columns["input_ids"]]
        rows = zip(columns["input_ids"], columns["part_starts"], strict=True)
        return [(ids, starts) for ids, starts in rows if len(starts) >= self.n_parts]

    def _explain_nothing(self, epoch: int, n_read: int) -> str:
        if epoch and not n_read:
            return (
                "The stream has ended before max_steps and cannot be read a second time: lower "
                "max_steps, or make it of a function, as by IterableDataset.from_generator."
            )
        unit = "text" if self.n_parts == 1 else "text that can be cut in two to make a pair"
        return (
            f"Lane {self.number + 1} of {self.n_lanes} has {n_read} documents, and none has "
            f"{unit}: give more documents, lower stream_lanes, or remove empty files (where their "
            "number is a multiple of the lanes, a lane reads whole files)."
        )


class BlockStream(torch.utils.data.IterableDataset):
    """The batches of one process, each a list of examples; for a `DataLoader` without batch size.

    Args:
        documents: the whole stream, the same in all processes.
        builder: cuts documents into blocks, or into texts of which pairs are made.
        batch_size: blocks or pairs of a process in a batch.
        tokens_per_batch: tokens at most of a process in a batch, instead.
        n_accumulated: batches that make a step.
        rank, n_processes: of this process, and of all.
        n_workers: of the loader in each process; others would change the order of the blocks.
        most_lanes: the stream is read in as many lanes for each worker, or in the largest common
            divisor of this and the batch over all processes; by tokens, in half or a quarter of
            them and so on, if a batch would have few blocks of a lane.
        buffer: blocks in the windows of all lanes together.
        make_pair: makes a pair of a text; a block is an example without it.

    Attributes:
        places: lane -> where its present window begins; filled by the trainer.

    Raises:
        ValueError: processes and accumulated batches do not divide the lanes.
    """

    def __init__(
        self,
        documents: IterableDataset,
        builder: BlockBuilder,
        *,
        batch_size: int = 1,
        tokens_per_batch: int | None = None,
        n_accumulated: int = 1,
        rank: int = 0,
        n_processes: int = 1,
        n_workers: int = 0,
        most_lanes: int = 16,
        buffer: int = 8192,
        seed: int = 0,
        make_pair: MakePair | None = None,
    ):
        n_shares, longest = n_accumulated * n_processes, builder.max_length
        total = (tokens_per_batch or batch_size) * n_shares
        if tokens_per_batch is None:
            self.lanes_a_step = math.gcd(total, most_lanes)
        else:
            self.lanes_a_step = _choose_lanes(total, n_shares, most_lanes, longest)
        if self.lanes_a_step % n_shares:
            raise ValueError(
                f"The stream has {self.lanes_a_step} lanes for a batch over all processes of "
                f"{total} (stream_lanes is {most_lanes}). {n_processes} processes x "
                f"{n_accumulated} accumulated batches do not divide them: set stream_lanes to a "
                f"multiple of {n_shares}."
            )
        self.documents, self.builder = documents, builder
        self.n_accumulated, self.rank, self.n_processes = n_accumulated, rank, n_processes
        self.n_workers = max(n_workers, 1)
        self.n_lanes = self.lanes_a_step * self.n_workers
        self.capacity = total // self.lanes_a_step  # of a lane in each step: blocks or tokens
        self.tokens_per_batch = tokens_per_batch
        self.least = 0 if tokens_per_batch is None else max(longest // _SHORTEST, 1)
        if self.least and self.capacity < longest:
            raise ValueError(
                f"tokens_per_batch is {tokens_per_batch}, of which each of the "
                f"{self.lanes_a_step // n_shares} lanes of a batch has {self.capacity} tokens, but "
                f"a block may have {longest}: raise it, or lower stream_lanes."
            )
        self.window = max(buffer // self.n_lanes, 1)
        self.seed, self.make_pair = seed, make_pair
        self.n_steps = 0  # that a resumed training has done
        self.places: dict[int, Place] = {}
        self._is_uneven = False  # and a warning said so

    def __iter__(self) -> Iterator[list[dict[str, Any]] | None]:
        worker = torch.utils.data.get_worker_info()
        if worker is not None:
            fsspec.asyn.reset_lock()  # else a file system that was used before the fork may hang
        first = 0 if worker is None else worker.id
        open_lanes: dict[int, Iterator[list[_Block]]] = {}
        places: dict[int, Place] = {}
        for number in count(first, self.n_workers):
            step, part = divmod(number, self.n_accumulated)
            if step < self.n_steps:
                yield None  # The Trainer skips as many batches when it resumes.
                continue
            examples: list[dict[str, Any]] = []
            for lane in self._lanes_of(step, part):
                if lane not in open_lanes:
                    open_lanes[lane] = self._open(lane)
                for block in next(open_lanes[lane]):
                    of_block = self._examples(lane, block)
                    if places.get(lane) != block.place:
                        places[lane] = block.place
                        self._warn_of_uneven(places)
                        of_block[0] |= {PLACES: (lane, block.place)}
                    examples += of_block
            yield examples

    def _warn_of_uneven(self, places: Mapping[int, Place]) -> None:
        """Warn once if some documents are read far more often than others."""
        epochs = {lane: place.epoch for lane, place in places.items()}
        most = max(epochs, key=epochs.__getitem__)
        if not self._is_uneven and epochs[most] > min(epochs.values()) + 1:
            self._is_uneven = True
            logger.warning(
                "Lane %d of %d has read all of its documents %d times, and another lane %d times: "
                "make the files of the stream equally large.",
                *(most + 1, self.n_lanes, epochs[most], min(epochs.values())),
            )

    def _lanes_of(self, step: int, part: int) -> range:
        """The lanes of this process's batch in a step. Each lane is read by one worker only."""
        n_shares = self.n_accumulated * self.n_processes
        size = self.lanes_a_step // n_shares
        first = (step % self.n_workers) * self.lanes_a_step
        first += (part * self.n_processes + self.rank) * size
        return range(first, first + size)

    def shape(self, masked_shares: Mapping[str, float]) -> BatchShape | None:
        """The shape of all packed batches, if they have a token budget (`make_shape`)."""
        if self.tokens_per_batch is None:
            return None
        n_lanes = self.lanes_a_step // (self.n_accumulated * self.n_processes)
        most_blocks = n_lanes * (self.capacity // self.least)
        return make_shape(
            self.tokens_per_batch, most_blocks, self.builder.max_length, masked_shares
        )

    def _open(self, number: int) -> Iterator[list[_Block]]:
        documents = self.documents
        n_shards = documents.num_shards
        # Unless shards divide evenly, or nearly, lanes with few of them would be read more often.
        if n_shards % self.n_lanes == 0 or n_shards >= _MANY_SHARDS * self.n_lanes:
            documents = documents.shard(self.n_lanes, number, contiguous=False)
        else:
            # Splitting alone would share the state of the parts that the stream is made of.
            documents = documents.shard(1, 0)
            documents = split_dataset_by_node(documents, rank=number, world_size=self.n_lanes)
        lane = Lane(
            documents,
            self.builder,
            number=number,
            n_lanes=self.n_lanes,
            window=self.window,
            capacity=self.capacity,
            least=self.least,
            n_parts=1 if self.make_pair is None else 2,
            seed=self.seed,
        )
        phase = number // self.lanes_a_step
        n_steps = len(range(phase, self.n_steps, self.n_workers))  # that read this lane
        return lane.read(self.places.get(number, Place()), n_steps)

    def _examples(self, lane: int, block: _Block) -> list[dict[str, Any]]:
        keys = random_keys(self.seed, lane, block.number)
        return keyed_examples(
            *([column] for column in block.columns), keys=keys, make_pair=self.make_pair
        )

    @property
    def _shape(self) -> dict[str, int]:
        """What the order of the blocks depends on, beside the documents and the seed."""
        unit = "tokens" if self.least else "blocks"
        names = {"lanes": self.n_lanes, f"{unit} of a lane in a step": self.capacity}
        return {**names, "blocks that are shuffled together": self.window}

    def save(self, folder: Path) -> None:
        """Write the places of this process's lanes to a checkpoint."""
        state = {**self._shape, "places": self.places}
        (folder / _FILE.format(self.rank)).write_text(json.dumps(state))

    def load(self, folder: Path | None, n_steps: int) -> None:
        """Begin, or continue after the steps of a checkpoint of any number of processes.

        Raises:
            ValueError: the checkpoint holds no places, or those of a stream that is read otherwise.
        """
        self.n_steps, self.places = n_steps, {}
        if folder is None:
            return
        for file in folder.glob(_FILE.format("*")):
            state = json.loads(file.read_text())
            places = state.pop("places")
            if state != self._shape:
                raise ValueError(
                    f"{folder} is of a stream with {_describe(state)}, but now it has "
                    f"{_describe(self._shape)}: set the batch over all processes, stream_lanes, "
                    "stream_buffer and dataloader_num_workers as for that run."
                )
            for lane, place in places.items():
                self.places[int(lane)] = Place(*place)
        if n_steps and not self.places:
            raise ValueError(f"{folder} holds no places in the stream: start again.")


@dataclass(frozen=True)
class StreamCollator:
    """Makes a batch of the examples of a `BlockStream`, with the windows that begin in it."""

    collator: Any

    def __call__(self, examples: list[dict[str, Any]] | None) -> dict[str, Any]:
        if examples is None:
            return {}
        places = dict(example[PLACES] for example in examples if PLACES in example)
        return {**self.collator(examples), PLACES: places}


def _choose_lanes(total: int, n_shares: int, most_lanes: int, longest: int) -> int:
    """Lanes that a budget of `total` tokens can fill well, of `stream_lanes` halved repeatedly."""
    n_lanes = most_lanes
    while total < _BLOCKS_A_LANE * longest * n_lanes and n_lanes % (2 * n_shares) == 0:
        n_lanes //= 2
    return n_lanes


def _describe(shape: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in shape.items())


def _has_exact_state(part: Any) -> bool:
    """Whether `state_dict` is all of a stream's state: buffers of `shuffle` are not in it."""
    if type(part).__name__ == "BufferShuffledExamplesIterable":
        return False
    inner = [getattr(part, "ex_iterable", None), *getattr(part, "ex_iterables", [])]
    return all(_has_exact_state(each) for each in inner if each is not None)
