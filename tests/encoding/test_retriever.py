"""Vectors of queries and passages against transformers and sentence-transformers alone."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling
from torch.nn import functional as F
from transformers import BertConfig, BertModel

from modeling_condenser.encoding import retriever as encoding
from modeling_condenser.encoding.embeddings import write_embeddings
from modeling_condenser.encoding.fingerprints import Dtype
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.hub.contract import EncodingContract
from modeling_condenser.hub.export import export_encoder
from tests.encoding.encoders import (
    LONG,
    MIXED,
    as_passages,
    save_modules,
    save_pooled,
    with_segments,
)
from tests.hub.making import plain_vectors

TEXTS = ["Why?", LONG * 3]


@pytest.fixture(scope="module")
def export(bert_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    contract = EncodingContract(8, 20, title_separator=" | ")
    return export_encoder(bert_run, tmp_path_factory.mktemp("export") / "e", contract=contract)


@pytest.fixture(scope="module")
def dense_folder(bert_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence-transformers model with prompts, a dense layer and truncated vectors."""
    torch.manual_seed(1)
    return save_modules(
        tmp_path_factory.mktemp("models") / "dense",
        bert_folder,
        lambda size: [Pooling(size, pooling_mode="mean"), Dense(size, 12), Normalize()],
        max_seq_length=40,
        prompts={"query": "In words: ", "document": "It says: "},
        similarity_fn_name="cosine",
        truncate_dim=10,
    )


@pytest.fixture(scope="module")
def retriever(bert_folder: Path) -> Retriever:
    return Retriever(bert_folder, pooling="mean", device="cpu")


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_queries_and_passages_are_cut_at_their_own_lengths(export: Path) -> None:
    retriever = Retriever(export)
    passages = as_passages(TEXTS, ["", "Museums of Leeds"])
    titled = [TEXTS[0], f"Museums of Leeds | {TEXTS[1]}"]
    for _ in range(2):  # the one must not leave its length to the other
        queries, documents = retriever.encode_queries(TEXTS), retriever.encode_passages(passages)
        np.testing.assert_allclose(queries, plain_vectors(export, TEXTS, 8), atol=2e-6)
        np.testing.assert_allclose(documents, plain_vectors(export, titled, 20), atol=2e-6)


