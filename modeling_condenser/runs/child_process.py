"""Call a function in a new process, which shares no state with the caller."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

_CHILD = "from modeling_condenser.runs.child_process import _answer; _answer()"
_ROOT = Path(__file__).parents[2]  # that holds the package, if it is not installed


def call_apart(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    *,
    failed: str,
    environment: Mapping[str, str],
) -> Any:
    """Call a top-level function whose arguments and result are JSON; what it prints is lost.

    Args:
        function: to call.
        arguments: by name.
        failed: the start of the error message, as in "the cost of x could not be measured".
        environment: variables of the process.

    Raises:
        ValueError: the function raised it.
        RuntimeError: the function or its process failed in another way.
    """
    paths = os.pathsep.join(filter(None, [str(_ROOT), environment.get("PYTHONPATH")]))
    process = subprocess.run(
        [sys.executable, "-c", _CHILD],
        input=json.dumps([function.__module__, function.__qualname__, dict(arguments)]),
        capture_output=True,
        text=True,
        env={**environment, "PYTHONPATH": paths},
    )
    if process.returncode != 0:
        end = process.stderr[-1000:].strip()
        raise RuntimeError(f"{failed}: the process ended with {process.returncode}. {end}")
    answer = json.loads(process.stdout.splitlines()[-1])
    if "refused" in answer:
        raise ValueError(answer["refused"])
    return answer["returned"]


def _answer() -> None:
    """Make the call that is described on stdin; write the result as the last line of stdout."""
    module, name, arguments = json.load(sys.stdin)
    try:
        answer = {"returned": getattr(import_module(module), name)(**arguments)}
    except ValueError as error:
        answer = {"refused": str(error)}
    sys.stdout.write(f"\n{json.dumps(answer)}\n")
