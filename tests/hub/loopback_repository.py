"""The repositories of the loopback Hub: commits, the files they hold, what a revision names.

In go operations on files (as the Hub's commit API has them), out come commits, trees and bytes; all
in memory, nothing of HTTP. Every commit is kept. A commit's sha follows from its parent, title,
description and files alone, so equal histories have equal shas, and a sha never names two contents.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, Literal

RepoType = Literal["model", "dataset", "space"]

LFS_SUFFIXES = (".safetensors", ".bin", ".parquet", ".png", ".gz", ".arrow", ".npy", ".pt", ".zip")
GIT_ATTRIBUTES = "".join(
    f"*{suffix} filter=lfs diff=lfs merge=lfs -text\n" for suffix in LFS_SUFFIXES
).encode()


class HubError(Exception):
    """What the Hub answers instead of a result: a status, a message and the client's error code."""

    def __init__(self, status: int, message: str, *, code: str = "", sha: str = "") -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.sha = status, message, code, sha


def sha256_of(content: bytes) -> str:
    """The SHA-256 of the bytes, in hexadecimal: the name of an LFS object."""
    return hashlib.sha256(content).hexdigest()


def git_sha1(content: bytes, *, kind: str = "blob") -> str:
    """The name that git gives to the bytes as a blob (or tree, or commit), in hexadecimal."""
    return hashlib.sha1(f"{kind} {len(content)}\0".encode() + content).hexdigest()


@dataclass(frozen=True)
class StoredFile:
    """One file of a commit: its bytes, and whether git holds them or only a pointer to them."""

    content: bytes
    lfs: bool

    @property
    def pointer(self) -> bytes:
        """The text that git holds in the place of an LFS file."""
        return (
            "version https://git-lfs.github.com/spec/v1\n"
            f"oid sha256:{self.etag}\nsize {len(self.content)}\n"
        ).encode()

    @cached_property
    def blob_id(self) -> str:
        """git's name of what git holds: the content or, of an LFS file, the pointer."""
        return git_sha1(self.pointer if self.lfs else self.content)

    @cached_property
    def etag(self) -> str:
        """What a download is checked against: SHA-256 of an LFS file, git's SHA-1 of another."""
        return sha256_of(self.content) if self.lfs else self.blob_id


@dataclass(frozen=True)
class Commit:
    """One commit and all files that its revision holds."""

    sha: str
    title: str
    description: str
    author: str
    date: str
    parent: str | None
    tree: Mapping[str, StoredFile] = field(repr=False)


@dataclass(frozen=True)
class Addition:
    """Put a file there, or replace it."""

    path: str
    file: StoredFile


@dataclass(frozen=True)
class Deletion:
    """Take away a file, or all files below a folder."""

    path: str
    folder: bool


