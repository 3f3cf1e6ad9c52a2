"""Another machine: a process with a fresh cache that has the loopback Hub and not this package."""

import os
import subprocess
import sys
from pathlib import Path

from tests.hub.loopback_hub import LoopbackHub
from tests.publishing.making import BLOCKER


def elsewhere(hub: LoopbackHub, script: str, scratch: Path, token: str | None = None) -> str:
    """What a script prints with a fresh cache, the loopback Hub, and without this package."""
    scratch.mkdir(parents=True, exist_ok=True)
    (scratch / "script.py").write_text(BLOCKER + script)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
        **hub.environment(scratch / "cache", token=token),
        "OMP_NUM_THREADS": "1",
    }
    process = subprocess.run(
        [sys.executable, "-I", "script.py"],
        capture_output=True,
        text=True,
        cwd=scratch,
        env=environment,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return process.stdout
