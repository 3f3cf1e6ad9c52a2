"""Repositories in the cache: whole, of the revision that was asked for, and as the Hub has them."""

from pathlib import Path

import pytest
from huggingface_hub import HfApi

from modeling_condenser.hub import retries
from modeling_condenser.hub.errors import HubError, NotOnHubError
from modeling_condenser.hub.fetching import HubName, fetch
from tests.hub.loopback_hub import LoopbackHub
from tests.hub.uploading import FILES, REPO, read


@pytest.fixture
def uploaded(loopback_hub: LoopbackHub, api: HfApi, folder: Path) -> str:
    """The sha of a repository's first commit with files."""
    return str(api.upload_folder(repo_id=REPO, folder_path=folder).oid)


def test_names_with_and_without_a_revision():
    assert HubName.parse("owner/name") == ("owner/name", None)
    assert HubName.parse("owner/name@refs/pr/1") == ("owner/name", "refs/pr/1")


def test_all_of_it_or_what_is_wanted(uploaded):
    assert read(fetch(REPO, only=["*.json"], without=["1_*/*"])).keys() == {"config.json"}
    assert read(fetch(REPO)) == FILES


def test_a_revision_is_that_commit(uploaded, api):
    api.upload_file(repo_id=REPO, path_in_repo="config.json", path_or_fileobj=b"{}")
    assert read(fetch(f"{REPO}@{uploaded}"))["config.json"] == FILES["config.json"]
    assert read(fetch(REPO))["config.json"] == b"{}"


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_file_that_differs_from_its_checksum_is_refused_and_removed(loopback_hub, uploaded, file):
    loopback_hub.corrupt_next(f"/resolve/[^/]*/{file}")
    with pytest.raises(HubError, match=f"Cannot use {file} of {REPO}: what came differs from the"):
        fetch(REPO)
    assert loopback_hub.faults.left() == 0
    assert read(fetch(REPO)) == FILES  # nothing wrong was kept


def test_what_is_in_the_cache_is_found_without_the_hub(loopback_hub, uploaded):
    folder = fetch(REPO)
    loopback_hub.close()
    assert fetch(REPO) == folder


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/revision/"), ("HEAD", "/resolve/"), ("GET", "/resolve/")]
)
@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_hub_is_asked_again(loopback_hub, uploaded, monkeypatch, method, path, status):
    monkeypatch.setattr(retries, "time", type("Clock", (), {"sleep": lambda seconds: None}))
    loopback_hub.fail_next(method, path, status=status, times=2)
    assert read(fetch(REPO)) == FILES
    assert loopback_hub.faults.left() == 0


def test_a_download_that_was_cut_goes_on(loopback_hub, uploaded):
    loopback_hub.cut_next("GET", "/resolve/.*safetensors", after_bytes=1000)
    assert read(fetch(REPO)) == FILES
    assert loopback_hub.faults.left() == 0


def test_a_missing_repository_revision_or_token_is_said(loopback_hub, uploaded, monkeypatch):
    with pytest.raises(NotOnHubError, match="Cannot fetch owner/absent: the Hub has no repository"):
        fetch("owner/absent")
    with pytest.raises(NotOnHubError, match="it has no such revision: expected one of its branch"):
        fetch(f"{REPO}@v9")
    with pytest.raises(ValueError, match="Cannot fetch not a name: "):
        fetch("not a name")
    loopback_hub.repo(REPO).private = True
    wrong = "hf_wrong0123456789abcdefghij"
    monkeypatch.setenv("HF_TOKEN", wrong)
    with pytest.raises(HubError, match="token") as error:
        fetch(REPO)
    assert wrong not in str(error.value)
    loopback_hub.add_token(wrong, user="other")
    with pytest.raises(NotOnHubError, match="it is private and the token may not see it"):
        fetch(REPO)


def test_a_gated_repository_tells_what_to_do(loopback_hub, uploaded, monkeypatch):
    loopback_hub.repo(REPO).gated = True
    monkeypatch.setenv("HF_TOKEN", loopback_hub.add_token("hf_other", user="other"))
    with pytest.raises(NotOnHubError, match="access has to be asked for on its page first"):
        fetch(REPO)
