"""Small things that many tests need: a pre-training run, a collection, an isolated process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers import AutoTokenizer

from modeling_condenser import CondenserForPreTraining
from modeling_condenser.files.run_folder import (
    MODEL_FOLDER,
    claim_run_folder,
    describe_machine,
    record_run,
)
from modeling_condenser.publishing.card import write_card
from modeling_condenser.publishing.provenance import PRETRAINING, describe_stage, write_provenance

# In a process that begins with this, no import of this project can succeed.
BLOCKER = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("modeling_condenser", "hub_scripts", "configuration"):
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocker())
"""
N_PASSAGES, N_TRAIN = 60, 40


def make_run(encoder: Path, folder: Path) -> Path:
    """A pre-training run folder, as `pretrain` leaves it, of a Condenser with noisy weights.

    The noise makes norms of vectors differ, which a new encoder's final normalisation does not;
    dropout is off, with which so small an encoder learns nothing in a test's time.
    """
    settings = {"encoder": str(encoder), "corpus": "owner/corpus", "max_length": 64}
    claim_run_folder(folder, {**settings, "output_dir": "x"}, "data")
    torch.manual_seed(0)
    model = CondenserForPreTraining.from_encoder(
        str(encoder),
        n_head_layers=1,
        config_changes={"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "pooler" not in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    run = {"objective": "condenser", "seed": 7, "steps": 11}
    record_run(folder, run)
    model.save_pretrained(folder / MODEL_FOLDER)
    AutoTokenizer.from_pretrained(encoder).save_pretrained(folder / MODEL_FOLDER)
    run |= describe_machine()
    stage = describe_stage(PRETRAINING, settings, run, [])
    write_provenance(folder / MODEL_FOLDER, [stage])
    write_card(folder / MODEL_FOLDER)
    return folder


def make_collection(folder: Path, texts: list[str]) -> Path:
    """A BEIR folder: a query is the first words of its passage; every third passage has a title."""
    passages = [
        {"_id": f"p{i:02d}", "title": f"Title {i}" if i % 3 == 0 else "", "text": text}
        for i, text in enumerate(texts[:N_PASSAGES])
    ]
    queries = [
        {"_id": f"q{i}", "text": " ".join(passage["text"].split()[:8])}
        for i, passage in enumerate(passages)
    ]
    judged = [
        (f"q{i}", f"p{(i + 1 - grade) % N_PASSAGES:02d}", grade)
        for i in range(N_PASSAGES)
        for grade in (1, 0)
    ]
    splits = {"train": judged[: 2 * N_TRAIN], "test": judged[2 * N_TRAIN :]}
    return write_collection(folder, passages, queries, **splits)


def write_collection(
    folder: Path,
    passages: list[dict[str, Any]],
    queries: list[dict[str, Any]],
    *,
    ending: str = "",
    **splits: list[tuple[str, str, int]],
) -> Path:
    """Write a BEIR folder; the judgements of a split are ids of query and passage, and a grade."""
    (folder / "qrels").mkdir(parents=True)
    for name, rows in (("corpus", passages), ("queries", queries)):
        file = folder / f"{name}.jsonl{ending}"
        pd.DataFrame(rows).to_json(file, orient="records", lines=True)
    for split, rows in splits.items():
        table = pd.DataFrame(rows, columns=["query-id", "corpus-id", "score"])
        table.to_csv(folder / "qrels" / f"{split}.tsv{ending}", sep="\t", index=False)
    return folder


def declare_tables(folder: Path, tables: dict[str, dict[str, str]]) -> None:
    """Write the card of a data set with these configurations: name -> split -> path."""
    configs = [
        {"config_name": name, "data_files": [{"split": s, "path": p} for s, p in files.items()]}
        for name, files in tables.items()
    ]
    (folder / "README.md").write_text(f"---\n{json.dumps({'configs': configs})}\n---\n")


def run_isolated(script: str, *words: object, scratch: Path, **environment: str) -> str:
    """Run a script in a new process without this project and with an empty cache: its output."""
    scratch.mkdir(parents=True, exist_ok=True)
    (scratch / "script.py").write_text(BLOCKER + script)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    isolated = {
        "HF_HOME": str(scratch / "hf"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }
    process = subprocess.run(
        [sys.executable, "-I", "script.py", *map(str, words)],
        capture_output=True,
        text=True,
        cwd=scratch,
        env={**kept, **isolated, **environment},
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return process.stdout


def plain_vectors(
    folder: Path, texts: list[str], max_length: int = 64, pooling: str = "cls"
) -> torch.Tensor:
    """Vectors by transformers alone, one text at a time and so without padding: (N, H)."""
    from transformers import AutoModel

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    rows = []
    with torch.no_grad():
        for text in texts:
            batch = tokenizer(text, truncation=True, max_length=max_length, return_tensors="pt")
            hidden = model(**batch).last_hidden_state[0]  # (T, H)
            rows.append({"cls": hidden[0], "mean": hidden.mean(0), "max": hidden.amax(0)}[pooling])
    return torch.stack(rows)
