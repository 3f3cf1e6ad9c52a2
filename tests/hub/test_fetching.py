"""Models, collections and measures are found by their names, on the Hub and elsewhere."""

import json
from pathlib import Path

import evaluate
import pytest
from huggingface_hub import HfApi

from hub_scripts.main import main
from modeling_condenser import hub
from modeling_condenser.collection.load import load_collection
from modeling_condenser.evaluation.system_results import evaluate_system
from modeling_condenser.hub import model_folder
from modeling_condenser.hub.export import export_encoder
from modeling_condenser.hub.fetching import fetch
from modeling_condenser.hub.model_folder import find_model_folder
from modeling_condenser.hub.provenance import read_provenance

NAME, DATA = "owner/encoder", "owner/collection"
FILES = {
    "config.json": "{}",
    "model.safetensors": "weights",
    "pytorch_model.bin": "old weights",
    "2_Dense/pytorch_model.bin": "weights",
    "onnx/model.onnx": "another format",
    "last-checkpoint/model.safetensors": "of a training",
}


def upload(folder: Path, name: str, repo_type: str = "model") -> str:
    api, sdk = HfApi(), "gradio" if repo_type == "space" else None
    api.create_repo(name, repo_type=repo_type, space_sdk=sdk, exist_ok=True)
    return str(api.upload_folder(repo_id=name, folder_path=folder, repo_type=repo_type).oid)


def upload_files(folder: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return upload(folder, NAME)


def fetched(folder: Path) -> set[str]:
    return {str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file()}


def test_a_revision_is_pinned_and_only_patterns_are_fetched(loopback_hub, tmp_path):
    first = upload_files(tmp_path / "x", {"config.json": "{}", "notes.md": "one"})
    upload_files(tmp_path / "x", {"notes.md": "two"})
    assert fetched(fetch(f"{NAME}@{first}", only=["*.md"])) == {"notes.md"}
    assert (fetch(NAME) / "notes.md").read_text() == "two"
    assert (fetch(f"{NAME}@{first}") / "notes.md").read_text() == "one"
    with pytest.raises(FileNotFoundError, match="(?s)Cannot fetch owner/encoder@x .*Revision Not"):
        fetch(f"{NAME}@x")
    for absent in ("owner/absent", "./absent"):
        with pytest.raises(FileNotFoundError, match=f"There is no encoder '{absent}'"):
            find_model_folder(absent)


def test_a_model_is_downloaded_without_other_formats_and_old_weights(loopback_hub, tmp_path):
    upload_files(tmp_path / "x", FILES)
    needed = {"config.json", "2_Dense/pytorch_model.bin"}
    assert fetched(find_model_folder(NAME)) == {*needed, "model.safetensors"}
    HfApi().delete_file("model.safetensors", NAME)
    assert fetched(find_model_folder(NAME)) == {*needed, "pytorch_model.bin"}


def test_the_bundled_encoder_is_found_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "starter").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_model_folder("starter") == model_folder.STARTER_FOLDER
    assert find_model_folder("./starter") == Path("./starter")


@pytest.fixture
def encoder(bert_run: Path, tmp_path: Path) -> Path:
    return export_encoder(bert_run, tmp_path / "encoder")


@pytest.mark.slow
def test_a_beir_folder_is_uploaded_and_loaded_by_its_name(loopback_hub, collection):
    sha = upload(collection, DATA, "dataset")
    here, there = load_collection(collection), load_collection(DATA)
    assert there.passages.to_list() == here.passages.to_list()
    assert (there.queries, there.qrels) == (here.queries, here.qrels)
    HfApi().delete_file("qrels/test.tsv", DATA, repo_type="dataset")
    loopback_hub.close()  # from the cache
    assert load_collection(f"{DATA}@{sha}").qrels == here.qrels


@pytest.mark.slow
def test_a_model_and_a_collection_are_evaluated_by_their_names(
    loopback_hub, encoder, collection, tmp_path, monkeypatch, capsys
):
    upload(encoder, NAME)
    upload(collection, DATA, "dataset")
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", NAME, DATA, "--baseline", "bm25"]) == 0, capsys.readouterr().err
    (file,) = (tmp_path / "runs").rglob("report.json")
    means = json.dumps(json.loads(file.read_text()))
    expected = evaluate_system(encoder, collection, tmp_path / "own", progress=False)
    for value in expected.evaluation.means.values():
        assert repr(value) in means


@pytest.mark.slow
def test_a_checkpoint_is_exported_by_its_name_and_none_of_its_code_is_run(
    loopback_hub, bert_run, encoder, tmp_path
):
    sha = upload(bert_run / "model", "owner/condenser")
    trap = f"open({str(tmp_path / 'executed')!r}, 'w')"
    for name in ("modeling_condenser.py", "configuration_condenser.py"):
        HfApi().upload_file(
            repo_id="owner/condenser", path_in_repo=name, path_or_fileobj=trap.encode()
        )
    for name in ("owner/condenser", f"owner/condenser@{sha}"):
        out = export_encoder(name, tmp_path / name.replace("/", "-"))
        weights = (out / "model.safetensors").read_bytes()
        assert weights == (encoder / "model.safetensors").read_bytes()
        assert read_provenance(out) == read_provenance(encoder)
    assert not (tmp_path / "executed").exists()


@pytest.mark.slow
def test_the_measures_are_loaded_from_a_space(loopback_hub):
    upload(Path(hub.__file__).parent / "retrieval_measures", "owner/retrieval_measures", "space")
    module = evaluate.load("owner/retrieval_measures")
    run = [{"query_id": "q", "passage_ids": ["a", "b"], "scores": [0.9, 0.5]}]
    qrels = [{"query_id": "q", "passage_ids": ["b", "c"], "grades": [1, 1]}]
    found = module.compute(predictions=run, references=qrels, measures=["MRR@10", "R@100"])
    assert found == {"MRR@10": 0.5, "R@100": 0.5}
