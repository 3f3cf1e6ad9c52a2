"""Reads the logs of runs."""

import json
from pathlib import Path

from modeling_condenser.files.run_folder import LOG_FILE


def read_log(run_folder: Path, *, measure: str = "loss") -> list[dict[str, float]]:
    """The log entries of a finished run that have a measure."""
    return [entry for entry in json.loads((run_folder / LOG_FILE).read_text()) if measure in entry]
