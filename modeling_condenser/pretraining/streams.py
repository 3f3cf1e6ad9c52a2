"""Make batches of a stream: documents that are cut, shuffled and masked as they are read.

A stream is read in lanes: independent parts, each with a share of the documents and a shuffle
buffer of its own. Every batch over all processes takes equally many blocks, or tokens, from each
lane. So the batches depend on the number of lanes, but not on that of the processes, each of which
tokenizes only the documents of its own lanes. The keys of masks are hashes of seed, lane and block.
"""

import json
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import fsspec.asyn
import torch
from datasets import IterableDataset
from datasets.distributed import split_dataset_by_node

from modeling_condenser.packing import BatchShape

from .arguments import CondenserTrainingArguments
from .batches import make_shape
from .counter_random import random_keys
from .data import BlockBuilder, keyed_examples
from .lanes import Block, Lane, Place
from .rows import parts_of_stream

logger = logging.getLogger(__name__)

PLACES = "stream_places"  # of a batch: lane -> `Place` of a window that begins in this batch
_MANY_SHARDS = 4  # for each lane
# Of a token budget: a lane's part should hold as many long blocks, and a block counts at least as
# this part of the longest, so that the number of blocks is bounded.
_BLOCKS_A_LANE, _SHORTEST = 8, 8
_FILE = "stream-{}.json"  # in a checkpoint, of each process


