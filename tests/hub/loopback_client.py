"""Points the Hub's clients at a loopback Hub: those of this process, and those of subprocesses.

The libraries read the environment once, when they are imported, and copy what they read from one
another. For this process, then, each module that holds the endpoint or the cache folder under a
constant's name gets the new one; for a subprocess, a set of environment variables does.
"""

import sys
import time
from pathlib import Path
from typing import Any

# Imported here, though unused, so that none is imported first while a test has it point elsewhere.
import datasets  # noqa: F401
import evaluate  # noqa: F401
import huggingface_hub
import pytest
import transformers.utils.hub  # noqa: F401
from huggingface_hub import constants
from huggingface_hub.utils import _http

_LIBRARIES = ("huggingface_hub", "transformers", "datasets", "evaluate", "sentence_transformers")
_OURS = ("modeling_condenser", "hub_scripts")
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE")


class QuickClock:
    """Stands in for the module `time` in the client: its waits are noted, not waited."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def sleep(self, seconds: float) -> None:
        """Notes how long the client would have waited."""
        self.waits.append(seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def environment(url: str, folder: Path, *, token: str | None) -> dict[str, str]:
    """The variables with which a subprocess asks the Hub at `url` and keeps all in `folder`."""
    return {
        "HF_ENDPOINT": url,
        "HF_HOME": str(folder),
        "HF_HUB_CACHE": str(folder / "hub"),
        "HF_DATASETS_CACHE": str(folder / "datasets"),
        "HF_MODULES_CACHE": str(folder / "modules"),
        "HF_EVALUATE_CACHE": str(folder / "evaluate"),
        "HF_TOKEN_PATH": str(folder / "token"),
        "HF_TOKEN": token or "",
        "HUGGING_FACE_HUB_TOKEN": "",
        "HF_HUB_OFFLINE": "0",
        "TRANSFORMERS_OFFLINE": "0",
        "HF_DATASETS_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_UPDATE_DOWNLOAD_COUNTS": "0",
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
    }


def point_this_process_at(
    url: str, folder: Path, *, monkeypatch: pytest.MonkeyPatch, clock: QuickClock
) -> None:
    """Makes the clients in this process speak to the Hub at `url`, until the test ends."""
    told = environment(url, folder, token=None)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    for name in _TOKENS:
        monkeypatch.delenv(name, raising=False)
    replaced = {constants.ENDPOINT: url, constants.HF_HOME: str(folder)}
    _replace_in_modules(replaced, monkeypatch)
    flags = {
        "HF_HUB_OFFLINE": False,
        "HF_DATASETS_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,
        "HF_HUB_DISABLE_TELEMETRY": True,
        "HF_UPDATE_DOWNLOAD_COUNTS": False,
    }
    for module in _modules():
        for name, flag in flags.items():
            if name in vars(module):
                monkeypatch.setattr(module, name, flag)
    for api in _shared_clients():
        monkeypatch.setattr(api, "endpoint", url)
    monkeypatch.setattr(_http, "_HUB_ORIGINS", _http._HUB_ORIGINS | {_http._url_origin(url)})
    monkeypatch.setattr(_http, "time", clock)
    monkeypatch.setattr(huggingface_hub.file_download, "time", clock)


def forget_connections() -> None:
    """Closes the client's session and drops what it remembers of listings."""
    _http.close_session()
    huggingface_hub.HfFileSystem.clear_instance_cache()


def _modules() -> list[Any]:
    return [
        module
        for name, module in sorted(sys.modules.items())
        if name.split(".")[0] in _LIBRARIES + _OURS and module is not None
    ]


def _shared_clients() -> list[Any]:
    """The clients that modules keep for later; each remembers the endpoint of its making."""
    kept = [
        value
        for module in _modules()
        for value in vars(module).values()
        if isinstance(value, huggingface_hub.HfApi | huggingface_hub.HfFileSystem)
    ]
    inner = [one._api for one in kept if isinstance(one, huggingface_hub.HfFileSystem)]
    return list({id(one): one for one in kept + inner}.values())


def _replace_in_modules(replaced: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Exchanges the beginnings of all constants that are a URL or a path."""
    for module in _modules():
        for name, value in list(vars(module).items()):
            # The folder of remote code stays: Python has it on its path, with modules imported.
            stays = "MODULES" in name or name.startswith("_HF_DEFAULT") or not name.isupper()
            if stays or not isinstance(value, str | Path):
                continue
            for old, new in replaced.items():
                if str(value).startswith(old):
                    changed = new + str(value).removeprefix(old)
                    monkeypatch.setattr(module, name, type(value)(changed))
