"""A small Hugging Face Hub on 127.0.0.1: repositories in memory, for tests with the real clients.

It answers the requests of create_repo, create_branch, upload_folder, snapshot_download,
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
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

_PAGE = r"/((?P<types>datasets)/)?(?P<repo>[^/]+/[^/]+)"
_API = r"/api/(?P<types>models|datasets)/(?P<repo>[^/]+/[^/]+)"


@dataclass(frozen=True)
class Commit:
    """A commit and all files of the repository after it."""

    sha: str
    title: str
    tree: dict[str, bytes]


@dataclass
class Repository:
    """Branches as lists of commits, the oldest first."""

    private: bool = False
    branches: dict[str, list[Commit]] = field(default_factory=dict)

    def commits(self, revision: str = "main") -> list[Commit]:
        """Commits of a branch, the newest first."""
        return self.branches[revision][::-1]

    def files(self, revision: str = "main") -> dict[str, bytes]:
        """Path -> content at a branch or commit."""
        found = self.find(revision)
        assert found is not None, f"no revision {revision}"
        return dict(found.tree)

    def find(self, revision: str) -> Commit | None:
        if revision in self.branches:
            return self.branches[revision][-1]
        commits = (commit for branch in self.branches.values() for commit in branch)
        return next((commit for commit in commits if commit.sha == revision), None)

    def add(self, branch: str, title: str, tree: dict[str, bytes]) -> Commit:
        before = self.branches.get(branch, [])
        seed = repr((branch, len(before), title, tree))
        commit = Commit(hashlib.sha1(seed.encode()).hexdigest(), title, tree)
        self.branches[branch] = [*before, commit]
        return commit


class LoopbackHub(ThreadingHTTPServer):
    """The Hub, with its repositories by type and name.

    Attributes:
        url: the endpoint.
        token: of the user `owner`.
        fails_next_commit: whether the next commit is answered with an error.
    """

    token = "hf_loopback_owner"
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.fails_next_commit = False
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def repo(self, name: str) -> Repository:
        return self.repositories["model", name]

    def has_repo(self, name: str) -> bool:
        return ("model", name) in self.repositories

    def put(self, folder: Path, name: str, *, repo_type: str = "model") -> str:
        """Replace a repository's files by those of a folder; returns the commit."""
        repository = self.repositories.setdefault((repo_type, name), Repository())
        return repository.add("main", "Put", contents(folder)).sha


