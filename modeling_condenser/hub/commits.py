"""A folder as one commit of a repository: files in, a plan out, and then all of it or nothing.

What the repository holds already is not sent again, and where nothing differs there is no commit.
One commit is atomic: whatever happens on the way, the repository is as it was or as it should be.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils.sha import git_hash

from modeling_condenser.runs.whole_files import checksum_file

from .errors import HubError, hub_errors
from .fetching import RepositoryType
from .retries import retrying

_MAIN = "main"


@dataclass(frozen=True)
class Target:
    """Where a folder goes.

    Attributes:
        name: `owner/name`.
        repo_type: kind of repository.
        revision: branch to commit to; None for the main one.
        private: whether a new repository is private; None for the account's default.
        create_pr: whether to propose the commit as a pull request.
        token: None for the one that is logged in, or HF_TOKEN.
    """

    name: str
    repo_type: RepositoryType = "model"
    revision: str | None = None
    private: bool | None = None
    create_pr: bool = False
    token: str | None = None

    @property
    def url(self) -> str:
        prefix = {"model": "", "dataset": "datasets/", "space": "spaces/"}[self.repo_type]
        return f"{HfApi().endpoint}/{prefix}{self.name}"


@dataclass(frozen=True)
class CommitPlan:
    """What a commit would do.

    Attributes:
        head: commit that the plan was made against; None where there is no repository or branch.
        exists: whether the repository does.
        changed: path -> file to send, because it is new or differs.
        unchanged: paths that the repository holds as they are.
        removed: paths that go.
    """

    head: str | None
    exists: bool
    changed: dict[str, Path]
    unchanged: list[str]
    removed: list[str]

    @property
    def is_empty(self) -> bool:
        return self.head is not None and not self.changed and not self.removed

    @property
    def n_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.changed.values())


@dataclass(frozen=True)
class Committed:
    """What a commit left: the revision's newest commit, and whether it is a new one."""

    sha: str
    url: str
    is_new: bool


def plan_commit(files: dict[str, Path], target: Target, *, stale: Sequence[str] = ()) -> CommitPlan:
    """Compare files with what a repository holds, by their checksums; changes nothing.

    Args:
        files: path in the repository -> local file.
        target: where they go.
        stale: patterns of paths to remove from the repository where `files` has none of them.

    Raises:
        HubError: the Hub cannot be asked, or the repository is not as private as it is wanted.
    """
    api = HfApi(token=target.token)
    with hub_errors(f"look at {target.name}", token=target.token):
        try:
            info = retrying(lambda: api.repo_info(target.name, repo_type=target.repo_type))
        except RepositoryNotFoundError as error:
            if error.response.status_code != 404 and not _may_create(api):
                raise
            return CommitPlan(None, False, dict(files), [], [])
        if target.private and not info.private:
            raise HubError(
                f"{target.name} exists and is public: make it private in its settings first, or "
                "push without --private."
            )
        try:
            held, head = _read_tree(api, target)
        except RevisionNotFoundError:
            held, head = _read_tree(api, Target(target.name, target.repo_type))[0], None
    changed = {path: file for path, file in files.items() if not _is_same(file, held.get(path))}
    removed = [p for p in held if p not in files and any(fnmatch(p, pattern) for pattern in stale)]
    return CommitPlan(head, True, changed, sorted(files.keys() - changed.keys()), sorted(removed))


def _may_create(api: HfApi) -> bool:
    """Whether the token is good at all, so that "not found" means that there is nothing."""
    retrying(api.whoami)
    return True


def _read_tree(api: HfApi, target: Target) -> tuple[dict[str, RepoFile], str]:
    info = retrying(
        lambda: api.repo_info(target.name, repo_type=target.repo_type, revision=target.revision)
    )
    listed = retrying(
        lambda: list(
            api.list_repo_tree(
                target.name, recursive=True, repo_type=target.repo_type, revision=info.sha
            )
        )
    )
    return {entry.path: entry for entry in listed if isinstance(entry, RepoFile)}, str(info.sha)


def _is_same(file: Path, held: RepoFile | None) -> bool:
    if held is None or held.size != file.stat().st_size:
        return False
    if held.lfs is not None:
        return checksum_file(file) == held.lfs.sha256
    return git_hash(file.read_bytes()) == held.blob_id


def commit(
    files: dict[str, Path],
    target: Target,
    *,
    message: str,
    stale: Sequence[str] = (),
) -> Committed:
    """Make a repository hold these files, in one commit; makes the repository where needed.

    Args:
        files: path in the repository -> local file.
        target: where they go.
        message: of the commit.
        stale: see `plan_commit`.

    Raises:
        HubError: it could not be done; the repository is as it was.
    """
    plan = plan_commit(files, target, stale=stale)
    if plan.is_empty:
        return Committed(str(plan.head), f"{target.url}/commit/{plan.head}", is_new=False)
    api = HfApi(token=target.token)
    with hub_errors(f"push to {target.name}", token=target.token):
        _make_room(api, target, plan)
        try:
            # Asked to come again, the Hub has taken nothing; a broken line is another matter.
            return retrying(lambda: _send(api, target, plan, message), lines=False)
        except HfHubHTTPError:
            raise
        except Exception as error:  # the connection broke: had the Hub taken the commit?
            after = None if target.create_pr else plan_commit(files, target, stale=stale)
            if after is not None and after.is_empty:
                return Committed(str(after.head), f"{target.url}/commit/{after.head}", is_new=True)
            raise HubError(
                f"Cannot push to {target.name}: the connection broke ({type(error).__name__}). The "
                "repository is as it was: give the same command again; what arrived is not sent "
                "twice."
            ) from None


def _make_room(api: HfApi, target: Target, plan: CommitPlan) -> None:
    """Make the repository and the branch where there are none."""
    if not plan.exists:
        retrying(
            lambda: api.create_repo(
                target.name,
                repo_type=target.repo_type,
                private=target.private,
                space_sdk="gradio" if target.repo_type == "space" else None,
                exist_ok=True,
            )
        )
    if target.revision not in (None, _MAIN) and plan.head is None:
        retrying(
            lambda: api.create_branch(
                target.name,
                branch=str(target.revision),
                repo_type=target.repo_type,
                exist_ok=True,
            )
        )


def _send(api: HfApi, target: Target, plan: CommitPlan, message: str) -> Committed:
    operations: list[CommitOperationAdd | CommitOperationDelete] = [
        *(CommitOperationAdd(path, str(file)) for path, file in sorted(plan.changed.items())),
        *(CommitOperationDelete(path) for path in plan.removed),
    ]
    answer = api.create_commit(
        target.name,
        operations,
        commit_message=message,
        repo_type=target.repo_type,
        revision=target.revision,
        create_pr=target.create_pr,
        # So that nothing which others commit meanwhile is undone.
        parent_commit=plan.head,
    )
    return Committed(str(answer.oid), answer.pr_url or answer.commit_url, is_new=True)
