"""Start-up time of the command and of the package, beside transformers' own import.

    python -m benchmarks.startup [--repeats 5]

Medians over fresh processes in turns, after one of each to warm the file cache.
"""

import statistics
import subprocess
import sys
import time

from benchmarks.harness import make_parser, print_table

_COMMANDS = {
    "python, nothing": ["-c", "pass"],
    "condenser --help": ["-m", "hub_scripts.main", "--help"],
    "from transformers import BertForMaskedLM": ["-c", "from transformers import BertForMaskedLM"],
    "import modeling_condenser": ["-c", "import modeling_condenser"],
}


def main() -> None:
    """Time the commands in turns."""
    arguments = make_parser(__doc__ or "", repeats=5).parse_args()
    seconds: dict[str, list[float]] = {name: [] for name in _COMMANDS}
    for turn in range(arguments.repeats + 1):
        for name, words in _COMMANDS.items():
            started = time.perf_counter()
            subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
            if turn:
                seconds[name].append(time.perf_counter() - started)
    rows = ([n, statistics.median(times), min(times), max(times)] for n, times in seconds.items())
    print_table(["start-up", "seconds", "from", "to"], rows)


if __name__ == "__main__":
    main()
