"""Start-up time of the command and of the package, beside transformers' own import.

    python -m benchmarks.startup [--repeats 5]

Medians over fresh processes in turns, after one of each to warm the file cache.
"""

import statistics
import subprocess
import sys
from functools import partial

from benchmarks.harness import make_parser, print_table, time_in_turns

_COMMANDS = {
    "python, nothing": ["-c", "pass"],
    "condenser --help": ["-m", "hub_scripts.main", "--help"],
    "from transformers import BertForMaskedLM": ["-c", "from transformers import BertForMaskedLM"],
    "import modeling_condenser": ["-c", "import modeling_condenser"],
}


def main() -> None:
    arguments = make_parser(__doc__, repeats=5).parse_args()
    run = partial(subprocess.run, check=True, stdout=subprocess.DEVNULL)
    sides = {name: partial(run, [sys.executable, *words]) for name, words in _COMMANDS.items()}
    seconds = time_in_turns(sides, repeats=arguments.repeats)
    rows = ([n, statistics.median(times), min(times), max(times)] for n, times in seconds.items())
    print_table(["start-up", "seconds", "from", "to"], rows)


if __name__ == "__main__":
    main()
