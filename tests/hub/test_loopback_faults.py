"""The loopback Hub's faults, and what the real client does about each: repeat, give up, not see it.

Which calls the client repeats by itself is written down here because the package relies on it. The
client's waits between two tries take no time here; `loopback_hub.clock.waits` holds them.
"""

import hashlib
from pathlib import Path

import httpx2
import pytest
from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import BadRequestError, HfHubHTTPError, LocalEntryNotFoundError
from huggingface_hub.utils import get_session, hf_raise_for_status

from tests.hub.uploading import FILES, REPO, WEIGHTS, held, read


# Where in an upload the failure comes, and whether the client asks again by itself.
@pytest.mark.parametrize("status", [429, 500, 503])
@pytest.mark.parametrize(
    ("method", "path", "retried"),
    [
        ("POST", "/api/repos/create", False),
        ("POST", "/api/validate-yaml", False),
        ("POST", "/preupload/", True),
        ("POST", "/objects/batch", True),
        ("PUT", "/lfs-storage/", True),
        ("POST", "/lfs/verify", True),
        ("POST", "/commit/", False),
    ],
)
def test_the_client_repeats_the_steps_of_an_upload_but_not_its_two_ends(
    loopback_hub, folder, method, path, retried, status
):
    loopback_hub.fail_next(method, path, status=status, headers={"Retry-After": "0"})
    api = HfApi()

    def upload() -> None:
        api.create_repo(REPO)
        api.upload_folder(repo_id=REPO, folder_path=folder)

    if retried:
        upload()
        assert held(loopback_hub) == FILES
        assert loopback_hub.clock.waits == [1.0]
    else:
        with pytest.raises(HfHubHTTPError) as error:
            upload()
        assert error.value.response.status_code == status
        assert not loopback_hub.has_repo(REPO) or held(loopback_hub) == {}
    answers = [record.status for record in loopback_hub.asked(method, path)]
    assert answers == ([status, 200] if retried else [status])
    assert loopback_hub.faults.left() == 0


@pytest.mark.parametrize(
    ("method", "path", "retried"),
    [
        ("GET", r"/api/models/owner/encoder$", False),
        ("GET", "/api/whoami-v2", False),
        ("GET", "/refs", False),
        ("POST", "/paths-info/", False),
        ("GET", "/tree/", True),
        ("GET", "/commits/", True),
    ],
)
def test_of_the_questions_only_the_paged_ones_are_repeated(
    loopback_hub, api, method, path, retried
):
    loopback_hub.fail_next(method, path, status=503)
    questions = {
        "/refs": api.list_repo_refs,
        "/paths-info/": lambda repo: api.get_paths_info(repo, "a"),
        "/tree/": api.list_repo_files,
        "/commits/": api.list_repo_commits,
        "/api/whoami-v2": lambda _: api.whoami(),
    }
    question = questions.get(path, api.repo_info)
    if retried:
        assert question(REPO)
    else:
        with pytest.raises(HfHubHTTPError, match="503"):
            question(REPO)
    assert len(loopback_hub.asked(method, path)) == 1 + retried


def test_a_download_s_first_question_is_repeated_and_its_body_after_429_alone(loopback_hub, api):
    path = "/resolve/main/.gitattributes"
    loopback_hub.fail_next("HEAD", path, status=503, times=2)
    loopback_hub.fail_next("GET", "/resolve/", status=429)
    assert Path(hf_hub_download(REPO, ".gitattributes")).stat().st_size > 100
    answers = [record.status for record in loopback_hub.asked("*", "/resolve/")]
    assert answers == [503, 503, 200, 429, 200]
    loopback_hub.fail_next("GET", "/resolve/", status=503)
    with pytest.raises(HfHubHTTPError, match="503"):
        hf_hub_download(REPO, ".gitattributes", force_download=True)


def test_a_cut_upload_is_sent_again_from_its_start(loopback_hub, api, folder):
    loopback_hub.cut_next("PUT", "/lfs-storage/", times=2, after_bytes=1000)
    api.upload_folder(repo_id=REPO, folder_path=folder)
    answers = [record.status for record in loopback_hub.asked("PUT", "/lfs-storage/")]
    assert answers == [0, 0, 200]
    assert held(loopback_hub) == FILES


def test_an_upload_cut_for_good_leaves_the_repository_as_it_was(loopback_hub, api, folder):
    before = api.repo_info(REPO).sha
    loopback_hub.cut_next("PUT", "/lfs-storage/", times=100, after_bytes=1000)
    with pytest.raises(RuntimeError, match=r"Error while uploading 'model\.safetensors'"):
        api.upload_folder(repo_id=REPO, folder_path=folder)
    assert len(loopback_hub.asked("PUT", "/lfs-storage/")) == 6
    assert api.repo_info(REPO).sha == before and held(loopback_hub) == {}


