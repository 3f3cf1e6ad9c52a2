"""A small Hugging Face Hub on 127.0.0.1: repositories in memory, for tests with the real clients.

It answers the requests of create_repo, create_branch, create_commit, snapshot_download,
hf_hub_download and from_pretrained. All files are "regular": no LFS and no Xet.
`tests/conftest.py` names it as the endpoint before the libraries are imported, offline; the fixture
`loopback_hub` brings the clients of this process online, logged in as `owner`.
"""

import base64
import hashlib
import json
import re
import shutil
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

_KIND = r"(?:(models|datasets|spaces)/)?"
_PATH = rf"/(?:api/)?{_KIND}([^/]+/[^/]+)(?:/([a-z]+))?(?:/([^/]+))?(?:/(.+))?"


@dataclass(frozen=True)
class Commit:
    """A commit and all files of the repository after it."""

    sha: str
    title: str
    tree: dict[str, bytes]


@dataclass
class Repository:
    """Branches as lists of commits, the newest first."""

    private: bool = False
    branches: dict[str, list[Commit]] = field(default_factory=dict)

    def commits(self, revision: str = "main") -> list[Commit]:
        return self.branches[revision]

    def files(self, revision: str = "main") -> dict[str, bytes]:
        """Path -> content."""
        return dict(self.branches[revision][0].tree)

    def find(self, revision: str) -> Commit | None:
        """The newest commit of a branch, or a commit."""
        commits = [commit for branch in self.branches.values() for commit in branch]
        named = [commit for commit in commits if commit.sha == revision]
        return next(iter(self.branches.get(revision, named)), None)

    def add(self, branch: str, title: str, tree: dict[str, bytes]) -> str:
        before = self.branches.get(branch, [])
        sha = hashlib.sha1(repr((branch, len(before), title, tree)).encode()).hexdigest()
        self.branches[branch] = [Commit(sha, title, tree), *before]
        return sha


class LoopbackHub(ThreadingHTTPServer):
    """The Hub, with its repositories by kind and name."""

    token = "hf_loopback_owner"  # of the user `owner`
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.fails_next_commit = False
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def repo(self, name: str, *, kind: str = "models") -> Repository:
        return self.repositories[kind, name]

    def put(self, folder: Path, name: str, *, kind: str = "models") -> str:
        """Replace a repository's files by those of a folder; returns the commit."""
        repository = self.repositories.setdefault((kind, name), Repository())
        return repository.add("main", "Put", contents(folder))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: LoopbackHub

    def log_message(self, *_: Any) -> None:
        pass

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        address = urlsplit(self.path)
        if address.path == "/api/validate-yaml":
            return self._answer({"errors": [], "warnings": []})
        if address.path == "/api/repos/create":
            return self._create(json.loads(body))
        found = re.fullmatch(_PATH, address.path)
        assert found, address.path
        kind, name, action, revision, path = map(unquote, found.groups(""))
        repository = self.server.repositories.get((kind or "models", name))
        if repository is None:
            return self._answer({}, 404, X_Error_Code="RepoNotFound")
        if action == "branch":
            repository.branches.setdefault(revision, repository.commits()[:1])
            return self._answer({}, 201)
        head = repository.find(revision or "main")
        if head is None:
            return self._answer({}, 404, X_Error_Code="RevisionNotFound")
        entries = {path: _describe(path, content) for path, content in head.tree.items()}
        match action:
            case "" | "revision":
                facts = {"id": name, "private": repository.private, "tags": [], "downloads": 0}
                siblings = [{"rfilename": path} for path in entries]
                self._answer({**facts, "sha": head.sha, "siblings": siblings})
            case "tree":
                self._answer([*entries.values()])
            case "preupload":
                asked = [file["path"] for file in json.loads(body)["files"]]
                mode = {"uploadMode": "regular", "shouldIgnore": False}
                files = [{"path": p, "oid": entries.get(p, {}).get("oid"), **mode} for p in asked]
                self._answer({"files": files})
            case "commit":
                self._commit(body, name, repository, revision, dict(head.tree))
            case "resolve" if path in entries:
                tag = f'"{entries[path]["oid"]}"'
                self._answer(head.tree[path], ETag=tag, X_Repo_Commit=head.sha)
            case _:
                self._answer({}, 404, X_Error_Code="EntryNotFound")

    do_GET = do_HEAD = do_POST = _handle

    def _create(self, told: dict[str, Any]) -> None:
        if self.headers.get("Authorization") != f"Bearer {self.server.token}":
            return self._answer({"error": "Invalid credentials in Authorization header"}, 401)
        name = f"{told.get('organization') or 'owner'}/{told['name']}"
        url = {"url": f"{self.server.url}/{name}", "name": name, "id": name}
        kind = f"{told.get('type') or 'model'}s"
        if (kind, name) in self.server.repositories:
            return self._answer({"error": "You already created this repo", **url}, 409)
        private = told.get("visibility") == "private" or bool(told.get("private"))
        repository = self.server.repositories[kind, name] = Repository(private)
        repository.add("main", "initial commit", {".gitattributes": b"\n"})
        self._answer(url)

    def _commit(
        self, body: bytes, name: str, repository: Repository, branch: str, tree: dict[str, bytes]
    ) -> None:
        if self.server.fails_next_commit:
            self.server.fails_next_commit = False
            return self._answer({"error": "ordered to fail"}, 400)
        title = ""
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            match line["key"]:
                case "header":
                    title = value["summary"]
                case "file":
                    tree[value["path"]] = base64.b64decode(value["content"])
                case "deletedFile":
                    del tree[value["path"]]
        url, sha = f"{self.server.url}/{name}", repository.add(branch, title, tree)
        self._answer({"commitOid": sha, "commitUrl": f"{url}/commit/{sha}"})

    def _answer(self, content: Any, status: int = 200, **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _describe(path: str, content: bytes) -> dict[str, Any]:
    blob = hashlib.sha1(f"blob {len(content)}\0".encode() + content)  # as git names it
    return {"type": "file", "path": path, "size": len(content), "oid": blob.hexdigest()}


def contents(folder: Path) -> dict[str, bytes]:
    """Path -> content of each file in a folder."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


HUB = LoopbackHub()


@pytest.fixture
def loopback_hub(monkeypatch: pytest.MonkeyPatch) -> LoopbackHub:
    """An empty Hub, and the clients of this process online."""
    import datasets
    import huggingface_hub

    HUB.repositories.clear()
    shutil.rmtree(huggingface_hub.constants.HF_HUB_CACHE, ignore_errors=True)
    for module in (huggingface_hub.constants, datasets.config):
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", False)
    for name, value in {"HF_TOKEN": HUB.token, "HF_HUB_OFFLINE": "0"}.items():
        monkeypatch.setenv(name, value)
    return HUB
