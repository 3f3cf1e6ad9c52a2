"""Drawing: candidates in, the order in which they are taken out, at random or best first.

Every rank of a query has its own random number, made of the seed, the query's id and the rank. So a
draw depends neither on other queries nor on the size of a window; the first n of a draw of more are
the draw of n; and a filter that drops a candidate changes nothing about the others.
"""

import hashlib
from typing import Literal

import numpy as np

from modeling_condenser.pretraining.counter_random import random_keys, uniforms

from .candidates import Candidate

Sampling = Literal["random", "top"]


def draw_order(
    candidates: list[Candidate], *, query_id: str, seed: int, sampling: Sampling
) -> list[Candidate]:
    """The candidates of one query in the order in which they are taken.

    Args:
        candidates: in the order of their ranks.
        query_id: decides the order, with the seed.
        seed: at least 0.
        sampling: "random", or "top" for the order of the ranks.
    """
    if sampling == "top" or not candidates:
        return candidates
    digest = hashlib.blake2b(query_id.encode(), digest_size=7).digest()
    keys = random_keys(seed, int.from_bytes(digest, "little"))
    numbers = uniforms(keys, candidates[-1].rank)[0]  # (last rank,)
    order = np.argsort(numbers[[candidate.rank - 1 for candidate in candidates]], kind="stable")
    return [candidates[place] for place in order.tolist()]
