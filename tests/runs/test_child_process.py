"""Calls in a process of their own: results and errors come back."""

import os
import signal
import sys

import pytest

from modeling_condenser.runs.child_process import call_apart

pytestmark = pytest.mark.slow


def _describe(*, number: int, error: str | None = None) -> dict[str, object]:
    """The function that the tests call in a child process."""
    sys.stdout.write("words that are no answer\n")
    if error == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if error == "fail":
        raise KeyError("seven")
    return {"twice": 2 * number, "process": os.getpid(), "mark": os.environ.get("MARK")}


def call(**arguments: object) -> dict:
    environment = {**os.environ, "MARK": "here"}
    return call_apart(_describe, arguments, failed="it failed", environment=environment)


def test_the_result_comes_from_another_process():
    answer = call(number=4)
    assert (answer["twice"], answer["mark"]) == (8, "here")
    assert answer["process"] != os.getpid()


@pytest.mark.parametrize(("error", "words"), [("fail", "KeyError: 'seven'"), ("killed", "with -9")])
def test_an_error_there_is_raised_here(error, words):
    with pytest.raises(RuntimeError, match=f"(?s)^it failed: .*{words}"):
        call(number=4, error=error)
