"""A Hugging Face Hub on 127.0.0.1, for tests with the real clients and no network.

`with LoopbackHub() as hub` opens one; the fixture `loopback_hub` also points the clients of this
process at it (huggingface_hub, transformers, datasets, evaluate, sentence-transformers), with a
fresh cache and the token of the user `owner`. `hub.environment(folder)` does it for a subprocess.
It keeps models, datasets and Spaces in memory, takes commits and LFS uploads as the Hub does,
counts requests and, where a test orders it, fails, cuts the line or sends wrong bytes. What it does
not do: Xet, redirects of LFS files to another host, multipart uploads, merging a pull request.
"""

import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import pytest

from tests.hub.loopback_client import (
    QuickClock,
    environment,
    forget_connections,
    point_this_process_at,
)
from tests.hub.loopback_exchange import Account, State
from tests.hub.loopback_faults import Fault, Faults
from tests.hub.loopback_repository import Repository, RepoType
from tests.hub.loopback_server import LoopbackServer, Record

OWNER, OWNER_TOKEN = "owner", "hf_loopback_owner"


class LoopbackHub:
    """The Hub: what it holds, who may ask, what was asked, and what is to go wrong.

    Attributes:
        url: the endpoint, `http://127.0.0.1:<port>`.
        token: a write token of the user `owner`.
        requests: what was asked so far, oldest first; status 0 where a request was cut.
        faults: the orders still open; `faults.left()` is 0 once all happened.
        clock: with the fixture, `clock.waits` are the seconds that the client would have waited.
    """

    def __init__(self) -> None:
        self.token = OWNER_TOKEN
        self.requests: list[Record] = []
        self.faults = Faults()
        self.clock = QuickClock()
        self._closed = False
        self._state = State()
        self._server = LoopbackServer(self._state, self.faults, self.requests)
        self.url = self._state.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.add_token(OWNER_TOKEN, user=OWNER)

    def __enter__(self) -> Self:
        # A short poll, for that is how long `close` may take.
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the Hub: from now on, connections are refused. Again has no effect."""
        if not self._closed:
            self._closed = True
            self._server.close()

    def add_token(self, token: str, *, user: str, write: bool = True) -> str:
        """Lets a token stand for a user, to read only or also to write; returns the token."""
        self._state.accounts[token] = Account(user, write=write)
        return token

    def repo(self, repo_id: str, *, repo_type: RepoType = "model") -> Repository:
        """A repository as it stands: `.files(revision)`, `.commits(revision)`, `.refs`, `.private`.

        Raises:
            KeyError: there is none of this name and type.
        """
        return self._state.repositories[repo_type, repo_id]

    def has_repo(self, repo_id: str, *, repo_type: RepoType = "model") -> bool:
        """Whether there is a repository of this name and type."""
        return (repo_type, repo_id) in self._state.repositories

    def environment(self, folder: Path, *, token: str | None = None) -> dict[str, str]:
        """Variables, to be laid over `os.environ`, for a subprocess with its caches in `folder`."""
        return environment(self.url, folder, token=token)

    def asked(self, method: str, path_regex: str) -> list[Record]:
        """The requests so far of a method (`*`: any) whose path, query and all, fits."""
        return [
            record
            for record in self.requests
            if method in ("*", record.method) and re.search(path_regex, record.path)
        ]

    def fail_next(
        self,
        method: str,
        path_regex: str,
        *,
        status: int = 503,
        times: int = 1,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """The next such requests are not carried out but answered with an error status."""
        self.faults.order(
            Fault("fail", method, path_regex, times, status=status, headers=headers or {})
        )

    def cut_next(
        self,
        method: str,
        path_regex: str,
        *,
        times: int = 1,
        after_bytes: int = 0,
        side: Literal["request", "response"] | None = None,
    ) -> None:
        """The next such requests lose their line after so many bytes of a body.

        With `side="request"` (the default but for GET and HEAD) while the body is read, so that
        nothing is carried out; with `"response"` (the default for GET and HEAD) while the reply is
        sent, so that all is carried out; after 0 bytes of it not even the status arrives.
        """
        side = side or ("response" if method in ("GET", "HEAD") else "request")
        kind: Literal["cut request", "cut response"] = (
            "cut request" if side == "request" else "cut response"
        )
        self.faults.order(Fault(kind, method, path_regex, times, after_bytes=after_bytes))

    def corrupt_next(self, path_regex: str, *, times: int = 1) -> None:
        """The next such downloads have a changed byte, with the right length and headers."""
        self.faults.order(Fault("corrupt", "GET", path_regex, times))


@pytest.fixture
def loopback_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """An empty Hub that the clients in this process speak to, logged in as `owner`.

    The client's cache, `tmp_path / "hf_home"`, is fresh; its waits between retries take no time.
    """
    home = tmp_path / "hf_home"
    with LoopbackHub() as hub:
        forget_connections()
        point_this_process_at(hub.url, home, monkeypatch=monkeypatch, clock=hub.clock)
        home.mkdir()
        (home / "token").write_text(hub.token)
        yield hub
        forget_connections()
