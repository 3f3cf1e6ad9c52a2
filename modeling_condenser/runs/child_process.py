"""Calls a function in a process of its own, which shares no state with the caller."""

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
_ERRORS = {error.__name__: error for error in (ValueError, FileNotFoundError)}


def call_apart(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    *,
    failed: str,
    environment: Mapping[str, str] | None = None,
) -> Any:
    """Call a function in a new process, which takes some seconds to start.

    Args:
        function: of a module's top level; what it prints is lost.
        arguments: by name, of types that JSON supports.
        failed: the start of the error message, as in "the cost of x could not be measured".
        environment: of the process; by default that of this one.

    Returns:
        The function's result, as JSON represents it.

    Raises:
        ValueError: as the function raised it.
        FileNotFoundError: as the function raised it.
        RuntimeError: the function or its process failed in another way.
    """
    environment = os.environ if environment is None else environment
    paths = [str(_ROOT), environment.get("PYTHONPATH", "")]
    call = {
        "module": function.__module__,
        "name": function.__qualname__,
        "arguments": dict(arguments),
    }
    process = subprocess.run(
        [sys.executable, "-c", _CHILD],
        input=json.dumps(call),
        capture_output=True,
        text=True,
        env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )
    if process.returncode != 0:
        hint = " (perhaps out of memory)" if process.returncode == -9 else ""
        end = process.stderr[-1000:].strip()
        raise RuntimeError(f"{failed}: the process ended with {process.returncode}{hint}. {end}")
    answer = json.loads(process.stdout.splitlines()[-1])
    if "error" not in answer:
        return answer["returned"]
    kind, message = answer["error"], answer["message"]
    if kind in _ERRORS:
        raise _ERRORS[kind](message)
    raise RuntimeError(f"{failed}: {kind}: {message}")


def _answer() -> None:
    """Make the call that is described on stdin; write the result as the last line of stdout."""
    call = json.load(sys.stdin)
    try:
        function = getattr(import_module(call["module"]), call["name"])
        answer = {"returned": function(**call["arguments"])}
    except Exception as error:  # of any type: the caller raises it again
        answer = {"error": type(error).__name__, "message": str(error)}
    sys.stdout.write(f"\n{json.dumps(answer)}\n")
