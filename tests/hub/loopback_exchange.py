"""What passes between the loopback Hub's routes and its server: requests, replies, accounts, state.

In goes a request as it was read from the line; a route turns it into a reply. Who may read and
write what is decided here, with the answers of the real Hub: a missing and a hidden repository
look alike, and an unknown token is refused everywhere.
"""

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from tests.hub.loopback_repository import HubError, Repository

NO_CREDENTIALS = "Invalid username or password."
BAD_CREDENTIALS = "Invalid credentials in Authorization header"


@dataclass(frozen=True)
class Account:
    """Whose a token is, and whether it may write."""

    user: str
    write: bool = True


@dataclass(frozen=True)
class Request:
    """One request, its body read; `path` is as it was sent, percent signs and all, no query."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes
    account: Account | None

    def flag(self, name: str) -> bool:
        """Whether a query parameter says yes."""
        return self.query.get(name, [""])[0].lower() in ("1", "true")

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; 400 if it is none."""
        try:
            value = json.loads(self.body or b"{}")
        except ValueError as error:
            raise HubError(400, f"The body is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise HubError(400, "The body is not a JSON object")
        return value

    def form(self) -> dict[str, list[str]]:
        """The body as a form, or as a JSON object of lists."""
        if "json" in self.headers.get("content-type", ""):
            return {
                name: value if isinstance(value, list) else [str(value)]
                for name, value in self.json().items()
            }
        return parse_qs(self.body.decode(), keep_blank_values=True)


@dataclass(frozen=True)
class Reply:
    """What is sent back."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def json_reply(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    """A value as JSON."""
    told = {"Content-Type": "application/json; charset=utf-8", **(headers or {})}
    return Reply(status, json.dumps(value).encode(), told)


def error_reply(error: HubError) -> Reply:
    """The Hub's way to say that something is wrong: by headers and in the body."""
    line = error.message.splitlines()[0]
    headers = {"X-Error-Message": line.encode("ascii", "replace").decode()}
    if error.code:
        headers["X-Error-Code"] = error.code
    if error.sha:
        headers["X-Repo-Commit"] = error.sha
    return json_reply({"error": error.message}, status=error.status, headers=headers)


@dataclass
class State:
    """All that the Hub holds. A route runs while it holds the lock, so each request is one step."""

    url: str = ""
    repositories: dict[tuple[str, str], Repository] = field(default_factory=dict)
    accounts: dict[str, Account] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def account(self, authorization: str | None) -> Account | None:
        """Who asks, by the header; None without one, 401 with an unknown token."""
        if not authorization:
            return None
        account = self.accounts.get(authorization.removeprefix("Bearer ").strip())
        if account is None:
            raise HubError(401, BAD_CREDENTIALS)
        return account

    def readable(self, account: Account | None, repo_type: str, repo_id: str) -> Repository:
        """The repository, if there is one that the account may see."""
        repository = self.repositories.get((repo_type, repo_id))
        hidden = repository is not None and repository.private
        own = account is not None and repository is not None and account.user == repository.owner
        if repository is None or (hidden and not own):
            if account is None:
                raise HubError(401, NO_CREDENTIALS, code="RepoNotFound")
            raise HubError(404, "Repository not found", code="RepoNotFound")
        return repository

    def writable(
        self,
        account: Account | None,
        repo_type: str,
        repo_id: str,
        *,
        by_pull_request: bool = False,
    ) -> Repository:
        """The repository, if the account may commit to it (or at least propose a commit)."""
        repository = self.readable(account, repo_type, repo_id)
        if account is None:
            raise HubError(401, NO_CREDENTIALS, code="RepoNotFound")
        if not account.write or (account.user != repository.owner and not by_pull_request):
            raise HubError(403, f"You don't have write access to {repo_id}")
        return repository
