"""Vectors of queries and passages against transformers and sentence-transformers alone."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling
from torch.nn import functional as F
from transformers import AutoModel, PreTrainedTokenizerFast

from modeling_condenser.encoding import retriever as encoding
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.files import run_folder
from modeling_condenser.files.models import EncodingContract
from modeling_condenser.publishing.export import export_encoder
from tests.encoding.making import LONG, MIXED, as_passages, save_modules, with_segments
from tests.publishing.making import plain_vectors

TEXTS = ["Why?", LONG * 3]


@pytest.fixture(scope="module")
def retriever(bert_folder: Path) -> Retriever:
    return Retriever(bert_folder, pooling="mean", device="cpu")


def assert_close(actual: Any, expected: Any, *, atol: float = 1e-5) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_an_export_is_encoded_by_its_contract_unless_other_settings_are_stated(bert_run, tmp_path):
    contract = EncodingContract(8, 20, title_separator=" | ")
    export = export_encoder(bert_run, tmp_path / "export", contract=contract)
    retriever = Retriever(export)
    passages = as_passages(TEXTS, ["", "Museums of Leeds"])
    titled = [TEXTS[0], f"Museums of Leeds | {TEXTS[1]}"]
    for _ in range(2):  # the one must not leave its length to the other
        queries, documents = retriever.encode_queries(TEXTS), retriever.encode_passages(passages)
        assert_close(queries, plain_vectors(export, TEXTS, 8))
        assert_close(documents, plain_vectors(export, titled, 20))
    overrides = {"pooling": "mean", "similarity": "cosine", "query_max_length": 9}
    other = Retriever(export, **overrides, title_separator=None)
    assert other.contract == replace(contract, **overrides)
    expected = F.normalize(plain_vectors(export, TEXTS, 9, pooling="mean"))
    assert_close(other.encode_queries(TEXTS), expected)


def test_many_texts_that_are_cut_are_named_once(bert_folder, caplog, monkeypatch):
    retriever = Retriever(bert_folder, pooling="mean", device="cpu", passage_max_length=20)
    retriever.encode_passages([LONG * 3] * 60)  # with a limit that was set on purpose
    monkeypatch.setattr(encoding, "_USUAL_LIMIT", 20)
    retriever.encode_passages([LONG * 3] * 9)
    assert "tokens that the model reads" not in caplog.text
    for _ in range(2):
        retriever.encode_passages(["Why?"] * 50 + [LONG * 3] * 6)
    assert caplog.text.count("6 of 56 texts fill the 20 tokens that the model reads") == 1


@pytest.mark.parametrize(
    ("encoder", "pooling"),
    [("bert_folder", "cls"), ("bert_folder", "max"), ("roberta_folder", "mean")],
)
def test_a_plain_encoder_gives_what_transformers_gives_for_each_text(encoder, pooling, request):
    folder = request.getfixturevalue(encoder)
    retriever = Retriever(folder, pooling=pooling, token_budget=150)
    expected = plain_vectors(folder, MIXED, pooling=pooling).numpy()
    assert retriever.dimension == expected.shape[1] == 32
    assert retriever.contract == EncodingContract(
        64, 64, pooling=pooling, token_type_ids=encoder == "bert_folder"
    )
    assert_close(retriever.encode_queries(MIXED), expected)
    assert_close(retriever.encode_passages(as_passages(MIXED)), expected)
    assert_close(retriever.encode_passages(MIXED), expected)
    untitled = as_passages(MIXED).remove_columns("title")
    assert_close(retriever.encode_passages(untitled), expected)


def test_a_sentence_transformers_model_gives_what_the_library_itself_gives(bert_folder, tmp_path):
    torch.manual_seed(1)
    folder = save_modules(
        tmp_path / "dense",
        bert_folder,
        lambda size: [Pooling(size, pooling_mode="weightedmean"), Dense(size, 12), Normalize()],
        length=40,
        prompts={"query": "In words: ", "document": "It says: "},
        similarity_fn_name="cosine",
        truncate_dim=10,
    )
    retriever = Retriever(folder, token_budget=100)
    model = SentenceTransformer(str(folder), device="cpu")
    assert retriever.dimension == 10  # of 12, which the model truncates
    assert retriever.contract == EncodingContract(
        *(40, 40, "weightedmean", "cosine"),  # a pooling outside `Pooling`
        query_prompt="In words: ",
        passage_prompt="It says: ",
        token_type_ids=True,
    )
    titles = ["A title" if row % 2 else "" for row in range(len(MIXED))]
    titled = [f"{title} {text}".lstrip() for title, text in zip(titles, MIXED, strict=True)]
    assert_close(retriever.encode_queries(MIXED), unit(model.encode_query(MIXED)))
    passages = retriever.encode_passages(as_passages(MIXED, titles))
    assert_close(passages, unit(model.encode_document(titled)))

    with_max = Retriever(folder, pooling="max", query_prompt="")  # replaces that of the model
    assert with_max.contract.pooling == "max"
    features = {"sentence_embedding": plain_vectors(bert_folder, MIXED, 40, pooling="max")}
    with torch.no_grad():
        for module in list(model)[2:]:
            features = module(features)
    expected = unit(features["sentence_embedding"][:, :10].numpy())
    assert_close(with_max.encode_queries(MIXED), expected)


def test_segment_ids_are_passed_if_the_contract_says_so(bert_folder, tmp_path):
    folder = with_segments(bert_folder, tmp_path / "encoder")
    with_ids = Retriever(folder, pooling="mean").encode_queries(MIXED)
    expected = plain_vectors(folder, MIXED, pooling="mean").numpy()
    assert_close(with_ids, expected)
    without = Retriever(folder, pooling="mean", token_type_ids=False).encode_queries(MIXED)
    bare = plain_vectors(bert_folder, MIXED, pooling="mean")  # whose segments are all 0
    assert_close(without, bare)
    assert np.abs(without - expected).max() > 1e-3


def test_neither_budget_nor_window_nor_company_changes_a_vector(bert_folder, texts, monkeypatch):
    some = [*MIXED, *texts[:30]]
    retriever = Retriever(bert_folder, pooling="mean")
    expected = retriever.encode_queries(some)
    assert np.array_equal(retriever.encode_queries(some), expected)
    for budget in (1, 65, 10**9):
        retriever.token_budget = budget
        assert_close(retriever.encode_queries(some), expected, atol=1e-6)
    monkeypatch.setattr(encoding, "WINDOW", 7)
    assert_close(retriever.encode_queries(some), expected, atol=1e-6)
    actual = retriever.encode_passages(as_passages(some).select(range(3, 30)))
    assert_close(actual, expected[3:30], atol=1e-6)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_bfloat16_vectors_are_close_to_those_of_float32(pooling, bert_folder, texts):
    some = [*MIXED, *texts[:40]]
    single = Retriever(bert_folder, pooling=pooling, similarity="cosine")
    half = Retriever(bert_folder, pooling=pooling, similarity="cosine", dtype="bfloat16")
    assert {weight.dtype for weight in half.model.parameters()} == {torch.bfloat16}
    actual, expected = half.encode_queries(some), single.encode_queries(some)
    assert (actual * expected).sum(axis=1).min() > 0.999
    assert np.abs(actual - expected).max() > 1e-4  # else nothing was rounded
    assert_close(np.linalg.norm(actual, axis=1), 1, atol=1e-6)
    assert half.fingerprint != single.fingerprint


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_blank_text_without_special_tokens_is_a_padding_token(dtype, bert_folder, tmp_path):
    folder = shutil.copytree(bert_folder, tmp_path / "encoder")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**tokenizer, "post_processor": None}))
    settings = {"pad_token": "[PAD]", "model_max_length": 64}
    fast = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **settings)
    fast.save_pretrained(folder)
    retriever = Retriever(folder, pooling="max", device="cpu", dtype=dtype)
    ids = torch.tensor([[retriever.model.tokenizer.pad_token_id]])
    expected = AutoModel.from_pretrained(folder)(ids).last_hidden_state[0].detach().numpy()
    for actual in (retriever.encode_queries([""]), retriever.encode_passages(["Why?", " "])[1:]):
        np.testing.assert_allclose(actual, expected, atol=1e-5 if dtype == "float32" else 0.05)


def test_a_bar_appears_after_a_second_unless_an_outer_call_hides_it(retriever, monkeypatch, capsys):
    retriever.encode_queries(["Why?"])
    assert not capsys.readouterr().err
    monkeypatch.setattr(run_folder, "_BAR_DELAY", 0)
    for is_shown in (True, False):
        with run_folder.show_bars(is_shown), run_folder.show_bars(True):
            retriever.encode_queries(["Why?"])
        assert ("encode" in capsys.readouterr().err) == is_shown


def test_wrong_texts_and_vectors_are_errors(bert_folder, monkeypatch):
    retriever = Retriever(bert_folder, pooling="cls", similarity="euclidean")
    with pytest.raises(ValueError, match=r"Got 'Why\?', expected a list of texts"):
        retriever.encode_queries("Why?")
    with pytest.raises(ValueError, match="Got {'p1': 'a'}, expected a list of texts"):
        retriever.encode_passages({"p1": "a"})
    with pytest.raises(ValueError, match="Row 1 is .* has half of a character"):
        retriever.encode_queries(["a", "\ud83d"])
    with pytest.raises(ValueError, match="Row 1 is None, expected a text"):
        retriever.encode_passages(as_passages(["a", None]))
    with pytest.raises(ValueError, match="compares by Euclidean distance"):
        retriever.check_inner_product()
    assert retriever.encode_passages(as_passages([])).shape == (0, 32)
    monkeypatch.setattr(encoding, "WINDOW", 4)
    token = retriever.model.tokenizer("volcano")["input_ids"][1]
    with torch.no_grad():
        retriever.model[0].model.get_input_embeddings().weight[token] = float("nan")
    some = ["Why?"] * 6 + ["A volcano.", "Why?", "volcano " * 20]
    with pytest.raises(ValueError, match="1 of 4 vectors hold NaN .* row 6: training may have"):
        retriever.encode_passages(as_passages(some))


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.1)])
@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_a_gpu_gives_the_vectors_of_the_cpu(bert_folder, texts, pooling, dtype, tolerance):
    some = [*MIXED, *texts]
    on_gpu = Retriever(bert_folder, pooling=pooling, device="cuda", token_budget=900, dtype=dtype)
    on_cpu = Retriever(bert_folder, pooling=pooling, device="cpu")
    actual = on_gpu.encode_passages(as_passages(some))
    assert on_gpu.model.device.type == "cuda"
    assert_close(actual, on_cpu.encode_queries(some), atol=tolerance)
    assert np.array_equal(actual, on_gpu.encode_passages(as_passages(some)))
