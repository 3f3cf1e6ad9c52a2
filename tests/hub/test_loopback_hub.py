"""The loopback Hub against the real client: what it writes is what it reads, and who may do so.

Expected values are made with hashlib and git itself, or are the bytes that were sent.
"""

import hashlib
import json
import subprocess
from pathlib import Path

import datasets
import evaluate
import httpx2
import pytest
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationCopy,
    CommitOperationDelete,
    HfApi,
    ModelCard,
    constants,
    hf_hub_download,
    snapshot_download,
)
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import get_session

from tests.hub.loopback_client import point_this_process_at
from tests.hub.loopback_hub import LoopbackHub
from tests.hub.uploading import FILES, REPO, WEIGHTS, held, read


class TestCommits:
    def test_an_uploaded_folder_comes_back_byte_by_byte(self, loopback_hub, api, folder):
        commit = api.upload_folder(repo_id=REPO, folder_path=folder, commit_message="First")
        assert held(loopback_hub) == FILES
        downloaded = Path(snapshot_download(REPO))
        assert downloaded.name == commit.oid == loopback_hub.repo(REPO).commits()[0].sha
        assert read(downloaded) == FILES
        assert [one.title for one in api.list_repo_commits(REPO)] == ["First", "initial commit"]

    def test_hashes_and_sizes_are_those_of_git_and_of_lfs(self, loopback_hub, api, folder):
        api.upload_folder(repo_id=REPO, folder_path=folder)
        git = subprocess.run(
            ["git", "hash-object", "config.json"], cwd=folder, capture_output=True, check=True
        ).stdout.decode()
        config, weights = api.get_paths_info(REPO, ["config.json", "model.safetensors", "none"])
        assert config.blob_id == git.strip() and config.lfs is None
        assert weights.lfs.sha256 == hashlib.sha256(WEIGHTS).hexdigest()
        assert weights.size == weights.lfs.size == len(WEIGHTS)
        assert not api.verify_repo_checksums(REPO, local_dir=folder).mismatches

    def test_small_binary_and_text_files_go_without_lfs_and_large_binary_ones_with_it(
        self, loopback_hub, api
    ):
        contents = {
            "small.dat": b"\0" * 10_240,
            "large.dat": b"\0" * 10_241,
            "text.txt": "é".encode() * 20_000,
            "tiny.png": b"png",
        }
        operations = [CommitOperationAdd(path, content) for path, content in contents.items()]
        api.create_commit(REPO, operations, commit_message="Files")
        found = {file.path: file.lfs is not None for file in api.list_repo_tree(REPO)}
        del found[".gitattributes"]
        expected = {"small.dat": False, "large.dat": True, "text.txt": False, "tiny.png": True}
        assert found == expected

    def test_the_same_folder_again_makes_no_commit(self, loopback_hub, api, folder):
        first = api.upload_folder(repo_id=REPO, folder_path=folder)
        again = api.upload_folder(repo_id=REPO, folder_path=folder)
        assert again.oid == first.oid
        assert len(loopback_hub.asked("POST", "/commit/")) == 1
        assert len(loopback_hub.asked("PUT", "/lfs-storage/")) == 1

    def test_a_changed_file_alone_is_sent_and_old_revisions_keep_the_old_one(
        self, loopback_hub, api, folder
    ):
        first = api.upload_folder(repo_id=REPO, folder_path=folder)
        (folder / "config.json").write_bytes(b'{"hidden_size": 64}\n')
        api.upload_folder(repo_id=REPO, folder_path=folder)
        assert len(loopback_hub.asked("PUT", "/lfs-storage/")) == 1
        old = hf_hub_download(REPO, "config.json", revision=first.oid)
        new = hf_hub_download(REPO, "config.json")
        assert Path(old).read_bytes() == FILES["config.json"]
        assert Path(new).read_bytes() == b'{"hidden_size": 64}\n'

    def test_files_and_folders_are_deleted(self, loopback_hub, api, folder):
        api.upload_folder(repo_id=REPO, folder_path=folder)
        api.delete_file("empty.txt", REPO)
        api.delete_folder("1_Pooling", REPO)
        assert sorted(held(loopback_hub)) == ["README.md", "config.json", "model.safetensors"]
        with pytest.raises(EntryNotFoundError, match="A file with this name doesn't exist"):
            api.delete_file("empty.txt", REPO)

    def test_upload_folder_deletes_what_its_patterns_say(self, loopback_hub, api, folder):
        api.upload_folder(repo_id=REPO, folder_path=folder)
        (folder / "config.json").unlink()
        api.upload_folder(repo_id=REPO, folder_path=folder, delete_patterns="*.json")
        assert "config.json" not in held(loopback_hub)
        assert held(loopback_hub)["1_Pooling/config.json"] == b"{}"

    def test_a_commit_goes_to_a_branch_and_leaves_main(self, loopback_hub, api, folder):
        start = api.repo_info(REPO).sha
        api.create_branch(REPO, branch="step-10")
        api.upload_folder(repo_id=REPO, folder_path=folder, revision="step-10")
        assert held(loopback_hub, "step-10") == FILES
        assert held(loopback_hub) == {} and api.repo_info(REPO).sha == start
        names = {branch.name for branch in api.list_repo_refs(REPO).branches}
        assert names == {"main", "step-10"}
        with pytest.raises(HfHubHTTPError) as error:
            api.create_branch(REPO, branch="step-10")
        assert error.value.response.status_code == 409

    def test_a_pull_request_is_a_revision_of_its_own(self, loopback_hub, api, folder):
        commit = api.upload_folder(repo_id=REPO, folder_path=folder, create_pr=True)
        assert (commit.pr_revision, commit.pr_num) == ("refs/pr/1", 1)
        assert held(loopback_hub) == {}
        assert read(Path(snapshot_download(REPO, revision="refs/pr/1"))) == FILES
        refs = api.list_repo_refs(REPO, include_pull_requests=True)
        assert [one.target_commit for one in refs.pull_requests] == [commit.oid]
        later = api.create_commit(
            REPO,
            [CommitOperationDelete("empty.txt")],
            commit_message="Less",
            revision="refs/pr/1",
        )
        assert loopback_hub.repo(REPO).refs["refs/pr/1"] == later.oid

    def test_a_commit_on_an_old_parent_is_refused(self, loopback_hub, api, folder):
        old = api.repo_info(REPO).sha
        new = api.upload_folder(repo_id=REPO, folder_path=folder, parent_commit=old).oid
        operation = CommitOperationAdd("late.txt", b"late")
        with pytest.raises(HfHubHTTPError, match="A commit has happened since") as error:
            api.create_commit(REPO, [operation], commit_message="Late", parent_commit=old)
        assert error.value.response.status_code == 412
        assert api.repo_info(REPO).sha == new

    def test_a_commit_with_one_wrong_line_changes_nothing(self, loopback_hub, api):
        lines = [
            {"key": "header", "value": {"summary": "Half", "description": ""}},
            {"key": "file", "value": {"path": "a", "content": "YQ==", "encoding": "base64"}},
            {"key": "lfsFile", "value": {"path": "b", "algo": "sha256", "oid": "0" * 64}},
        ]
        body = "".join(json.dumps(line) + "\n" for line in lines).encode()
        url = f"{loopback_hub.url}/api/models/{REPO}/commit/main"
        answer = get_session().post(
            url, content=body, headers={"Authorization": f"Bearer {loopback_hub.token}"}
        )
        assert answer.status_code == 400 and "0000" in answer.json()["error"]
        assert held(loopback_hub) == {}

    def test_an_ignored_file_is_not_sent(self, loopback_hub, api, folder):
        (folder / ".gitignore").write_text("*.safetensors\n1_Pooling/\n")
        api.upload_folder(repo_id=REPO, folder_path=folder)
        expected = [".gitignore", "README.md", "config.json", "empty.txt"]
        assert sorted(held(loopback_hub)) == expected

    def test_a_card_whose_metadata_is_broken_is_refused(self, loopback_hub, api):
        card = CommitOperationAdd("README.md", b"---\nlicense: [mit\n---\n")
        with pytest.raises(ValueError, match="Invalid metadata in README.md"):
            api.create_commit(REPO, [card], commit_message="Card")
        assert held(loopback_hub) == {}

    def test_the_card_s_metadata_is_in_the_repository_s_information(self, api, folder):
        api.upload_folder(repo_id=REPO, folder_path=folder)
        info = api.model_info(REPO, files_metadata=True)
        assert info.card_data.license == "mit"
        assert set(info.tags) == {"condenser", "license:mit"}
        sizes = {file.rfilename: file.size for file in info.siblings}
        assert sizes["model.safetensors"] == len(WEIGHTS)

    def test_long_listings_come_in_pages(self, loopback_hub, api):
        names = [f"file-{number:04d}.txt" for number in range(1100)]
        operations = [CommitOperationAdd(name, b"x") for name in names]
        api.create_commit(REPO, operations, commit_message="Many")
        assert sorted(api.list_repo_files(REPO)) == [".gitattributes", *names]
        assert len(loopback_hub.asked("GET", "/tree/")) == 2

    def test_a_file_is_copied_within_a_repository(self, loopback_hub, api, folder):
        api.upload_folder(repo_id=REPO, folder_path=folder)
        copies = [
            CommitOperationCopy("model.safetensors", "old/model.safetensors"),
            CommitOperationCopy("config.json", "old/config.json"),
        ]
        api.create_commit(REPO, copies, commit_message="Copy")
        assert held(loopback_hub)["old/model.safetensors"] == WEIGHTS
        assert held(loopback_hub)["old/config.json"] == FILES["config.json"]
        assert len(loopback_hub.asked("PUT", "/lfs-storage/")) == 1

    def test_an_upload_sends_no_token_to_the_storage(self, loopback_hub, api, folder):
        api.upload_folder(repo_id=REPO, folder_path=folder)
        (put,) = loopback_hub.asked("PUT", "/lfs-storage/")
        (commit,) = loopback_hub.asked("POST", "/commit/")
        assert "authorization" not in put.headers
        assert commit.headers["authorization"] == f"Bearer {loopback_hub.token}"