@dataclass
class Repository:
    """One repository: its commits by sha, its refs (main, refs/pr/1, ...) and its LFS objects."""

    repo_id: str
    repo_type: RepoType
    private: bool = False
    gated: bool = False
    sdk: str | None = None
    refs: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    history: dict[str, Commit] = field(default_factory=dict, repr=False)
    lfs_objects: dict[str, bytes] = field(default_factory=dict, repr=False)
    expected_objects: dict[str, int] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Opens with the commit that the Hub makes by itself."""
        first = Addition(".gitattributes", StoredFile(GIT_ATTRIBUTES, lfs=False))
        self.commit([first], title="initial commit", author=self.owner, new_ref="main")

    @property
    def owner(self) -> str:
        """The user or organization that the repository belongs to."""
        return self.repo_id.split("/")[0]

    @property
    def url_path(self) -> str:
        """Where it stands below the endpoint: `owner/name`, `datasets/owner/name`, ..."""
        return ("" if self.repo_type == "model" else f"{self.repo_type}s/") + self.repo_id

    def resolve(self, revision: str = "main") -> Commit:
        """The commit that a sha, a branch, a tag or refs/pr/N names; 404 if there is none."""
        sha = self.refs.get(revision.removeprefix("refs/heads/")) or self.tags.get(revision)
        commit = self.history.get(sha or revision)
        if commit is None:
            raise HubError(404, f"Invalid rev id: {revision}", code="RevisionNotFound")
        return commit

    def files(self, revision: str = "main") -> dict[str, bytes]:
        """All files of a revision by path, with their bytes (.gitattributes is one of them)."""
        return {path: file.content for path, file in self.resolve(revision).tree.items()}

    def commits(self, revision: str = "main") -> list[Commit]:
        """The commits that led to a revision, the newest first."""
        return list(self._line(self.resolve(revision)))

    def _line(self, commit: Commit) -> Iterator[Commit]:
        yield commit
        while commit.parent is not None:
            commit = self.history[commit.parent]
            yield commit

    def new_pull_request(self) -> str:
        """The next free ref of a pull request."""
        return f"refs/pr/{1 + sum(ref.startswith('refs/pr/') for ref in self.refs)}"

    def commit(
        self,
        operations: Sequence[Addition | Deletion],
        *,
        title: str,
        author: str,
        description: str = "",
        revision: str = "main",
        new_ref: str | None = None,
    ) -> Commit:
        """Applies the operations to a branch, or from it to a new ref; wholly or, on error, not."""
        parent = self.resolve(revision) if self.history else None
        tree = dict(parent.tree) if parent else {}
        for operation in operations:
            _apply(operation, tree)
        tree = dict(sorted(tree.items()))
        lines = (f"{file.blob_id} {path}" for path, file in tree.items())
        told = "\n".join([parent.sha if parent else self.url_path, title, description, *lines])
        commit = Commit(
            sha=git_sha1(told.encode(), kind="commit"),
            title=title,
            description=description,
            author=author,
            date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z"),
            parent=parent.sha if parent else None,
            tree=tree,
        )
        self.history[commit.sha] = commit
        self.refs[new_ref or revision] = commit.sha
        return commit

    def entries(
        self, commit: Commit, *, folder: str = "", recursive: bool = False
    ) -> list[dict[str, Any]]:
        """The files and folders below a folder as the tree API gives them; 404 if it has none."""
        prefix = f"{folder}/" if folder else ""
        below = {path: file for path, file in commit.tree.items() if path.startswith(prefix)}
        if folder and not below:
            raise entry_not_found(folder, commit)
        listed: dict[str, dict[str, Any]] = {}
        for path, file in below.items():
            for parent in reversed(PurePosixPath(path).parents[:-1]):
                if str(parent).startswith(prefix):
                    listed[str(parent)] = folder_entry(str(parent), commit)
            listed[path] = file_entry(path, file)
        depth = prefix.count("/")
        return [
            entry for path, entry in sorted(listed.items()) if recursive or path.count("/") == depth
        ]


def _apply(operation: Addition | Deletion, tree: dict[str, StoredFile]) -> None:
    if isinstance(operation, Addition):
        tree[operation.path] = operation.file
        return
    path = operation.path.rstrip("/")
    gone = (
        [name for name in tree if name.startswith(f"{path}/")]
        if operation.folder
        else [name for name in tree if name == path]
    )
    if not gone:
        kind = "folder" if operation.folder else "file"
        raise HubError(404, f"A {kind} with this name doesn't exist: {path}", code="EntryNotFound")
    for name in gone:
        del tree[name]


def file_entry(path: str, file: StoredFile) -> dict[str, Any]:
    """A file as the tree and paths-info APIs give it."""
    entry: dict[str, Any] = {
        "type": "file",
        "oid": file.blob_id,
        "size": len(file.content),
        "path": path,
    }
    if file.lfs:
        size = len(file.content)
        entry["lfs"] = {"oid": file.etag, "size": size, "pointerSize": len(file.pointer)}
    return entry


def folder_entry(path: str, commit: Commit) -> dict[str, Any]:
    """A folder as the tree and paths-info APIs give it."""
    below = [
        f"{file.blob_id} {name}"
        for name, file in commit.tree.items()
        if name.startswith(f"{path}/")
    ]
    oid = git_sha1("\n".join(below).encode(), kind="tree")
    return {"type": "directory", "oid": oid, "size": 0, "path": path}


def entry_not_found(path: str, commit: Commit) -> HubError:
    """The answer for a file or folder that a revision does not hold."""
    return HubError(404, f"Entry not found: {path}", code="EntryNotFound", sha=commit.sha)
