"""Which route of the loopback Hub answers which request, and the routes that make and end things.

The paths, headers and JSON forms are those that huggingface_hub's `hf_api`, `_commit_api`, `lfs`
and `file_download` send and read.
"""

import re
from collections.abc import Callable
from typing import cast, get_args
from urllib.parse import unquote

from tests.hub import loopback_commits as writing
from tests.hub import loopback_reading as reading
from tests.hub.loopback_exchange import NO_CREDENTIALS, Reply, Request, State, json_reply
from tests.hub.loopback_repository import HubError, Repository, RepoType


def create_repository(state: State, request: Request) -> Reply:
    """Makes a repository in the account's own namespace; 409 if it is there."""
    if request.account is None:
        raise HubError(401, NO_CREDENTIALS)
    told = request.json()
    owner = told.get("organization") or request.account.user
    repo_type = told.get("type") or "model"
    repo_id = f"{owner}/{told['name']}"
    if not request.account.write or owner != request.account.user:
        raise HubError(
            403,
            f'You don\'t have the rights to create a {repo_type} under the namespace "{owner}"',
        )
    url = f"{state.url}/{'' if repo_type == 'model' else repo_type + 's/'}{repo_id}"
    if (repo_type, repo_id) in state.repositories:
        message = f"You already created this {repo_type} repo"
        return json_reply({"error": message, "url": url, "name": repo_id}, status=409)
    if repo_type not in get_args(RepoType):
        raise HubError(400, f"Not a type of repository: {repo_type!r}")
    private = told.get("visibility") == "private" or bool(told.get("private"))
    state.repositories[repo_type, repo_id] = Repository(
        repo_id, cast(RepoType, repo_type), private=private, sdk=told.get("sdk")
    )
    return json_reply({"url": url, "name": repo_id, "id": repo_id})


def delete_repository(state: State, request: Request) -> Reply:
    """Ends a repository."""
    told = request.json()
    owner = told.get("organization") or (request.account.user if request.account else "")
    repo_type, repo_id = told.get("type") or "model", f"{owner}/{told['name']}"
    state.writable(request.account, repo_type, repo_id)
    del state.repositories[repo_type, repo_id]
    return Reply()


def change_settings(state: State, request: Request, *, repo_type: str, repo: str) -> Reply:
    """Makes a repository private, public or gated."""
    repository = state.writable(request.account, repo_type, repo)
    told = request.json()
    if "visibility" in told or "private" in told:
        repository.private = told.get("visibility") == "private" or bool(told.get("private"))
    if "gated" in told:
        repository.gated = bool(told["gated"])
    return json_reply({"private": repository.private, "gated": repository.gated})


def create_branch(
    state: State, request: Request, *, repo_type: str, repo: str, branch: str
) -> Reply:
    """Starts a branch at a revision; 409 if it is there."""
    repository = state.writable(request.account, repo_type, repo)
    name = unquote(branch)
    if name in repository.refs:
        raise HubError(409, f"Reference already exists: {name}")
    start = repository.resolve(request.json().get("startingPoint") or "main")
    repository.refs[name] = start.sha
    return Reply(201)


def delete_branch(
    state: State, request: Request, *, repo_type: str, repo: str, branch: str
) -> Reply:
    """Ends a branch other than main; its commits stay."""
    repository = state.writable(request.account, repo_type, repo)
    name = unquote(branch)
    if name == "main":
        raise HubError(403, "The branch main cannot be deleted")
    repository.resolve(name)
    del repository.refs[name]
    return Reply()


def create_tag(state: State, request: Request, *, repo_type: str, repo: str, rev: str) -> Reply:
    """Tags a revision; 409 if the tag is there."""
    repository = state.writable(request.account, repo_type, repo)
    tag = request.json()["tag"]
    if tag in repository.tags:
        raise HubError(409, f"Tag already exists: {tag}")
    repository.tags[tag] = repository.resolve(unquote(rev)).sha
    return Reply(201)


def delete_tag(state: State, request: Request, *, repo_type: str, repo: str, rev: str) -> Reply:
    """Ends a tag."""
    repository = state.writable(request.account, repo_type, repo)
    if repository.tags.pop(unquote(rev), None) is None:
        raise HubError(404, f"Invalid rev id: {unquote(rev)}", code="RevisionNotFound")
    return Reply()


_NAME = r"(?P<repo>[^/]+(?:/[^/]+)?)"
_API = rf"/api/(?P<types>models|datasets|spaces)/{_NAME}"
_PAGE = rf"/(?:(?P<types>datasets|spaces)/)?{_NAME}"
_STORAGE = rf"/lfs-storage/(?P<types>models|datasets|spaces)/{_NAME}"

# The first that fits answers: method, path, route.
ROUTES: tuple[tuple[str, str, Callable[..., Reply]], ...] = (
    ("GET", r"/api/whoami-v2", reading.whoami),
    ("POST", r"/api/validate-yaml", writing.validate_yaml),
    ("POST", r"/api/repos/create", create_repository),
    ("DELETE", r"/api/repos/delete", delete_repository),
    ("PUT", rf"{_API}/settings", change_settings),
    ("POST", rf"{_API}/preupload/(?P<rev>[^/]+)", writing.preupload),
    ("POST", rf"{_API}/commit/(?P<rev>[^/]+)", writing.commit),
    ("POST", rf"{_API}/paths-info/(?P<rev>[^/]+)", reading.paths_info),
    ("POST", rf"{_API}/branch/(?P<branch>[^/]+)", create_branch),
    ("DELETE", rf"{_API}/branch/(?P<branch>[^/]+)", delete_branch),
    ("POST", rf"{_API}/tag/(?P<rev>[^/]+)", create_tag),
    ("DELETE", rf"{_API}/tag/(?P<rev>[^/]+)", delete_tag),
    ("GET", rf"{_API}/tree/(?P<rev>[^/]+)(?:/(?P<path>.*))?", reading.tree),
    ("GET", rf"{_API}/commits/(?P<rev>[^/]+)", reading.commits),
    ("GET", rf"{_API}/refs", reading.refs),
    ("GET", rf"{_API}/auth-check", reading.auth_check),
    ("GET", rf"{_API}/discussions", reading.discussions),
    ("GET", rf"{_API}/revision/(?P<rev>[^/]+)", reading.info),
    ("GET", _API, reading.info),
    ("POST", rf"{_PAGE}\.git/info/lfs/objects/batch", writing.lfs_batch),
    ("POST", rf"{_PAGE}\.git/info/lfs/verify", writing.lfs_verify),
    ("PUT", rf"{_STORAGE}/(?P<oid>[0-9a-f]{{64}})", writing.lfs_put),
    ("GET", rf"{_PAGE}/resolve/(?P<rev>[^/]+)/(?P<path>.+)", reading.resolve),
)
_COMPILED = tuple((method, re.compile(path), route) for method, path, route in ROUTES)


def answer(state: State, request: Request) -> Reply:
    """Lets the route that fits answer; 404 where none does. HEAD is answered as GET is."""
    method = "GET" if request.method == "HEAD" else request.method
    for route_method, pattern, route in _COMPILED:
        match = pattern.fullmatch(request.path)
        if match is None or method != route_method:
            continue
        named = {name: value for name, value in match.groupdict().items() if value is not None}
        types = named.pop("types", "models")
        if "repo" in named:
            named["repo_type"] = types.removesuffix("s")
        with state.lock:
            return route(state, request, **named)
    raise HubError(404, f"The loopback Hub has no route for {request.method} {request.path}")