class BlockStream(torch.utils.data.IterableDataset):
    """The batches of one process, each a list of examples; for a `DataLoader` without batch size.

    The stream is read in `stream_lanes` lanes for each worker, or in the largest common divisor of
    this and the batch over all processes; by tokens, in half or a quarter of them and so on, if a
    batch would have few blocks of a lane. Where packed batches have one shape (torch.compile), a
    short block counts as an eighth of the longest, so that their number is bounded.

    Args:
        documents: the whole stream, the same in all processes.
        builder: cuts documents into blocks, or into texts of which pairs are made.
        arguments: of the trainer in this process. Another number of workers would change the order
            of the blocks.

    Attributes:
        places: lane -> where its present window begins; filled by the trainer.

    Raises:
        ValueError: processes and accumulated batches do not divide the lanes, or a lane's part of
            the tokens is shorter than a block.
    """

    def __init__(
        self,
        documents: IterableDataset,
        builder: BlockBuilder,
        arguments: CondenserTrainingArguments,
    ):
        self.documents, self.builder = documents, builder
        self.rank, self.n_processes = arguments.process_index, arguments.world_size
        self.n_accumulated = arguments.gradient_accumulation_steps
        self.tokens_per_batch, most_lanes = arguments.tokens_per_batch, arguments.stream_lanes
        self.of_one_shape, longest = arguments.torch_compile, builder.max_length
        n_shares = self.n_accumulated * self.n_processes
        total = (self.tokens_per_batch or arguments.train_batch_size) * n_shares
        self.lanes_a_step, self.least = math.gcd(total, most_lanes), 0
        if self.tokens_per_batch is not None:
            self.lanes_a_step = _choose_lanes(total, n_shares, most_lanes, longest)
            self.least = max(longest // _SHORTEST, 1) if self.of_one_shape else 1
        if self.lanes_a_step % n_shares:
            raise ValueError(
                f"The stream has {self.lanes_a_step} lanes for a batch over all processes of "
                f"{total} (stream_lanes is {most_lanes}), which processes x "
                "gradient_accumulation_steps do not divide: set stream_lanes to a multiple of "
                f"{n_shares}."
            )
        self.n_workers = max(arguments.dataloader_num_workers, 1)
        self.n_lanes = self.lanes_a_step * self.n_workers
        self.capacity = total // self.lanes_a_step  # of a lane in each step: blocks or tokens
        if self.least and self.capacity < longest:
            raise ValueError(
                f"tokens_per_batch is {self.tokens_per_batch}, of which each of the "
                f"{self.lanes_a_step // n_shares} lanes of a batch has {self.capacity} tokens, but "
                f"a block may have {longest}: raise it, or lower stream_lanes."
            )
        self.window = max(arguments.stream_buffer // self.n_lanes, 1)
        self.seed = arguments.order_seed
        self.n_steps = 0  # that a resumed training has done
        self.places: dict[int, Place] = {}

    def __iter__(self) -> Iterator[list[dict[str, Any]] | None]:
        worker = torch.utils.data.get_worker_info()
        if worker is not None:
            fsspec.asyn.reset_lock()  # else a file system that was used before the fork may hang
        first = 0 if worker is None else worker.id
        open_lanes: dict[int, Iterator[list[Block]]] = {}
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
                        of_block[0] |= {PLACES: (lane, block.place)}
                    examples += of_block
            yield examples

    def _lanes_of(self, step: int, part: int) -> range:
        """The lanes of this process's batch in a step. Each lane is read by one worker only."""
        n_shares = self.n_accumulated * self.n_processes
        size = self.lanes_a_step // n_shares
        first = (step % self.n_workers) * self.lanes_a_step
        first += (part * self.n_processes + self.rank) * size
        return range(first, first + size)

    def shape(self, masked_shares: Mapping[str, float]) -> BatchShape | None:
        """The shape of all packed batches, if they have one (`make_shape`)."""
        if self.tokens_per_batch is None or not self.of_one_shape:
            return None
        n_lanes = self.lanes_a_step // (self.n_accumulated * self.n_processes)
        most_blocks = n_lanes * (self.capacity // self.least)
        return make_shape(
            self.tokens_per_batch, most_blocks, self.builder.max_length, masked_shares
        )

    def _open(self, number: int) -> Iterator[list[Block]]:
        documents, n_lanes = self.documents, self.n_lanes
        n_shards = documents.num_shards
        kinds = {type(part).__name__ for part in parts_of_stream(documents._ex_iterable)}
        # The shards of a stream behind `skip` or `take` have other documents than the stream.
        is_cut = not kinds.isdisjoint(("SkipExamplesIterable", "TakeExamplesIterable"))
        # Unless shards divide evenly, or nearly, lanes with few of them would be read more often.
        if not is_cut and (n_shards % n_lanes == 0 or n_shards >= _MANY_SHARDS * n_lanes):
            documents = documents.shard(n_lanes, number, contiguous=False)
        else:
            if number == 0 and n_lanes > 1:
                logger.warning(
                    "Each of %d lanes reads the whole stream and keeps its share: it has %d parts "
                    "(files), or is behind skip or take. A multiple of %d files, or at least %d, "
                    "are read once; stream_lanes times workers is the number of lanes.",
                    *(n_lanes, n_shards, n_lanes, _MANY_SHARDS * n_lanes),
                )
            # Splitting alone would share the state of the parts that the stream is made of.
            documents = documents.shard(1, 0)
            if is_cut:
                documents = documents.filter(lambda _, i: i % n_lanes == number, with_indices=True)
            else:
                documents = split_dataset_by_node(documents, rank=number, world_size=n_lanes)
        lane = Lane(
            documents,
            self.builder,
            number=number,
            n_lanes=self.n_lanes,
            window=self.window,
            capacity=self.capacity,
            least=self.least,
            seed=self.seed,
        )
        phase = number // self.lanes_a_step
        n_steps = len(range(phase, self.n_steps, self.n_workers))  # that read this lane
        return lane.read(self.places.get(number, Place()), n_steps)

    def _examples(self, lane: int, block: Block) -> list[dict[str, Any]]:
        keys = random_keys(self.seed, lane, block.number)
        return keyed_examples(
            *([column] for column in block.columns), keys=keys, make_pair=self.builder.make_pair
        )

    @property
    def _shape(self) -> dict[str, int]:
        """What the order of the blocks depends on, beside the documents and the seed."""
        unit = "tokens" if self.least else "blocks"
        names = {"lanes": self.n_lanes, f"{unit} of a lane in a step": self.capacity}
        names |= {"tokens of a block at least": self.least, "as the seed": self.seed}
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
                    "stream_buffer, dataloader_num_workers, the seed and, for tokens_per_batch, "
                    "torch_compile as for that run."
                )
            for lane, place in places.items():
                # After an earlier resume, other processes have an old place of the lane, too.
                known = self.places.get(int(lane), Place())
                self.places[int(lane)] = max(known, Place(*place), key=lambda each: each.n_blocks)
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
