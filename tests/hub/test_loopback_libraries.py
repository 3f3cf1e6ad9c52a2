"""The loopback Hub against the libraries above huggingface_hub: each loads by name what was pushed.

What has remote code of a model runs in a subprocess with caches of its own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import datasets
import evaluate
import torch
from huggingface_hub import HfApi
from transformers import AutoModelForMaskedLM, AutoTokenizer

from tests.hub.loopback_hub import LoopbackHub
from tests.hub.uploading import REPO

ROWS = {"text": ["one", "two", "three"], "label": [0, 1, 2]}
REMOTE_CONFIG = {"auto_map": {"AutoConfig": "code.OurConfig"}, "model_type": "ours", "size": 7}
REMOTE_CODE = """
from transformers import PretrainedConfig

class OurConfig(PretrainedConfig):
    model_type = "ours"
"""
METRIC = """
import datasets
import evaluate

class Sum(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("int64")})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions):
        return {"sum": sum(predictions)}
"""


def run_script(hub: LoopbackHub, folder: Path, script: str, *, token: str | None = None) -> str:
    """What a Python script prints in a fresh process with empty caches below a folder."""
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **hub.environment(folder, token=token)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_a_model_is_loaded_by_name_in_another_process(loopback_hub, bert_folder, tmp_path):
    api = HfApi()
    api.create_repo(REPO, private=True)
    api.upload_folder(repo_id=REPO, folder_path=bert_folder)
    script = f"""
from transformers import AutoModel, AutoTokenizer
AutoTokenizer.from_pretrained("{REPO}")
model = AutoModel.from_pretrained("{REPO}")
print(model.get_input_embeddings().weight.double().sum().item())
"""
    printed = run_script(loopback_hub, tmp_path, script, token=loopback_hub.token)
    local = AutoModelForMaskedLM.from_pretrained(bert_folder)
    expected = local.get_input_embeddings().weight.double().sum().item()
    assert float(printed) == expected
    assert loopback_hub.asked("GET", "/owner/encoder/resolve/.*/model.safetensors")


def test_another_process_without_a_token_does_not_see_what_is_private(loopback_hub, tmp_path):
    HfApi().create_repo(REPO, private=True)
    script = f"""
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import RepositoryNotFoundError
try:
    hf_hub_download("{REPO}", ".gitattributes")
except RepositoryNotFoundError as error:
    print(error.response.status_code)
"""
    assert run_script(loopback_hub, tmp_path, script) == "401\n"


def test_push_to_hub_and_from_pretrained_go_through_this_process(loopback_hub, bert_folder):
    model = AutoModelForMaskedLM.from_pretrained(bert_folder)
    model.push_to_hub(REPO)
    AutoTokenizer.from_pretrained(bert_folder).push_to_hub(REPO)
    loaded = AutoModelForMaskedLM.from_pretrained(REPO).state_dict()
    assert loaded.keys() == model.state_dict().keys()
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(loaded[name], weight, rtol=0, atol=0)


def test_remote_code_runs_at_the_revision_asked_for(loopback_hub, tmp_path):
    api = HfApi()
    api.create_repo(REPO)
    revisions = []
    for size in (7, 8):
        config = json.dumps({**REMOTE_CONFIG, "size": size}).encode()
        for path, content in (("code.py", REMOTE_CODE.encode()), ("config.json", config)):
            commit = api.upload_file(path_or_fileobj=content, path_in_repo=path, repo_id=REPO)
        revisions.append(commit.oid)
    script = f"""
from transformers import AutoConfig
for revision in {revisions!r}:
    config = AutoConfig.from_pretrained("{REPO}", trust_remote_code=True, revision=revision)
    print(type(config).__name__, config.size)
"""
    printed = run_script(loopback_hub, tmp_path, script)
    assert printed.split() == ["OurConfig", "7", "OurConfig", "8"]


def test_a_dataset_is_pushed_and_loaded_by_name(loopback_hub):
    made = datasets.DatasetDict(
        {"train": datasets.Dataset.from_dict(ROWS), "test": datasets.Dataset.from_dict(ROWS)}
    )
    made.push_to_hub("owner/rows")
    loaded = datasets.load_dataset("owner/rows")
    assert {name: split.to_dict() for name, split in loaded.items()} == {
        "train": ROWS,
        "test": ROWS,
    }
    assert (
        "data/train-00000-of-00001.parquet"
        in loopback_hub.repo("owner/rows", repo_type="dataset").files()
    )


def test_a_dataset_of_plain_files_is_loaded_and_streamed(loopback_hub):
    lines = "".join(json.dumps({"text": text}) + "\n" for text in ROWS["text"])
    api = HfApi()
    api.create_repo("owner/lines", repo_type="dataset")
    api.upload_file(
        repo_id="owner/lines",
        repo_type="dataset",
        path_or_fileobj=lines.encode(),
        path_in_repo="train.jsonl",
    )
    for streaming in (False, True):
        rows = datasets.load_dataset("owner/lines", split="train", streaming=streaming)
        assert [row["text"] for row in rows] == ROWS["text"]


def test_a_sentence_encoder_is_loaded_by_name(loopback_hub, bert_folder, tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    body = Transformer(str(bert_folder), model_kwargs={"add_pooling_layer": False})
    pooling = Pooling(body.get_embedding_dimension(), pooling_mode="cls")
    made = SentenceTransformer(modules=[body, pooling], device="cpu")
    made.push_to_hub(REPO)
    loaded = SentenceTransformer(REPO, device="cpu")
    texts = ["The river describes the old poet."]
    assert (loaded.encode(texts) == made.encode(texts)).all()
    assert "1_Pooling/config.json" in loopback_hub.repo(REPO).files()


def test_a_measure_is_loaded_from_a_space(loopback_hub):
    api = HfApi()
    api.create_repo("owner/sum", repo_type="space", space_sdk="static")
    api.upload_file(
        repo_id="owner/sum",
        repo_type="space",
        path_or_fileobj=METRIC.encode(),
        path_in_repo="sum.py",
    )
    assert evaluate.load("owner/sum").compute(predictions=[1, 2, 4]) == {"sum": 7}


def test_a_trainer_pushes_its_model(loopback_hub, bert_folder, tmp_path):
    from transformers import Trainer, TrainingArguments

    model = AutoModelForMaskedLM.from_pretrained(bert_folder)
    rows = [{"input_ids": [2, 7, 3], "labels": [2, 7, 3]}] * 4
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "run"),
        hub_model_id=REPO,
        push_to_hub=True,
        max_steps=2,
        save_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows)
    trainer.train()
    trainer.push_to_hub(commit_message="End")
    repository = loopback_hub.repo(REPO)
    assert repository.commits()[0].title == "End"
    pushed = repository.files()["model.safetensors"]
    assert pushed == (tmp_path / "run" / "model.safetensors").read_bytes()
