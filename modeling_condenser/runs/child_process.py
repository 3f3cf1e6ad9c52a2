"""Call a function in a new process, which shares no state with the caller."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_CHILD = """
import json, sys
from importlib import import_module
module, name, arguments = json.load(sys.stdin)
result = getattr(import_module(module), name)(**arguments)
sys.stdout.write("\\n" + json.dumps(result))
"""
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
        RuntimeError: the function or its process failed; the message ends with its error.
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
    return json.loads(process.stdout.splitlines()[-1])
