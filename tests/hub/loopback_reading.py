"""The loopback Hub's reading routes: what a repository is, what it lists, and its files' bytes."""

import re
from typing import Any
from urllib.parse import quote, unquote, urlencode

from tests.hub.loopback_commits import card_metadata
from tests.hub.loopback_exchange import NO_CREDENTIALS, Reply, Request, State, json_reply
from tests.hub.loopback_repository import (
    Commit,
    HubError,
    Repository,
    StoredFile,
    entry_not_found,
    file_entry,
    folder_entry,
)

PAGE = 1000


def whoami(state: State, request: Request) -> Reply:
    """Whose the token is, and what it may do."""
    if request.account is None:
        raise HubError(401, NO_CREDENTIALS)
    user = request.account.user
    role = "write" if request.account.write else "read"
    token = {"type": "access_token", "accessToken": {"displayName": "loopback", "role": role}}
    return json_reply(
        {"type": "user", "id": user, "name": user, "fullname": user, "orgs": [], "auth": token}
    )


def info(state: State, request: Request, *, repo_type: str, repo: str, rev: str = "main") -> Reply:
    """A repository at a revision: its sha, its files, the metadata of its card."""
    repository = state.readable(request.account, repo_type, repo)
    commit = repository.resolve(unquote(rev))
    card = _card(commit)
    told: dict[str, Any] = {
        "_id": repository.commits()[-1].sha[:24],
        "id": repo,
        "author": repository.owner,
        "sha": commit.sha,
        "lastModified": commit.date,
        "createdAt": repository.commits()[-1].date,
        "private": repository.private,
        "gated": "auto" if repository.gated else False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "tags": _tags(card),
        "siblings": [_sibling(request, path, file) for path, file in commit.tree.items()],
        "usedStorage": sum(len(file.content) for file in commit.tree.values()),
    }
    if card:
        told["cardData"] = card
    if repo_type == "model":
        told["modelId"] = repo
        told |= {key: card[key] for key in ("library_name", "pipeline_tag") if key in card}
    if repo_type == "space":
        told["sdk"] = repository.sdk
    return json_reply(told)


def _sibling(request: Request, path: str, file: StoredFile) -> dict[str, Any]:
    sibling: dict[str, Any] = {"rfilename": path}
    if request.flag("blobs"):
        size = len(file.content)
        sibling |= {"blobId": file.blob_id, "size": size}
        if file.lfs:
            sibling["lfs"] = {"sha256": file.etag, "size": size, "pointerSize": len(file.pointer)}
    return sibling


def _card(commit: Commit) -> dict[str, Any]:
    file = commit.tree.get("README.md")
    return card_metadata(file.content.decode()) if file else {}


def _tags(card: dict[str, Any]) -> list[str]:
    tags = [str(tag) for tag in card.get("tags") or []]
    for key in ("license", "base_model", "datasets", "language"):
        values = card.get(key) or []
        prefix = {"datasets": "dataset:", "language": ""}.get(key, f"{key}:")
        tags += [f"{prefix}{value}" for value in (values if isinstance(values, list) else [values])]
    return tags


def auth_check(state: State, request: Request, *, repo_type: str, repo: str) -> Reply:
    """Says whether the account may download from the repository."""
    _check_gate(state.readable(request.account, repo_type, repo), request)
    return json_reply({})


def _check_gate(repository: Repository, request: Request) -> None:
    own = request.account is not None and request.account.user == repository.owner
    if repository.gated and not own:
        status = 401 if request.account is None else 403
        raise HubError(status, f"Access to {repository.repo_id} is restricted", code="GatedRepo")


def tree(
    state: State, request: Request, *, repo_type: str, repo: str, rev: str, path: str = ""
) -> Reply:
    """The files and folders of a revision, page by page."""
    repository = state.readable(request.account, repo_type, repo)
    commit = repository.resolve(unquote(rev))
    folder = unquote(path).strip("/")
    entries = repository.entries(commit, folder=folder, recursive=request.flag("recursive"))
    if request.flag("expand"):
        entries = [_expanded(entry, repository, commit) for entry in entries]
    return _page(state, request, entries)


def _page(state: State, request: Request, entries: list[Any]) -> Reply:
    size = int(request.query.get("limit", [str(PAGE)])[0])
    start = int(request.query.get("cursor", ["0"])[0])
    headers = {}
    if start + size < len(entries):
        query = {**request.query, "cursor": [str(start + size)]}
        url = f"{state.url}{request.path}?{urlencode(query, doseq=True)}"
        headers["Link"] = f'<{url}>; rel="next"'
    return json_reply(entries[start : start + size], headers=headers)


