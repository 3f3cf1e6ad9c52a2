"""Models, collections and measures by their names on the Hub, as a user's commands name them."""

import json
from pathlib import Path

import evaluate
import pytest
from huggingface_hub import HfApi

from hub_scripts.main import main
from modeling_condenser import hub
from modeling_condenser.collection.load import load_collection
from modeling_condenser.evaluation.system_results import evaluate_system
from modeling_condenser.hub.export import export_encoder
from modeling_condenser.hub.provenance import read_provenance

pytestmark = pytest.mark.slow

MODEL, DATA = "owner/encoder", "owner/collection"


@pytest.fixture
def encoder(bert_run: Path, tmp_path: Path) -> Path:
    return export_encoder(bert_run, tmp_path / "encoder")


def upload(folder: Path, name: str, repo_type: str = "model") -> str:
    api = HfApi()
    api.create_repo(name, repo_type=repo_type, space_sdk="gradio" if repo_type == "space" else None)
    return str(api.upload_folder(repo_id=name, folder_path=folder, repo_type=repo_type).oid)


def test_a_beir_folder_is_uploaded_and_loaded_by_its_name(loopback_hub, collection):
    sha = upload(collection, DATA, "dataset")
    here, there = load_collection(collection), load_collection(DATA)
    assert there.passages.to_list() == here.passages.to_list()
    assert (there.queries, there.qrels) == (here.queries, here.qrels)
    HfApi().delete_file("qrels/test.tsv", DATA, repo_type="dataset")
    assert load_collection(f"{DATA}@{sha}").qrels == here.qrels
    loopback_hub.close()  # from the cache
    assert load_collection(f"{DATA}@{sha}").qrels == here.qrels


def test_a_model_and_a_collection_are_evaluated_by_their_names(
    loopback_hub, encoder, collection, tmp_path, monkeypatch, capsys
):
    upload(encoder, MODEL)
    upload(collection, DATA, "dataset")
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", MODEL, DATA, "--baseline", "bm25"]) == 0, capsys.readouterr().err
    (file,) = (tmp_path / "runs").rglob("report.json")
    means = json.dumps(json.loads(file.read_text()))
    expected = evaluate_system(encoder, collection, tmp_path / "own", progress=False)
    for value in expected.evaluation.means.values():
        assert repr(value) in means


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


def test_an_error_of_the_hub_ends_a_command_with_a_sentence(loopback_hub, capsys):
    assert main(["evaluate", "owner/absent", "owner/absent"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ") and "Traceback" not in printed


def test_the_measures_are_loaded_from_a_space(loopback_hub):
    upload(Path(hub.__file__).parent / "retrieval_measures", "owner/retrieval_measures", "space")
    module = evaluate.load("owner/retrieval_measures")
    run = [{"query_id": "q", "passage_ids": ["a", "b"], "scores": [0.9, 0.5]}]
    qrels = [{"query_id": "q", "passage_ids": ["b", "c"], "grades": [1, 1]}]
    found = module.compute(predictions=run, references=qrels, measures=["MRR@10", "R@100"])
    assert found == {"MRR@10": 0.5, "R@100": 0.5}
