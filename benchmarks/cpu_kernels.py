"""Our attention on a CPU beside torch's with padding, forward and backward, with dropout of .1.

    OMP_NUM_THREADS=1 python -m benchmarks.cpu_kernels

Both sides take turns in one process, on the same rows. Figures are the processor time of torch's
attention, divided by that of ours: medians over the turns.
"""

import statistics
import time
from functools import partial
from typing import Any

import torch

from benchmarks.harness import make_parser, print_table, time_in_turns
from modeling_condenser.cpu_kernels import cpu_attention
from modeling_condenser.packed_attention import attend_padded

_MODELS = {"MiniLM's size": (12, 32), "BERT base's size": (12, 64)}  # heads and their width


def main() -> None:
    """Measure each size, length and precision, and print the table."""
    parser = make_parser(__doc__, blocks=32, longest=128, repeats=7)
    arguments = parser.parse_args()
    random = torch.Generator().manual_seed(0)
    short = torch.randint(24, arguments.longest, (arguments.blocks,), generator=random)
    lengths = {"full": torch.full_like(short, arguments.longest), "short": short}
    rows = []
    for model, (heads, width) in _MODELS.items():
        for kind, of_blocks in lengths.items():
            starts = torch.cat([torch.zeros(1), of_blocks.sort(descending=True).values]).cumsum(0)
            for dtype in (torch.float32, torch.bfloat16):
                shape = (3, heads, int(starts[-1]), width)
                states = torch.randn(shape, generator=random).to(dtype).requires_grad_()
                side = partial(_step, states, starts.int(), arguments.longest)
                seconds = time_in_turns(
                    {"ours": partial(side, ours=True), "torch": partial(side, ours=False)},
                    repeats=arguments.repeats,
                    clock=time.process_time,
                )
                ours, theirs = (statistics.median(seconds[name]) for name in ("ours", "torch"))
                rows.append([model, kind, str(dtype), 1e3 * ours, 1e3 * theirs, theirs / ours])
    print_table(["size", "blocks", "precision", "ours, ms", "torch, ms", "times"], rows)


def _step(states: torch.Tensor, starts: torch.Tensor, longest: int, *, ours: bool) -> None:
    query, key, value = states
    if ours:
        output = cpu_attention(query, key, value, starts, starts, longest=longest, rate=0.1)
    else:
        rows: Any = (part.transpose(0, 1).contiguous() for part in (query, key, value))
        output = attend_padded(*rows, starts, starts, longest, 0.1, None, None)
    output.sum().backward()
    states.grad = None


if __name__ == "__main__":
    main()