def _expanded(entry: dict[str, Any], repository: Repository, commit: Commit) -> dict[str, Any]:
    """An entry with the last commit that changed it."""
    line = repository.commits(commit.sha)
    path = entry["path"]

    def below(one: Commit) -> dict[str, StoredFile]:
        return {
            name: file
            for name, file in one.tree.items()
            if name == path or name.startswith(f"{path}/")
        }

    last = commit
    for older in line[1:]:
        if below(older) != below(last):
            break
        last = older
    told = {"id": last.sha, "title": last.title, "date": last.date}
    scan = {"status": "safe", "avScan": None, "pickleImportScan": None}
    return {**entry, "lastCommit": told, "securityFileStatus": scan}


def paths_info(state: State, request: Request, *, repo_type: str, repo: str, rev: str) -> Reply:
    """Those of the paths asked for that a revision holds."""
    repository = state.readable(request.account, repo_type, repo)
    commit = repository.resolve(unquote(rev))
    form = request.form()
    entries = []
    for path in (name.strip("/") for name in form.get("paths", [])):
        if path in commit.tree:
            entries.append(file_entry(path, commit.tree[path]))
        elif any(name.startswith(f"{path}/") for name in commit.tree):
            entries.append(folder_entry(path, commit))
    if form.get("expand", ["false"])[0].lower() == "true":
        entries = [_expanded(entry, repository, commit) for entry in entries]
    return json_reply(entries)


def refs(state: State, request: Request, *, repo_type: str, repo: str) -> Reply:
    """The branches, tags and, if asked for, pull requests."""
    repository = state.readable(request.account, repo_type, repo)
    told: dict[str, Any] = {"branches": [], "converts": [], "tags": []}
    proposals = []
    for name, sha in repository.refs.items():
        if name.startswith("refs/pr/"):
            number = name.removeprefix("refs/pr/")
            proposals.append({"name": number, "ref": name, "targetCommit": sha})
        else:
            branch = {"name": name, "ref": f"refs/heads/{name}", "targetCommit": sha}
            told["branches"].append(branch)
    for name, sha in repository.tags.items():
        told["tags"].append({"name": name, "ref": f"refs/tags/{name}", "targetCommit": sha})
    if request.flag("include_prs"):
        told["pullRequests"] = proposals
    return json_reply(told)


def commits(state: State, request: Request, *, repo_type: str, repo: str, rev: str) -> Reply:
    """The commits that led to a revision, the newest first."""
    repository = state.readable(request.account, repo_type, repo)
    told = [
        {
            "id": commit.sha,
            "title": commit.title,
            "message": commit.description,
            "authors": [{"user": commit.author}],
            "date": commit.date,
        }
        for commit in repository.commits(unquote(rev))
    ]
    return _page(state, request, told)


def discussions(state: State, request: Request, *, repo_type: str, repo: str) -> Reply:
    """The pull requests, none of which is ever closed here."""
    repository = state.readable(request.account, repo_type, repo)
    told = [
        {
            "num": int(name.rsplit("/")[-1]),
            "title": repository.history[sha].title,
            "status": "open",
            "author": {"name": repository.history[sha].author},
            "isPullRequest": True,
            "createdAt": repository.history[sha].date,
            "repo": {"name": repo, "type": repo_type},
        }
        for name, sha in repository.refs.items()
        if name.startswith("refs/pr/")
    ]
    return json_reply({"discussions": told, "count": len(told), "start": 0})


def resolve(
    state: State, request: Request, *, repo_type: str, repo: str, rev: str, path: str
) -> Reply:
    """A file's bytes, or a part of them, with the headers that a download is checked against."""
    repository = state.readable(request.account, repo_type, repo)
    _check_gate(repository, request)
    commit = repository.resolve(unquote(rev))
    name = unquote(path)
    file = commit.tree.get(name)
    if file is None:
        raise entry_not_found(name, commit)
    headers = {
        "ETag": f'"{file.etag}"',
        "X-Repo-Commit": commit.sha,
        "Accept-Ranges": "bytes",
        "Content-Type": "application/octet-stream" if file.lfs else "text/plain; charset=utf-8",
        "Content-Disposition": f"inline; filename*=UTF-8''{quote(name.rsplit('/')[-1])}",
    }
    if file.lfs:
        headers["X-Linked-Etag"] = f'"{file.etag}"'
        headers["X-Linked-Size"] = str(len(file.content))
    return _ranged(request.headers.get("range"), file.content, headers)


def _ranged(wanted: str | None, content: bytes, headers: dict[str, str]) -> Reply:
    """All bytes, or those of a header like `bytes=5-9`, `bytes=5-` or `bytes=-5` (RFC 9110, 14)."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", wanted or "")
    if match is None or not any(match.groups()):
        return Reply(200, content, headers)
    size = len(content)
    first, last = match.groups()
    start = int(first) if first else max(0, size - int(last))
    end = min(int(last), size - 1) if first and last else size - 1
    if start > end:
        raise HubError(416, f"The range {wanted} is not within {size} bytes")
    headers = {**headers, "Content-Range": f"bytes {start}-{end}/{size}"}
    return Reply(206, content[start : end + 1], headers)
