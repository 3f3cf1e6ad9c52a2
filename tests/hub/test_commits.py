"""Folders as commits: what is sent, what is not, and what stays when something breaks."""

import time
from pathlib import Path

import pytest
from huggingface_hub import HfApi, _commit_api

from modeling_condenser.hub import commits, retries
from modeling_condenser.hub.commits import Target, commit, plan_commit
from modeling_condenser.hub.errors import HubError, NotOnHubError
from tests.hub.loopback_hub import LoopbackHub
from tests.hub.uploading import FILES, REPO, WEIGHTS, held

TARGET = Target(REPO)


@pytest.fixture
def files(folder: Path) -> dict[str, Path]:
    return {name: folder / name for name in FILES}


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What would have been waited between tries."""
    waited: list[float] = []
    monkeypatch.setattr(retries, "time", type("Clock", (), {"sleep": waited.append}))
    return waited


def n_commits(hub: LoopbackHub, revision: str = "main") -> int:
    return len(hub.repo(REPO).commits(revision)) - 1  # the Hub makes the first one itself


def test_a_folder_becomes_one_commit_of_a_new_repository(loopback_hub, files):
    plan = plan_commit(files, TARGET)
    assert not plan.exists and plan.changed == files and not loopback_hub.has_repo(REPO)
    assert plan.n_bytes == sum(map(len, FILES.values()))
    done = commit(files, Target(REPO, private=True), message="first")
    assert held(loopback_hub) == FILES
    assert n_commits(loopback_hub) == 1 and loopback_hub.repo(REPO).private
    newest = loopback_hub.repo(REPO).commits("main")[0]
    assert (done.sha, done.is_new, newest.title) == (newest.sha, True, "first")
    assert done.url == f"{loopback_hub.url}/{REPO}/commit/{newest.sha}"


def test_the_same_folder_again_makes_no_commit_and_sends_nothing(loopback_hub, files):
    first = commit(files, TARGET, message="first")
    loopback_hub.requests.clear()
    second = commit(files, TARGET, message="second")
    assert (second.sha, second.is_new) == (first.sha, False)
    assert n_commits(loopback_hub) == 1
    assert {record.method for record in loopback_hub.requests} == {"GET"}


def test_only_what_changed_is_sent_and_stale_weights_go(loopback_hub, files, tmp_path):
    for name in ("model-00001-of-00002.safetensors", "notes.md"):
        files[name] = tmp_path / name
        files[name].write_bytes(b"of before")
    commit(files, TARGET, message="first")
    del files["model-00001-of-00002.safetensors"], files["notes.md"]
    files["config.json"].write_text("{}")
    plan = plan_commit(files, TARGET, stale=["model*.safetensors"])
    assert plan.changed.keys() == {"config.json"}
    assert plan.removed == ["model-00001-of-00002.safetensors"]
    assert set(plan.unchanged) == FILES.keys() - {"config.json"}
    loopback_hub.requests.clear()
    commit(files, TARGET, message="second", stale=["model*.safetensors"])
    assert held(loopback_hub) == {**FILES, "config.json": b"{}", "notes.md": b"of before"}
    assert n_commits(loopback_hub) == 2
    assert not loopback_hub.asked("PUT", "")


def test_a_branch_is_made_and_main_stays(loopback_hub, files):
    commit(files, TARGET, message="first")
    files["config.json"].write_text("{}")
    target = Target(REPO, revision="trial")
    commit(files, target, message="other")
    assert held(loopback_hub)["config.json"] == FILES["config.json"]
    assert held(loopback_hub, "trial")["config.json"] == b"{}"
    assert not commit(files, target, message="again").is_new


def test_a_pull_request_leaves_the_branch_as_it_is(loopback_hub, api, files):
    done = commit(files, Target(REPO, create_pr=True), message="proposed")
    assert held(loopback_hub) == {} and held(loopback_hub, "refs/pr/1") == FILES
    assert "discussions/1" in done.url


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"/api/models/{REPO}$"),
        ("POST", "/api/repos/create"),
        ("POST", "/preupload/"),
        ("PUT", ""),
        ("POST", "/commit/"),
    ],
)
def test_a_busy_hub_is_asked_again(loopback_hub, files, waits, status, method, path):
    loopback_hub.fail_next(method, path, status=status, times=2, headers={"Retry-After": "3"})
    commit(files, TARGET, message="first")
    assert loopback_hub.faults.left() == 0
    assert held(loopback_hub) == FILES and n_commits(loopback_hub) == 1
    # Either by the client, which waits a second more, or here.
    assert waits == [3.0, 3.0] or loopback_hub.clock.waits[:2] == [4.0, 4.0]


def test_a_hub_that_stays_busy_is_given_up_and_nothing_has_changed(loopback_hub, files, waits):
    loopback_hub.fail_next("POST", "/commit/", status=503, times=99)
    with pytest.raises(HubError, match=f"Cannot push to {REPO}: the Hub answered 503, also after"):
        commit(files, TARGET, message="first")
    assert waits == [1, 2, 4, 8] and n_commits(loopback_hub) == 0


@pytest.mark.parametrize("path", ["/preupload/", "/lfs/objects/batch", "/commit/"])
def test_a_line_cut_in_mid_upload_leaves_the_repository_as_it_was(loopback_hub, api, files, path):
    loopback_hub.cut_next("POST", path, times=99, after_bytes=10)
    with pytest.raises(HubError, match="connection broke|connection failed"):
        commit(files, TARGET, message="first")
    assert held(loopback_hub) == {} and n_commits(loopback_hub) == 0
    loopback_hub.faults.clear()
    commit(files, TARGET, message="again")
    assert held(loopback_hub) == FILES and n_commits(loopback_hub) == 1


def test_a_line_cut_in_the_weights_leaves_the_repository_as_it_was(loopback_hub, api, files):
    loopback_hub.cut_next("PUT", "", times=99, after_bytes=1000)
    with pytest.raises(HubError, match="The repository is as it was: give the same command again"):
        commit(files, TARGET, message="first")
    assert held(loopback_hub) == {} and n_commits(loopback_hub) == 0


def test_a_commit_whose_answer_was_lost_is_found_and_not_made_twice(loopback_hub, api, files):
    loopback_hub.cut_next("POST", "/commit/", side="response")
    done = commit(files, TARGET, message="first")
    assert held(loopback_hub) == FILES and n_commits(loopback_hub) == 1
    assert done.sha == loopback_hub.repo(REPO).commits("main")[0].sha


def test_weights_that_were_changed_on_the_way_are_refused(loopback_hub, api, files, monkeypatch):
    """The Hub compares what comes with the checksum that was announced."""
    upload = _commit_api.lfs_upload

    def upload_other(*arguments, **settings):
        files["model.safetensors"].write_bytes(WEIGHTS[:-1] + b"x")
        upload(*arguments, **settings)

    monkeypatch.setattr(_commit_api, "lfs_upload", upload_other)
    with pytest.raises(HubError, match="Cannot push"):
        commit(files, TARGET, message="first")
    assert held(loopback_hub) == {}


def test_what_others_commit_meanwhile_is_not_undone(loopback_hub, api, files, monkeypatch):
    planned = commits.plan_commit

    def plan_and_be_overtaken(*arguments, **settings):
        plan = planned(*arguments, **settings)
        HfApi().upload_file(repo_id=REPO, path_in_repo="theirs.md", path_or_fileobj=b"theirs")
        return plan

    monkeypatch.setattr(commits, "plan_commit", plan_and_be_overtaken)
    with pytest.raises(HubError, match="the repository was changed meanwhile: look at the new"):
        commit(files, TARGET, message="first")
    assert held(loopback_hub) == {"theirs.md": b"theirs"}


def test_a_token_that_may_not_write_is_said_and_never_shown(loopback_hub, api, files):
    reader = loopback_hub.add_token("hf_reader0123456789abcdef", user="other")
    with pytest.raises(HubError, match="the token may not do this") as refused:
        commit(files, Target(REPO, token=reader), message="first")
    unknown = "hf_unknown0123456789abcdef"
    with pytest.raises(HubError, match="the Hub does not accept the token") as wrong:
        commit(files, Target(REPO, token=unknown), message="first")
    for error, token in ((refused, reader), (wrong, unknown)):
        assert token not in "".join(map(str, (error.value, error.value.__cause__)))
        assert error.value.__suppress_context__
    assert held(loopback_hub) == {}


def test_somebody_elses_private_repository_is_not_shown(loopback_hub, api, files):
    loopback_hub.repo(REPO).private = True
    other = loopback_hub.add_token("hf_other0123456789abcdef", user="other")
    with pytest.raises(HubError, match="the token may not do this|there is something of this name"):
        commit(files, Target(REPO, token=other), message="first")
    assert held(loopback_hub) == {}


def test_a_public_repository_is_not_taken_for_a_private_one(loopback_hub, api, files):
    with pytest.raises(HubError, match="exists and is public: make it private in its settings"):
        commit(files, Target(REPO, private=True), message="first")
    assert held(loopback_hub) == {}


def test_a_name_that_is_none_is_refused(loopback_hub, files):
    with pytest.raises(ValueError, match="Cannot look at a/b/c: "):
        commit(files, Target("a/b/c"), message="first")


def test_without_a_hub_the_reason_is_said(loopback_hub, files):
    loopback_hub.close()
    started = time.perf_counter()
    with pytest.raises(HubError, match="the connection failed"):
        commit(files, TARGET, message="first")
    assert time.perf_counter() - started < 10
    assert issubclass(NotOnHubError, HubError)
