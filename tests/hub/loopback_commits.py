"""The loopback Hub's writing routes: preupload, the LFS objects, and the commit itself.

A commit comes as lines of JSON: a header, then one operation a line. It is applied wholly or, where
one line is wrong or an LFS object is missing, not at all.
"""

import base64
import binascii
import json
import re
from fnmatch import fnmatch
from typing import Any
from urllib.parse import unquote

import yaml

from tests.hub.loopback_exchange import Reply, Request, State, json_reply
from tests.hub.loopback_repository import (
    LFS_SUFFIXES,
    Addition,
    Commit,
    Deletion,
    HubError,
    Repository,
    StoredFile,
    sha256_of,
)

LARGEST_BINARY = 10 * 1024
LARGEST_TEXT = 10 * 1024 * 1024


def preupload(state: State, request: Request, *, repo_type: str, repo: str, rev: str) -> Reply:
    """How each file is to be sent, what the revision holds in its place, and whether to send it."""
    proposal = request.flag("create_pr")
    repository = state.writable(request.account, repo_type, repo, by_pull_request=proposal)
    tree = repository.resolve(unquote(rev)).tree
    told = request.json()
    held = tree[".gitignore"].content.decode() if ".gitignore" in tree else ""
    patterns = told.get("gitIgnore", held).split()
    return json_reply(
        {
            "files": [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if _goes_to_lfs(file) else "regular",
                    "shouldIgnore": any(_ignored(file["path"], p) for p in patterns),
                    "oid": tree[file["path"]].etag if file["path"] in tree else None,
                }
                for file in told["files"]
            ]
        }
    )


def _goes_to_lfs(file: dict[str, Any]) -> bool:
    sample = base64.b64decode(file["sample"])
    try:
        sample.decode()
        binary = b"\0" in sample
    except UnicodeDecodeError as error:
        # A character may be cut at the sample's end.
        binary = error.start < len(sample) - 3
    limit = LARGEST_BINARY if binary else LARGEST_TEXT
    return file["path"].endswith(LFS_SUFFIXES) or file["size"] > limit


def _ignored(path: str, pattern: str) -> bool:
    name = pattern.strip("/")
    parts = path.split("/")
    return fnmatch(path, name) or any(fnmatch(part, name) for part in parts)


def lfs_batch(state: State, request: Request, *, repo_type: str, repo: str) -> Reply:
    """Where to put the objects that the repository lacks; nothing to do for those it has."""
    repository = state.writable(request.account, repo_type, repo, by_pull_request=True)
    told = request.json()
    if told.get("operation") != "upload" or "basic" not in told.get("transfers", ["basic"]):
        raise HubError(422, f"Only basic uploads are known, not {told.get('operation')!r}")
    objects = []
    for wanted in told["objects"]:
        oid, size = wanted["oid"], wanted["size"]
        answer = {"oid": oid, "size": size}
        if oid not in repository.lfs_objects:
            repository.expected_objects[oid] = size
            put = f"{state.url}/lfs-storage/{repo_type}s/{repo}/{oid}"
            verify = f"{state.url}/{repository.url_path}.git/info/lfs/verify"
            answer["actions"] = {"upload": {"href": put}, "verify": {"href": verify}}
        objects.append(answer)
    return json_reply({"transfer": "basic", "objects": objects})


def lfs_put(state: State, request: Request, *, repo_type: str, repo: str, oid: str) -> Reply:
    """Takes an object in, if it was announced and its bytes are what its name says."""
    repository = state.repositories.get((repo_type, repo))
    if repository is None or oid not in repository.expected_objects:
        raise HubError(403, f"No upload of {oid} was agreed")
    size = repository.expected_objects[oid]
    if len(request.body) != size or sha256_of(request.body) != oid:
        raise HubError(
            400,
            f"The object should be {size} bytes of SHA-256 {oid}, but {len(request.body)} bytes of "
            f"SHA-256 {sha256_of(request.body)} came",
        )
    repository.lfs_objects[oid] = request.body
    return Reply(headers={"ETag": f'"{oid}"'})


def lfs_verify(state: State, request: Request, *, repo_type: str, repo: str) -> Reply:
    """Says whether an object arrived."""
    repository = state.writable(request.account, repo_type, repo, by_pull_request=True)
    told = request.json()
    held = repository.lfs_objects.get(told["oid"])
    if held is None or len(held) != told["size"]:
        raise HubError(404, f"The object {told['oid']} of {told['size']} bytes is not here")
    return json_reply({"oid": told["oid"], "size": told["size"]})