def test_stated_settings_override_the_contract(export: Path) -> None:
    stated = {"pooling": "mean", "similarity": "cosine", "query_max_length": 9}
    retriever = Retriever(export, **stated)
    assert retriever.contract == dataclasses.replace(EncodingContract.load(export), **stated)
    assert retriever.settings == stated
    expected = F.normalize(plain_vectors(export, TEXTS, 9, pooling="mean"))
    np.testing.assert_allclose(retriever.encode_queries(TEXTS), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("encoder", "pooling"),
    [("bert_folder", "cls"), ("bert_folder", "max"), ("roberta_folder", "mean")],
)
def test_a_plain_encoder_gives_what_transformers_gives_for_each_text_alone(
    encoder: str, pooling: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(encoder)
    retriever = Retriever(folder, pooling=pooling, token_budget=150)
    expected = plain_vectors(folder, MIXED, pooling=pooling).numpy()
    assert retriever.dimension == expected.shape[1] == 32
    assert retriever.contract == EncodingContract(
        64, 64, pooling=pooling, token_type_ids=encoder == "bert_folder"
    )
    for found in (
        retriever.encode_queries(MIXED),
        retriever.encode_passages(as_passages(MIXED)),
        retriever.encode_passages(MIXED),
        retriever.encode_texts(MIXED, 64),
    ):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    shorter = plain_vectors(folder, MIXED, 9, pooling=pooling)
    np.testing.assert_allclose(retriever.encode_texts(MIXED, 9), shorter, rtol=0, atol=1e-5)


def test_a_sentence_transformers_model_gives_what_the_library_itself_gives(
    dense_folder: Path,
) -> None:
    retriever = Retriever(dense_folder, token_budget=100)
    model = SentenceTransformer(str(dense_folder), device="cpu")
    assert retriever.dimension == 10  # of 12, which the model truncates
    assert retriever.contract == EncodingContract(
        *(40, 40, "mean", "cosine"),
        query_prompt="In words: ",
        passage_prompt="It says: ",
        token_type_ids=True,
    )
    titles = ["A title" if row % 2 else "" for row in range(len(MIXED))]
    titled = [f"{title} {text}".lstrip() for title, text in zip(titles, MIXED, strict=True)]
    for found, expected in (
        (retriever.encode_queries(MIXED), model.encode_query(MIXED)),
        (retriever.encode_passages(as_passages(MIXED, titles)), model.encode_document(titled)),
        (retriever.encode_texts(MIXED, 40), model.encode(MIXED)),
    ):
        np.testing.assert_allclose(found, unit(expected), rtol=0, atol=1e-5)


def test_a_pooling_outside_the_contract_works_and_is_named(
    bert_folder: Path, tmp_path: Path
) -> None:
    folder = save_pooled(tmp_path / "model", bert_folder, ("cls", "mean"))
    retriever = Retriever(folder)
    expected = SentenceTransformer(str(folder), device="cpu").encode(MIXED)
    assert (retriever.contract.pooling, retriever.dimension) == ("cls+mean", expected.shape[1])
    np.testing.assert_allclose(retriever.encode_queries(MIXED), expected, rtol=0, atol=1e-5)


def test_a_stated_pooling_replaces_that_of_a_sentence_transformers_model(
    bert_folder: Path, dense_folder: Path
) -> None:
    found = Retriever(dense_folder, pooling="max", query_prompt="")
    assert found.contract.pooling == "max"
    features = {"sentence_embedding": plain_vectors(bert_folder, MIXED, 40, pooling="max")}
    with torch.no_grad():
        for module in list(SentenceTransformer(str(dense_folder), device="cpu"))[2:]:
            features = module(features)
    expected = unit(features["sentence_embedding"][:, :10].numpy())
    np.testing.assert_allclose(found.encode_queries(MIXED), expected, rtol=0, atol=1e-5)


def test_neither_budget_nor_window_nor_company_changes_a_vector(
    bert_folder: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    some = [*MIXED, *texts[:30]]
    retriever = Retriever(bert_folder, pooling="mean")
    expected = retriever.encode_queries(some)
    assert np.array_equal(retriever.encode_queries(some), expected)
    for budget in (1, 65, 10**9):
        retriever.token_budget = budget
        np.testing.assert_allclose(retriever.encode_queries(some), expected, rtol=0, atol=1e-6)
    monkeypatch.setattr(encoding, "WINDOW", 7)
    np.testing.assert_allclose(retriever.encode_queries(some), expected, rtol=0, atol=1e-6)
    found = retriever.encode_passages(as_passages(some).select(range(3, 30)))
    np.testing.assert_allclose(found, expected[3:30], rtol=0, atol=1e-6)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_bfloat16_vectors_are_close_to_those_of_float32(
    pooling: str, bert_folder: Path, texts: list[str]
) -> None:
    some = [*MIXED, *texts[:40]]
    single = Retriever(bert_folder, pooling=pooling, similarity="cosine")
    half = Retriever(bert_folder, pooling=pooling, similarity="cosine", dtype="bfloat16")
    assert {weight.dtype for weight in half.model.parameters()} == {torch.bfloat16}
    found, expected = half.encode_queries(some), single.encode_queries(some)
    assert (found * expected).sum(axis=1).min() > 0.999
    assert np.abs(found - expected).max() > 1e-4  # else nothing was rounded
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=0, atol=1e-6)
    again = Retriever(half.folder, **half.settings)
    assert np.array_equal(again.encode_queries(some), found)
    assert again.fingerprint == half.fingerprint != single.fingerprint


def test_search_ranks_texts_and_embeddings(
    retriever: Retriever, texts: list[str], tmp_path: Path
) -> None:
    queries, passages = [texts[3], "Why?"], texts[:30]
    vectors = retriever.encode_passages(passages)
    scores = retriever.encode_queries(queries) @ vectors.T
    expected = np.argsort(-scores, axis=1)[:, :4]
    embeddings = write_embeddings(tmp_path, vectors, [f"p{i}" for i in range(30)])
    by_text = retriever.search(queries, passages, depth=4)
    by_id = retriever.search(queries, embeddings, depth=4)
    for query, rows in enumerate(expected):
        assert [text for text, _ in by_text[query]] == [passages[row] for row in rows]
        assert [name for name, _ in by_id[query]] == [f"p{row}" for row in rows]
        assert [score for _, score in by_id[query]] == pytest.approx(scores[query, rows])
    assert len(retriever.search(["Why?"], ["Because."], depth=10)[0]) == 1
    assert retriever.encode_passages(as_passages([])).shape == (0, 32)


def test_a_vector_that_is_not_finite_is_an_error_that_names_the_row(
    bert_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever = Retriever(shutil.copytree(bert_folder, tmp_path / "e"), pooling="cls")
    token = retriever.model.tokenizer("volcano")["input_ids"][1]
    with torch.no_grad():
        retriever.model[0].model.get_input_embeddings().weight[token] = float("nan")
    monkeypatch.setattr(encoding, "WINDOW", 4)
    some = ["Why?"] * 6 + ["A volcano.", "Why?", "volcano " * 20]
    with pytest.raises(ValueError, match="1 of 4 vectors hold NaN .* row 6: training may have"):
        retriever.encode_passages(as_passages(some))


def test_wrong_texts_are_refused(bert_folder: Path, retriever: Retriever) -> None:
    with pytest.raises(ValueError, match=r"one string, 'Why\?'; expected a list"):
        retriever.encode_queries("Why?")
    with pytest.raises(ValueError, match="Row 1 is None, expected a text"):
        retriever.encode_passages(as_passages(["a", None]))
    euclidean = Retriever(bert_folder, pooling="cls", similarity="euclidean")
    with pytest.raises(ValueError, match="compares by Euclidean distance"):
        euclidean.search(["a"], ["b"])


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.1)])
@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_a_gpu_gives_the_vectors_of_the_cpu(
    bert_folder: Path, texts: list[str], pooling: str, dtype: Dtype, tolerance: float
) -> None:
    some = [*MIXED, *texts]
    on_gpu = Retriever(bert_folder, pooling=pooling, device="cuda", token_budget=900, dtype=dtype)
    on_cpu = Retriever(bert_folder, pooling=pooling, device="cpu")
    found = on_gpu.encode_passages(as_passages(some))
    assert on_gpu.model.device.type == "cuda"
    np.testing.assert_allclose(found, on_cpu.encode_queries(some), rtol=0, atol=tolerance)
    assert np.array_equal(found, on_gpu.encode_passages(as_passages(some)))