def test_a_commit_cut_while_it_is_read_is_not_made_and_not_repeated(loopback_hub, api, folder):
    loopback_hub.cut_next("POST", "/commit/", after_bytes=50)
    with pytest.raises(httpx2.TransportError):
        api.upload_folder(repo_id=REPO, folder_path=folder)
    assert held(loopback_hub) == {}
    assert len(loopback_hub.asked("POST", "/commit/")) == 1


def test_a_commit_whose_answer_is_lost_is_made(loopback_hub, api, folder):
    loopback_hub.cut_next("POST", "/commit/", side="response")
    with pytest.raises(httpx2.TransportError):
        api.upload_folder(repo_id=REPO, folder_path=folder)
    assert held(loopback_hub) == FILES
    assert api.upload_folder(repo_id=REPO, folder_path=folder).oid == api.repo_info(REPO).sha
    assert len(loopback_hub.asked("POST", "/commit/")) == 1


def test_a_put_whose_bytes_are_not_what_they_are_called_is_refused(loopback_hub, api):
    oid = hashlib.sha256(WEIGHTS).hexdigest()
    loopback_hub.repo(REPO).expected_objects[oid] = len(WEIGHTS)
    url = f"{loopback_hub.url}/lfs-storage/models/{REPO}/{oid}"
    answer = get_session().put(url, content=WEIGHTS[::-1])
    with pytest.raises(BadRequestError, match=oid):
        hf_raise_for_status(answer)
    assert loopback_hub.repo(REPO).lfs_objects == {}


def test_a_snapshot_s_first_question_is_not_repeated(loopback_hub, api):
    loopback_hub.fail_next("GET", "/revision/main", status=503)
    with pytest.raises(LocalEntryNotFoundError, match="503"):
        snapshot_download(REPO)
    assert len(loopback_hub.asked("GET", "/revision/main")) == 1


def test_a_line_lost_at_the_first_question_is_not_one_of_the_client_s_own_errors(loopback_hub, api):
    for method, path, question in (
        ("GET", "/revision/main", lambda: snapshot_download(REPO)),
        ("HEAD", "/resolve/", lambda: hf_hub_download(REPO, ".gitattributes")),
        ("GET", "/api/models/", lambda: api.repo_info(REPO)),
    ):
        loopback_hub.cut_next(method, path)
        with pytest.raises(httpx2.ReadError) as error:
            question()
        assert not isinstance(error.value, OSError)
        assert len(loopback_hub.asked(method, path)) == 1
        loopback_hub.requests.clear()


def test_a_cut_download_is_asked_for_again_from_the_last_whole_chunk(
    loopback_hub, api, folder, monkeypatch
):
    api.upload_folder(repo_id=REPO, folder_path=folder)
    for chunk, expected in ((constants.DOWNLOAD_CHUNK_SIZE, None), (4096, "bytes=16384-")):
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", chunk)
        loopback_hub.requests.clear()
        loopback_hub.cut_next("GET", "/resolve/", after_bytes=20_000)
        path = hf_hub_download(REPO, "model.safetensors", force_download=True)
        assert Path(path).read_bytes() == WEIGHTS
        first, second = loopback_hub.asked("GET", "/resolve/")
        assert (first.headers.get("range"), second.headers.get("range")) == (None, expected)
        assert second.status == (206 if expected else 200)


def test_a_download_that_never_ends_leaves_nothing_in_the_cache(loopback_hub, api, folder):
    api.upload_folder(repo_id=REPO, folder_path=folder)
    loopback_hub.cut_next("GET", "safetensors", times=100, after_bytes=20_000)
    with pytest.raises(httpx2.RemoteProtocolError):
        hf_hub_download(REPO, "model.safetensors")
    assert len(loopback_hub.asked("GET", "/resolve/")) == 6
    assert not list(Path(constants.HF_HUB_CACHE).rglob("*.safetensors"))


def test_a_changed_byte_passes_the_client_and_stays_until_the_checksums_are_asked(
    loopback_hub, api, folder
):
    api.upload_folder(repo_id=REPO, folder_path=folder)
    loopback_hub.corrupt_next("model.safetensors")
    loopback_hub.corrupt_next("/resolve/[0-9a-f]*/config.json")
    downloaded = Path(snapshot_download(REPO))
    assert loopback_hub.faults.left() == 0
    for name in ("model.safetensors", "config.json"):
        wrong = (downloaded / name).read_bytes()
        assert len(wrong) == len(FILES[name]) and wrong != FILES[name]
    found = api.verify_repo_checksums(REPO).mismatches
    assert {(one["path"], one["algorithm"]) for one in found} == {
        ("config.json", "git-sha1"),
        ("model.safetensors", "sha256"),
    }
    assert read(Path(snapshot_download(REPO))) != FILES
    assert read(Path(snapshot_download(REPO, force_download=True))) == FILES
    assert api.verify_repo_checksums(REPO).mismatches == []