def commit(state: State, request: Request, *, repo_type: str, repo: str, rev: str) -> Reply:
    """Applies a commit to a branch, or as a pull request from it."""
    proposal = request.flag("create_pr")
    repository = state.writable(request.account, repo_type, repo, by_pull_request=proposal)
    assert request.account is not None
    revision = unquote(rev)
    present = repository.resolve(revision)
    if not proposal and revision not in repository.refs:
        raise HubError(400, f"A commit goes to a branch, and {revision} is none")
    header, operations = _read_lines(request.body, repository)
    _check_parent(header, present, repository, revision)
    new_ref = repository.new_pull_request() if proposal else None
    made = repository.commit(
        operations,
        title=header["summary"],
        description=header.get("description", ""),
        author=request.account.user,
        revision=revision,
        new_ref=new_ref,
    )
    page = f"{state.url}/{repository.url_path}"
    told = {"success": True, "commitOid": made.sha, "commitUrl": f"{page}/commit/{made.sha}"}
    if new_ref is not None:
        told["pullRequestUrl"] = f"{page}/discussions/{new_ref.rsplit('/')[-1]}"
    return json_reply(told)


def _check_parent(
    header: dict[str, Any], present: Commit, repository: Repository, revision: str
) -> None:
    expected = header.get("parentCommit")
    if expected is None:
        return
    if repository.resolve(expected).sha != present.sha:
        raise HubError(
            412,
            f"A commit has happened since. Please refresh and try again. ({revision} is at "
            f"{present.sha}, not at {expected})",
        )


def _read_lines(
    body: bytes, repository: Repository
) -> tuple[dict[str, Any], list[Addition | Deletion]]:
    header: dict[str, Any] | None = None
    operations: list[Addition | Deletion] = []
    for line in body.splitlines():
        try:
            told = json.loads(line)
            key, value = told["key"], told["value"]
            if key == "header":
                header = value
            else:
                operations.append(_operation(key, value, repository))
        except (ValueError, KeyError, TypeError) as error:
            raise HubError(400, f"A line of the commit is not understood: {error!r}") from error
    if header is None or not header.get("summary"):
        raise HubError(400, "The commit has no header line with a summary")
    if not operations:
        raise HubError(400, "The commit has no operations")
    return header, operations


def _operation(key: str, value: dict[str, Any], repository: Repository) -> Addition | Deletion:
    path = value["path"]
    if not path or path.startswith("/") or {"", ".", ".."} & set(path.rstrip("/").split("/")):
        raise HubError(400, f"Not a path in a repository: {path!r}")
    match key:
        case "file":
            content = _content(value)
            if path == "README.md":
                check_card(content.decode())
            return Addition(path, StoredFile(content, lfs=False))
        case "lfsFile":
            held = repository.lfs_objects.get(value["oid"])
            if value.get("algo") != "sha256" or held is None:
                raise HubError(
                    400, f"Your push was rejected: the LFS object {value['oid']} is missing"
                )
            return Addition(path, StoredFile(held, lfs=True))
        case "deletedFile" | "deletedFolder":
            return Deletion(path, folder=key == "deletedFolder")
    raise HubError(400, f"Unknown operation in a commit: {key!r}")


def _content(value: dict[str, Any]) -> bytes:
    if value.get("encoding", "utf-8") != "base64":
        return str(value["content"]).encode()
    try:
        return base64.b64decode(value["content"], validate=True)
    except binascii.Error as error:
        raise HubError(400, f"{value['path']} is not in base64: {error}") from error


def card_metadata(card: str) -> dict[str, Any]:
    """The YAML block that a README.md opens with, or nothing; 400 if it is not a mapping."""
    block = re.match(r"\s*---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(\r?\n|$)", card, re.DOTALL)
    if block is None:
        return {}
    try:
        metadata = yaml.safe_load(block[1])
    except yaml.YAMLError as error:
        raise HubError(400, f"Invalid metadata in README.md: {error}") from error
    if metadata is not None and not isinstance(metadata, dict):
        raise HubError(400, "Invalid metadata in README.md: it is not a mapping")
    return metadata or {}


def check_card(card: str) -> list[str]:
    """What is amiss with a README.md but may stay; 400 for what may not."""
    return [] if card_metadata(card) else ["empty or missing yaml metadata in repo card"]


def validate_yaml(state: State, request: Request) -> Reply:
    """The check of a README.md that the client asks for before it uploads anything."""
    try:
        amiss = check_card(request.json()["content"])
    except HubError as error:
        told = {"errors": [{"message": error.message}], "warnings": []}
        return json_reply(told, status=error.status)
    return json_reply({"errors": [], "warnings": [{"message": message} for message in amiss]})