def test_segment_ids_are_passed_if_the_contract_says_so(bert_folder: Path, tmp_path: Path) -> None:
    folder = with_segments(bert_folder, tmp_path / "encoder")
    with_ids = Retriever(folder, pooling="mean").encode_queries(MIXED)
    expected = plain_vectors(folder, MIXED, pooling="mean").numpy()
    np.testing.assert_allclose(with_ids, expected, rtol=0, atol=1e-5)
    EncodingContract(64, 64, pooling="mean").save(folder)
    without = Retriever(folder).encode_queries(MIXED)
    bare = plain_vectors(bert_folder, MIXED, pooling="mean")  # whose segments are all 0
    np.testing.assert_allclose(without, bare, rtol=0, atol=1e-5)
    assert np.abs(without - expected).max() > 1e-3


def test_padded_texts_are_never_longer_than_the_positions(
    wordpiece_tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BertConfig(
        vocab_size=len(wordpiece_tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=30,  # not a multiple of 8
    )
    BertModel(config).save_pretrained(tmp_path)
    wordpiece_tokenizer.save_pretrained(tmp_path)
    monkeypatch.setattr(encoding, "use_packing", lambda model: False)
    retriever = Retriever(tmp_path, pooling="cls", dtype="bfloat16", device="cpu")
    alone, together = (retriever.encode_queries(texts) for texts in ([LONG * 3], TEXTS))
    assert retriever.contract.query_max_length == 30 and np.isfinite(together).all()
    np.testing.assert_allclose(together[1], alone[0], atol=2e-2)