class _Handler(BaseHTTPRequestHandler):
    """Answers one request; routes find the repository and its commit that are asked for here."""

    protocol_version = "HTTP/1.1"
    server: LoopbackHub
    body: bytes
    query: dict[str, list[str]]
    repository: Repository
    head: Commit

    def log_message(self, *_: Any) -> None:
        pass

    def _handle(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        self.query = parse_qs(parts.query)
        for pattern, route in _ROUTES.items():
            if match := re.fullmatch(pattern, parts.path):
                named = {k: unquote(v) for k, v in match.groupdict().items() if v is not None}
                code = self._find(**named) if "repo" in named else None
                return self._answer_missing(code) if code else route(self, **named)
        self._answer({"error": f"no such route: {self.path}"}, 404)

    do_GET = do_HEAD = do_POST = _handle

    def _answer(self, content: Any, status: int = 200, **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _answer_missing(self, code: str) -> None:
        self._answer({"error": code}, 404, X_Error_Code=code, X_Error_Message=code)

    @property
    def _is_owner(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {self.server.token}"

    def _find(self, repo: str, types: str = "models", rev: str = "main", **_: str) -> str | None:
        """Find the repository and the commit that may be read, or name the error."""
        repository = self.server.repositories.get((types.removesuffix("s"), repo))
        if repository is None or (repository.private and not self._is_owner):
            return "RepoNotFound"
        head = repository.find(rev)
        if head is None:
            return "RevisionNotFound"
        self.repository, self.head = repository, head
        return None

    def validate_yaml(self) -> None:
        self._answer({"errors": [], "warnings": []})

    def create(self) -> None:
        if not self._is_owner:
            return self._answer({"error": "Invalid credentials in Authorization header"}, 401)
        told = json.loads(self.body)
        name = f"{told.get('organization') or 'owner'}/{told['name']}"
        url = {"url": f"{self.server.url}/{name}", "name": name, "id": name}
        if self.server.has_repo(name):
            return self._answer({"error": "You already created this repo", **url}, 409)
        private = told.get("visibility") == "private" or bool(told.get("private"))
        repository = self.server.repositories["model", name] = Repository(private)
        repository.add("main", "initial commit", {".gitattributes": b"\n"})
        self._answer(url)

    def create_branch(self, branch: str, **_: str) -> None:
        self.repository.branches.setdefault(branch, [self.head])
        self._answer({}, 201)

    def preupload(self, **_: str) -> None:
        paths = [file["path"] for file in json.loads(self.body)["files"]]
        mode = {"uploadMode": "regular", "shouldIgnore": False}
        held = {path: self._entry(path)["oid"] for path in paths if path in self.head.tree}
        self._answer({"files": [{"path": p, "oid": held.get(p), **mode} for p in paths]})

    def commit(self, repo: str, rev: str, **_: str) -> None:
        if self.server.fails_next_commit:
            self.server.fails_next_commit = False
            return self._answer({"error": "ordered to fail"}, 400)
        tree, title = dict(self.head.tree), ""
        for line in map(json.loads, self.body.splitlines()):
            value = line["value"]
            match line["key"]:
                case "header":
                    title = value["summary"]
                case "file":
                    tree[value["path"]] = base64.b64decode(value["content"])
                case "deletedFile":
                    del tree[value["path"]]
        branch, told = rev, {}
        if "create_pr" in self.query:
            branch = "refs/pr/1"
            told["pullRequestUrl"] = f"{self.server.url}/{repo}/discussions/1"
        sha = self.repository.add(branch, title, tree).sha
        url = f"{self.server.url}/{repo}/commit/{sha}"
        self._answer({"commitOid": sha, "commitUrl": url, **told})

    def info(self, repo: str, **_: str) -> None:
        told = {"id": repo, "modelId": repo, "private": self.repository.private, "tags": []}
        siblings = [{"rfilename": path} for path in self.head.tree]
        self._answer({**told, "sha": self.head.sha, "siblings": siblings, "downloads": 0})

    def tree(self, **_: str) -> None:
        self._answer([self._entry(path) for path in self.head.tree])

    def _entry(self, path: str) -> dict[str, Any]:
        content = self.head.tree[path]
        blob = hashlib.sha1(f"blob {len(content)}\0".encode() + content)  # as git names it
        return {"type": "file", "path": path, "size": len(content), "oid": blob.hexdigest()}

    def resolve(self, path: str, **_: str) -> None:
        if path not in self.head.tree:
            return self._answer_missing("EntryNotFound")
        tag = f'"{self._entry(path)["oid"]}"'
        self._answer(self.head.tree[path], ETag=tag, X_Repo_Commit=self.head.sha)


def contents(folder: Path) -> dict[str, bytes]:
    """Path -> content of each file in a folder."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


_RESOLVE = r"/((?P<types>datasets)/)?(?P<repo>[^/]+/[^/]+)/resolve/(?P<rev>[^/]+)/(?P<path>.+)"
_ROUTES: dict[str, Any] = {
    r"/api/validate-yaml": _Handler.validate_yaml,
    r"/api/repos/create": _Handler.create,
    rf"{_API}/branch/(?P<branch>.+)": _Handler.create_branch,
    rf"{_API}/preupload/(?P<rev>[^/]+)": _Handler.preupload,
    rf"{_API}/commit/(?P<rev>[^/]+)": _Handler.commit,
    rf"{_API}/tree/(?P<rev>[^/]+)": _Handler.tree,
    rf"{_API}(/revision/(?P<rev>[^/]+))?": _Handler.info,
    rf"{_PAGE}/resolve/(?P<rev>[^/]+)/(?P<path>.+)": _Handler.resolve,
}

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