class TestRepositories:
    def test_models_datasets_and_spaces_of_one_name_are_apart(self, loopback_hub, api, folder):
        for repo_type, more in (("dataset", {}), ("space", {"space_sdk": "static"})):
            api.create_repo(REPO, repo_type=repo_type, **more)
            content = repo_type.encode()
            api.upload_file(
                repo_id=REPO,
                repo_type=repo_type,
                path_or_fileobj=content,
                path_in_repo="what.bin",
            )
            path = hf_hub_download(REPO, "what.bin", repo_type=repo_type)
            assert Path(path).read_bytes() == content
            assert api.repo_info(REPO, repo_type=repo_type).id == REPO
        assert not api.file_exists(REPO, "what.bin")

    def test_a_repository_is_made_once(self, api):
        with pytest.raises(HfHubHTTPError) as error:
            api.create_repo(REPO)
        assert error.value.response.status_code == 409
        assert api.create_repo(REPO, exist_ok=True).repo_id == REPO

    def test_a_deleted_repository_is_gone(self, loopback_hub, api):
        api.delete_repo(REPO)
        assert not loopback_hub.has_repo(REPO) and not api.repo_exists(REPO)

    def test_what_is_missing_is_told_by_the_client_s_own_errors(self, api):
        with pytest.raises(RepositoryNotFoundError):
            api.repo_info("owner/none")
        with pytest.raises(RepositoryNotFoundError):
            hf_hub_download("owner/none", "config.json")
        with pytest.raises(RevisionNotFoundError):
            snapshot_download(REPO, revision="v9")
        with pytest.raises(RevisionNotFoundError):
            api.repo_info(REPO, revision="v9")
        with pytest.raises(EntryNotFoundError):
            hf_hub_download(REPO, "none.json")
        assert api.file_exists(REPO, ".gitattributes") and not api.file_exists(REPO, "none.json")

    def test_a_tag_names_a_commit(self, api, folder):
        commit = api.upload_folder(repo_id=REPO, folder_path=folder)
        api.create_tag(REPO, tag="v1.0")
        api.delete_file("empty.txt", REPO)
        assert api.repo_info(REPO, revision="v1.0").sha == commit.oid
        api.delete_tag(REPO, tag="v1.0")
        assert not api.revision_exists(REPO, "v1.0")

    def test_a_card_is_pushed_and_loaded(self, api):
        ModelCard("---\nlicense: mit\n---\n# Card\n").push_to_hub(REPO)
        assert ModelCard.load(REPO).data.license == "mit"

    def test_a_repository_becomes_private(self, loopback_hub, api):
        api.update_repo_settings(REPO, private=True)
        assert loopback_hub.repo(REPO).private
        with pytest.raises(RepositoryNotFoundError):
            api.repo_info(REPO, token=False)


