"""Texts and models that cannot be encoded, and what is said then."""

import copy
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from tokenizers import processors
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerBase

from modeling_condenser.encoding import retriever as encoding
from modeling_condenser.encoding.retriever import Retriever
from tests.encoding.encoders import LONG, MIXED, as_passages, with_template


def break_weights(folder: Path) -> Path:
    """Give one token an embedding that is not finite."""
    model = AutoModel.from_pretrained(folder)
    token = AutoTokenizer.from_pretrained(folder)("volcano")["input_ids"][1]
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[token] = float("nan")
    model.save_pretrained(folder)
    return folder


def test_a_vector_that_is_not_finite_is_an_error_with_the_first_row(
    bert_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = break_weights(shutil.copytree(bert_folder, tmp_path / "encoder"))
    retriever = Retriever(folder, pooling="cls")
    monkeypatch.setattr(encoding, "WINDOW", 4)
    some = ["Why?"] * 6 + ["A volcano.", "Why?", "volcano " * 20]
    for encode in (
        retriever.encode_queries,
        lambda some: retriever.encode_passages(as_passages(some)),
    ):
        with pytest.raises(ValueError, match="vector of row 6 .*NaN.*'A volcano.'.*weights"):
            encode(some)
    assert np.isfinite(retriever.encode_queries(["Why?"])).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("Why?", r"one string, 'Why\?'; expected a list"),
        (["Why?", None], "Row 1 is None, expected a text"),
        (["a", "b", 3.5], "Row 2 is 3.5, expected a text"),
        (["a"] * 5 + ["so \ud83d sad"], r"Row 5 holds the lone surrogate '\\ud83d' at position 3"),
    ],
)
def test_what_is_no_text_is_refused_by_its_row(
    given: object, message: str, bert_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "WINDOW", 2)
    retriever = Retriever(bert_folder, pooling="cls")
    for encode in (retriever.encode_queries, lambda texts: retriever.encode_texts(texts, 16)):
        with pytest.raises(ValueError, match=message):
            encode(given)


def test_passages_without_a_text_or_a_column_are_refused(
    bert_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "WINDOW", 2)
    retriever = Retriever(bert_folder, pooling="cls")
    with pytest.raises(ValueError, match="Row 4 is None, expected a text"):
        retriever.encode_passages(as_passages(["a", "b", "c", "d", None]))
    with pytest.raises(ValueError, match="columns _id, text, but not title"):
        retriever.encode_passages(Dataset.from_dict({"_id": ["a"], "text": ["b"]}))


def test_tokens_that_the_encoder_does_not_embed_are_refused(
    bert_folder: Path, wordpiece_tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    folder = shutil.copytree(bert_folder, tmp_path / "encoder")
    tokenizer = copy.deepcopy(wordpiece_tokenizer)
    tokenizer.add_tokens(["zzz"])
    tokenizer.save_pretrained(folder)
    retriever = Retriever(folder, pooling="cls")
    assert np.isfinite(retriever.encode_queries(["Why?"])).all()
    size = len(wordpiece_tokenizer)
    with pytest.raises(ValueError, match=f"token {size}, .* only {size} token embeddings"):
        retriever.encode_queries(["Why?", LONG, "a zzz", "zzz"])


def test_a_text_without_any_token_is_refused(
    bert_folder: Path, wordpiece_tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    nothing = processors.TemplateProcessing(single="$A", special_tokens=[])
    folder = with_template(bert_folder, tmp_path / "encoder", wordpiece_tokenizer, nothing)
    retriever = Retriever(folder, pooling="mean")
    assert retriever.encode_queries(["Why?"]).shape == (1, 32)
    with pytest.raises(ValueError, match="Row 1 has no tokens: its text is empty"):
        retriever.encode_queries(["Why?", ""])


def test_a_batch_that_does_not_fit_into_memory_names_the_budget(
    bert_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever = Retriever(bert_folder, pooling="cls", token_budget=500)

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(retriever.model, "forward", fail)
    with pytest.raises(MemoryError, match="batch of 128 tokens.*below 500"):
        retriever.encode_queries([LONG * 9, "Why?"])


def test_a_progress_bar_counts_texts(bert_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    retriever = Retriever(bert_folder, pooling="cls")
    capsys.readouterr()
    retriever.encode_queries(MIXED)
    assert capsys.readouterr().err == ""
    retriever.encode_queries(MIXED, progress=True)
    assert f"{len(MIXED)}/{len(MIXED)}" in capsys.readouterr().err
