"""Shipped fine-tuning recipes run on tiny data of the layout that they are written for."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainingArguments

from modeling_condenser.finetuning.finetune import finetune
from modeling_condenser.hub.contract import EncodingContract
from modeling_condenser.runs.recipe import read_recipe


def make_stsb(folder: Path, texts: list[str]) -> dict[str, Any]:
    lines = [f"river {i},the museum {i},{i % 6}" for i in range(12)]
    (folder / "train.csv").write_text("\n".join(["sentence1,sentence2,score", *lines]))
    return {"data": str(folder / "train.csv")}


def make_sections(folder: Path, texts: list[str]) -> dict[str, Any]:
    lines = [f"river {i},fjord {i},museum {i}" for i in range(12)]
    (folder / "train.csv").write_text("\n".join(["anchor,positive,negative", *lines]))
    return {"data": str(folder / "train.csv")}


def make_dpr(folder: Path, texts: list[str]) -> dict[str, Any]:
    entries = [
        {
            "question": f"where is river {i}",
            "answers": ["Oslo"],
            "positive_ctxs": [{"title": f"River {i}", "text": texts[i]}] if i else [],
            "negative_ctxs": [],
            "hard_negative_ctxs": [{"title": "Museum", "text": texts[50 + i]}],
        }
        for i in range(12)
    ]
    (folder / "train.json").write_text(json.dumps(entries, indent=4))
    return {"data": str(folder / "train.json")}


def make_passages(folder: Path, texts: list[str]) -> dict[str, Any]:
    """RocketQA's edition of MS MARCO."""
    flat = [" ".join(text.split()) for text in texts[:40]]
    (folder / "para.txt").write_text("".join(f"{i}\t{text}\n" for i, text in enumerate(flat)))
    (folder / "para.title.txt").write_text("".join(f"{i}\tTitle {i}\n" for i in range(40)))
    (folder / "train.query.txt").write_text("".join(f"{i}\tquery {i}\n" for i in range(10)))
    (folder / "qrels.train.tsv").write_text("".join(f"{i}\t0\t{i}\t1\n" for i in range(10)))
    negatives = "".join(f"{i}\t{','.join(map(str, range(10 + i, 22 + i)))}\n" for i in range(10))
    (folder / "train.negatives.tsv").write_text(negatives)
    return {"collection": str(folder), "negatives": str(folder / "train.negatives.tsv")}


def make_triples(folder: Path, texts: list[str]) -> dict[str, Any]:
    flat = [" ".join(text.split()) for text in texts]
    rows = [f"query {i}\t{flat[i]}\t{flat[i + 40]}\n" for i in range(12)]
    (folder / "triples.train.small.tsv").write_text("".join(rows))
    return {"data": str(folder / "triples.train.small.tsv"), "pooling": "mean"}


# tests/test_docs.py runs finetune/contrastive; the other recipes have the layouts of these.
DATA: dict[str, Callable[[Path, list[str]], dict[str, Any]]] = {
    "stsb": make_stsb,
    "wikipedia-sections": make_sections,
    "nq": make_dpr,
    "msmarco-passage": make_passages,
    "thesis-triplets": make_triples,
}


@pytest.mark.parametrize("name", DATA)
def test_a_recipe_runs(name: str, bert_folder: Path, texts: list[str], tmp_path: Path) -> None:
    settings = read_recipe(f"finetune/{name}")
    # The tiny encoder has 64 positions.
    lengths = {
        field: min(settings[field], 64) for field in ("query_max_length", "passage_max_length")
    }
    changes = {
        **DATA[name](tmp_path, texts),
        **lengths,
        "encoder": str(bert_folder),
        "max_steps": 2,
        "per_device_train_batch_size": 4,
        "use_cpu": True,
        "disable_tqdm": True,
        "output_dir": str(tmp_path / "run"),
    }
    folder = finetune({**settings, **changes})
    contract = EncodingContract.load(folder)
    pooling = settings.get("pooling") or changes["pooling"]
    expected = {**lengths, "pooling": pooling, "similarity": settings.get("similarity", "cosine")}
    assert {field: getattr(contract, field) for field in expected} == expected
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["steps"] == 2
    if name == "msmarco-passage":
        assert (run["n_examples"], run["n_negatives"]) == (10, 7)
    if name == "nq":
        assert (run["n_examples"], run["n_negatives"]) == (11, 1)
        assert run["left_out"] == {"questions without a positive passage": 1}


def test_the_papers_figures_are_in_their_recipes() -> None:
    """Condenser A.1 and 4.4; Reimers & Gurevych 2019, 3 and 3.1; the thesis, 3.3 and 4.3."""
    schedule = ("per_device_train_batch_size", "learning_rate", "num_train_epochs", "n_negatives")
    marco = ("msmarco-passage", "msmarco-passage-mined", "msmarco-document")
    expected = dict.fromkeys(marco, (8, 5e-6, 3, 7))
    expected |= dict.fromkeys(("nq", "triviaqa"), (128, 1e-5, 40, 1))
    expected |= dict.fromkeys(("stsb",), (16, 2e-5, 4, None))
    expected |= dict.fromkeys(("wikipedia-sections",), (16, 2e-5, 1, None))
    for name, figures in expected.items():
        settings = read_recipe(f"finetune/{name}")
        assert tuple(settings.get(field) for field in schedule) == figures, name
    thesis = read_recipe("finetune/thesis-triplets")
    assert (thesis["learning_rate"], thesis["warmup_steps"], thesis["margin"]) == (2e-5, 0.1, 1.0)
    assert thesis["first_rows"] == thesis["max_steps"] * thesis["per_device_train_batch_size"]


@pytest.mark.parametrize("name", ["nq", "triviaqa"])
def test_the_peak_learning_rate_is_reached_with_little_data(name: str) -> None:
    """1,000 examples make 40 x 8 steps; DPR's 1,237 steps of warm-up would exceed all of them."""
    settings = read_recipe(f"finetune/{name}")
    for n_examples in (1_000, 10_000, 58_880):
        n_steps = settings["num_train_epochs"] * math.ceil(
            n_examples / settings["per_device_train_batch_size"]
        )
        arguments = TrainingArguments("out", warmup_steps=settings["warmup_steps"])
        n_warmup = arguments.get_warmup_steps(n_steps)
        assert n_warmup / n_steps == pytest.approx(1237 / 18_400, abs=0.003)
    assert n_warmup == pytest.approx(1237, rel=0.01)  # of the paper, on all of the data