class TestAccess:
    def test_a_private_repository_shows_itself_to_its_owner_alone(self, loopback_hub, folder):
        other = loopback_hub.add_token("hf_other", user="other")
        api = HfApi()
        api.create_repo(REPO, private=True)
        api.upload_folder(repo_id=REPO, folder_path=folder)
        assert loopback_hub.repo(REPO).private and api.repo_info(REPO).private
        for token, status in ((False, 401), (other, 404)):
            with pytest.raises(RepositoryNotFoundError) as error:
                api.repo_info(REPO, token=token)
            assert error.value.response.status_code == status
            with pytest.raises(RepositoryNotFoundError):
                snapshot_download(REPO, token=token)
        assert read(Path(snapshot_download(REPO, token=loopback_hub.token))) == FILES

    def test_an_unknown_token_is_refused(self, loopback_hub, api):
        with pytest.raises(HfHubHTTPError, match="Invalid user token"):
            api.whoami(token="hf_unknown")
        for call in (api.repo_info, api.create_repo):
            with pytest.raises(HfHubHTTPError) as error:
                call(REPO, token="hf_unknown")
            assert error.value.response.status_code == 401
            assert not isinstance(error.value, RepositoryNotFoundError)

    def test_a_token_without_write_permission_reads_and_does_not_write(self, loopback_hub, api):
        reader = loopback_hub.add_token("hf_reader", user="owner", write=False)
        other = loopback_hub.add_token("hf_other", user="other")
        operation = CommitOperationAdd("a.txt", b"a")
        assert api.whoami(token=other)["name"] == "other"
        for token in (reader, other):
            assert api.repo_info(REPO, token=token).id == REPO
            for call in (
                lambda token: api.create_repo("owner/new", token=token),
                lambda token: api.create_commit(REPO, [operation], commit_message="A", token=token),
            ):
                with pytest.raises(HfHubHTTPError) as error:
                    call(token)
                assert error.value.response.status_code == 403
        api.create_commit(REPO, [operation], commit_message="A", token=other, create_pr=True)
        assert held(loopback_hub) == {} and held(loopback_hub, "refs/pr/1") == {"a.txt": b"a"}

    def test_a_gated_repository_tells_so(self, loopback_hub, api):
        loopback_hub.repo(REPO).gated = True
        other = loopback_hub.add_token("hf_other", user="other")
        with pytest.raises(GatedRepoError):
            hf_hub_download(REPO, ".gitattributes", token=other)
        with pytest.raises(GatedRepoError):
            api.auth_check(REPO, token=other)
        assert api.model_info(REPO, token=other).gated == "auto"


