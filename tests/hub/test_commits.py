"""A folder becomes one commit of a repository."""

from pathlib import Path

import pytest

from modeling_condenser.hub.commits import Target, commit_folder
from modeling_condenser.hub.errors import HubError

NAME = "owner/encoder"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "to_upload"
    (root / "1_Pooling").mkdir(parents=True)
    (root / "README.md").write_text("---\nlicense: mit\n---\n# An encoder\n")
    (root / "model.safetensors").write_bytes(bytes(range(256)) * 20)
    (root / "1_Pooling" / "config.json").symlink_to(root / "README.md")
    return root


def held(hub, revision: str = "main") -> set[str]:
    return hub.repo(NAME).files(revision).keys() - {".gitattributes"}


def test_one_commit_of_a_new_private_repository_and_none_for_the_same_files(loopback_hub, folder):
    done = commit_folder(folder, Target(NAME, private=True), message="First")
    assert done.is_new and loopback_hub.repo(NAME).private
    assert held(loopback_hub) == {"README.md", "model.safetensors", "1_Pooling/config.json"}
    assert loopback_hub.repo(NAME).files()["1_Pooling/config.json"].startswith(b"---")
    newest, *_ = loopback_hub.repo(NAME).commits()
    assert (newest.title, newest.sha) == ("First", done.sha)
    again = commit_folder(folder, Target(NAME, private=True), message="Again")
    assert (again.is_new, again.sha) == (False, done.sha)
    assert len(loopback_hub.repo(NAME).commits()) == 2  # the Hub's own first one, and ours


def test_weights_of_an_earlier_commit_are_deleted_in_the_same_commit(loopback_hub, folder):
    commit_folder(folder, Target(NAME), message="First")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    commit_folder(folder, Target(NAME), message="Second")
    assert "model.safetensors" not in held(loopback_hub)
    assert "model-00001-of-00002.safetensors" in held(loopback_hub)
    assert [c.title for c in loopback_hub.repo(NAME).commits()][:2] == ["Second", "First"]


def test_a_branch_and_a_pull_request_leave_main_unchanged(loopback_hub, folder):
    commit_folder(folder, Target(NAME, revision="trial"), message="Trial")
    assert held(loopback_hub) == set() and "README.md" in held(loopback_hub, "trial")
    done = commit_folder(folder, Target(NAME, create_pr=True), message="Proposed")
    assert held(loopback_hub) == set() and done.url.endswith("discussions/1")


def test_a_commit_that_fails_leaves_the_repository_unchanged(loopback_hub, folder):
    loopback_hub.fail_next("POST", "/commit/", status=400)
    with pytest.raises(HubError, match="Cannot push to owner/encoder: .*status 400"):
        commit_folder(folder, Target(NAME), message="First")
    assert held(loopback_hub) == set()


def test_a_public_repository_is_refused_where_a_private_one_is_asked_for(loopback_hub, folder):
    commit_folder(folder, Target(NAME), message="First")
    with pytest.raises(HubError, match="exists and is public"):
        commit_folder(folder, Target(NAME, private=True), message="Second")


def test_a_wrong_token_is_reported_and_never_shown(loopback_hub, folder):
    token = "hf_" + "wrongWRONG0123456789"
    with pytest.raises(HubError, match="log in with") as error:
        commit_folder(folder, Target(NAME, token=token), message="First")
    assert token not in str(error.value) and error.value.__cause__ is None
    with pytest.raises(ValueError, match="Cannot push to"):
        commit_folder(folder, Target("not/a/name"), message="First")
