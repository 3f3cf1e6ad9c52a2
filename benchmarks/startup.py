"""How long it takes until something happens: help, and imports beside transformers' own.

    python -m benchmarks.startup [--repeats 5]

Each figure is the median over fresh processes, started in turns after one of each that is not
counted, which leaves the files in the system's cache.
"""

import argparse
import statistics
import subprocess
import sys
import time

_COMMANDS = {
    "python, nothing": [sys.executable, "-c", "pass"],
    "condenser --help": [sys.executable, "-m", "hub_scripts.main", "--help"],
    "from transformers import BertForMaskedLM": [
        sys.executable,
        "-c",
        "from transformers import BertForMaskedLM",
    ],
    "import modeling_condenser": [sys.executable, "-c", "import modeling_condenser"],
}


def main() -> None:
    """Time the commands in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="(default: 5)")
    arguments = parser.parse_args()
    seconds: dict[str, list[float]] = {name: [] for name in _COMMANDS}
    for turn in range(arguments.repeats + 1):
        for name, command in _COMMANDS.items():
            started = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            if turn:
                seconds[name].append(time.perf_counter() - started)
    print("| start-up | seconds | from | to |\n| --- | --- | --- | --- |")
    for name, times in seconds.items():
        figures = (statistics.median(times), min(times), max(times))
        print(f"| {name} | {' | '.join(f'{figure:.2f}' for figure in figures)} |")


if __name__ == "__main__":
    main()