class TestProcess:
    def test_the_clients_of_this_process_speak_to_it_only_while_a_test_asks(self, tmp_path):
        def pointed() -> list[object]:
            return [
                constants.ENDPOINT,
                constants.HF_HUB_CACHE,
                constants.HF_HUB_OFFLINE,
                constants.HF_HUB_DISABLE_XET,
                HfApi().endpoint,
                datasets.config.HF_ENDPOINT,
                datasets.config.HF_DATASETS_CACHE,
                datasets.config.HF_HUB_OFFLINE,
                evaluate.config.HUB_EVALUATE_URL,
            ]

        before = pointed()
        with LoopbackHub() as hub:
            with pytest.MonkeyPatch.context() as patch:
                point_this_process_at(hub.url, tmp_path, monkeypatch=patch, clock=hub.clock)
                assert pointed() == [
                    hub.url,
                    str(tmp_path / "hub"),
                    False,
                    True,
                    hub.url,
                    hub.url,
                    tmp_path / "datasets",
                    False,
                    f"{hub.url}/spaces/{{path}}/resolve/{{revision}}/{{name}}",
                ]
            assert pointed() == before

    def test_two_hubs_at_once_are_apart(self, loopback_hub, api):
        with LoopbackHub() as other:
            assert other.url != loopback_hub.url and not other.has_repo(REPO)
            HfApi(endpoint=other.url, token=other.token).create_repo("owner/second")
            assert other.has_repo("owner/second") and not loopback_hub.has_repo("owner/second")

    def test_a_closed_hub_is_out_of_reach_and_the_cache_still_serves(
        self, loopback_hub, api, folder
    ):
        api.upload_folder(repo_id=REPO, folder_path=folder)
        cached = snapshot_download(REPO)
        loopback_hub.close()
        with pytest.raises(httpx2.ConnectError):
            api.repo_info(REPO)
        assert snapshot_download(REPO) == cached
