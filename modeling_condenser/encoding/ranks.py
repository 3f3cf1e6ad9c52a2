"""Ranks: the processes that `torchrun` or a batch system started for one piece of work.

In: RANK, WORLD_SIZE, LOCAL_RANK and the address of rank 0 from the environment. Out: who this
process is, and a barrier at which all wait for all, and fail when one has died.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

# Ranks arrive when their share is done, and shares of slow and fast machines differ by hours. One
# that dies is noticed at once, through its closed connection.
_PATIENCE = timedelta(days=7)


@dataclass(frozen=True)
class Ranks:
    """This process among those of one piece of work.

    Attributes:
        rank: of this process, from 0.
        size: how many there are.
        local_rank: of this process on its machine.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    _group: Any = None

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def wait_for_all(self) -> None:
        """Wait until all ranks are here.

        Raises:
            ConnectionError: one of them has died or left.
        """
        if self.size == 1:
            return
        from torch import distributed

        try:
            distributed.monitored_barrier(self._group, timeout=_PATIENCE)
        except RuntimeError as error:
            reason = re.sub(r"^\[\S+\] ", "", str(error)).partition(". ")[
                0
            ]  # without gloo's own file
            raise ConnectionError(
                f"Rank {self.rank} of {self.size} waited for the others, but one has ended; its "
                f"own output says why ({reason}). What is written stays valid: run the same "
                "command again to go on."
            ) from error


@contextmanager
def join_ranks() -> Iterator[Ranks]:
    """Meet the other ranks of the environment, over gloo; alone where it names none.

    Raises:
        ValueError: the environment names a rank, but not where to meet.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Ranks()
        return
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ValueError(
            f"WORLD_SIZE is {size}, but {', '.join(missing)} is not set: start the processes with "
            "torchrun, or set these in each of them."
        )
    from torch import distributed

    rank = int(os.environ["RANK"])
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    if distributed.is_initialized():  # by a program that calls this one
        group = distributed.new_group(backend="gloo", timeout=_PATIENCE)
    else:
        distributed.init_process_group("gloo", timeout=_PATIENCE)
        group = distributed.group.WORLD
    try:
        yield Ranks(rank, size, local_rank, group)
    finally:
        distributed.destroy_process_group(group)
