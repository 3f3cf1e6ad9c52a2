"""Batches by length, padded and packed, and the vectors that an encoder gives for them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling
from transformers import AutoConfig, AutoTokenizer

from modeling_condenser.encoding import retriever as batches
from modeling_condenser.encoding.packed import accept_packed
from modeling_condenser.encoding.retriever import Retriever
from tests.backbones.encoders import BACKBONES
from tests.encoding.making import MIXED, save_mapped, save_modules, save_pooled, with_segments
from tests.publishing.making import plain_vectors


@pytest.fixture
def tokenizer(bert_folder: Path, tmp_path: Path) -> Any:
    """Its padding token is not 0 and its segment ids are not all equal."""
    tokenizer = AutoTokenizer.from_pretrained(with_segments(bert_folder, tmp_path / "encoder"))
    tokenizer.pad_token = "[MASK]"
    return tokenizer


def test_batches_take_neighbours_the_longest_first_and_equal_ones_in_order():
    lengths = np.array([3, 9, 3, 5, 9, 2, 3])

    def plan(lengths: np.ndarray, **settings: Any) -> list[list[int]]:
        return [rows.tolist() for rows in batches.plan_batches(lengths, **settings)]

    assert plan(lengths, token_budget=10) == [[1], [4], [3, 0], [2, 6, 5]]
    for budget in (128, 190):  # a row is filled up to a multiple of 64, so both have the same room
        packed = plan(10 * lengths, token_budget=budget, packed=True)
        assert packed == [[1], [4], [3, 0, 2], [6, 5]]
    for is_packed in (False, True):  # a text beyond the budget is a batch of its own
        long = np.array([2, 50, 2, 60])
        assert plan(long, token_budget=4, packed=is_packed) == [[3], [1], [0, 2]]


def test_a_padded_batch_is_what_the_tokenizer_itself_would_pad(tokenizer, monkeypatch):
    monkeypatch.setattr(batches, "_TEXTS_A_CALL", 4)
    texts = batches.tokenize_texts(tokenizer, MIXED, max_length=32, token_type_ids=True)
    seen: list[int] = []
    for rows, actual in batches.make_batches(texts, tokenizer=tokenizer, token_budget=64):
        expected = tokenizer(
            [MIXED[row] for row in rows],
            truncation=True,
            max_length=32,
            padding=True,
            return_token_type_ids=True,
            return_tensors="pt",
        )
        assert set(actual) == set(expected) == {"input_ids", "attention_mask", "token_type_ids"}
        for name, column in actual.items():
            torch.testing.assert_close(column, expected[name], rtol=0, atol=0)
        seen.extend(rows.tolist())
    assert sorted(seen) == list(range(len(MIXED)))
    assert batches.tokenize_texts(tokenizer, MIXED, max_length=30).keys() == {"input_ids"}


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_long_text_is_cut_as_by_its_tokenizer(side, texts, monkeypatch):
    tokenizer = BACKBONES["BERT"].tokenizer(texts)
    tokenizer.truncation_side = side
    long = [" ".join(texts), "a" * 30_000, " " * 3000 + texts[0], ("x" * 90 + " ") * 30]
    long.append(f"{'a' * 20_000} {texts[0]}")  # the beginning has one token
    read: list[int] = []
    tokenize = type(tokenizer).__call__

    def note(self: Any, parts: list[str], **options: Any) -> Any:
        read.extend(map(len, parts))
        return tokenize(self, parts, **options)

    for max_length in (3, 40):
        expected = tokenizer(long, truncation=True, max_length=max_length)["input_ids"]
        with monkeypatch.context() as patch:
            patch.setattr(type(tokenizer), "__call__", note)
            actual = batches.tokenize_texts(tokenizer, long, max_length=max_length)["input_ids"]
        assert [ids.tolist() for ids in actual] == expected
    # Of the first text only the beginning is read; those of one long word are read again, whole.
    assert max(read) == (len(long[0]) if side == "left" else 30_000)


def test_a_text_that_the_tokenizer_does_not_know_is_warned_of_once(bert_folder, caplog):
    retriever = Retriever(bert_folder, pooling="cls", device="cpu")
    retriever.encode_queries(["Why?", "The river left."])
    assert caplog.text == ""
    for _ in range(2):
        retriever.encode_queries(["Why? ქართული ენა"])
    assert caplog.text.count("50 % of the tokens (texts: 1) are [UNK]") == 1


def packed(folder: Path, **settings: Any) -> Retriever:
    """A retriever that packs in float32, too, in which exactness can be seen."""
    retriever = Retriever(folder, device="cpu", **settings)
    retriever._is_packed = accept_packed(retriever.model)
    return retriever


def encode(retriever: Retriever) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    """Vectors, and each batch's rows and columns of token ids, and those of hidden states."""
    shapes: list[tuple[int, ...]] = []
    transformer: Any = retriever.model[0]

    def note(_: Any, args: tuple, features: dict[str, Any]) -> None:
        shapes.append((*args[0]["input_ids"].shape, *features["token_embeddings"].shape[:2]))

    hook = transformer.register_forward_hook(note)
    vectors = retriever.encode_queries(MIXED)
    hook.remove()
    return vectors, shapes


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("name", sorted(BACKBONES))
def test_packed_vectors_are_those_of_transformers(name, pooling, texts, tmp_path):
    folder = BACKBONES[name].save(tmp_path, texts)
    retriever = packed(folder, pooling=pooling, token_budget=64)
    actual, shapes = encode(retriever)
    expected = plain_vectors(folder, MIXED, pooling=pooling).numpy()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)
    expected_rows = BACKBONES[name].packed
    assert retriever._is_packed == (expected_rows is not None)
    if retriever._is_packed:
        assert len(shapes) > 2 and {shape[:2] for shape in shapes} == {(1, 64)}
        reads_cls_only = pooling == "cls" and expected_rows == "rows that are read"
        assert all((rows < 10) == reads_cls_only for *_, rows in shapes)


def test_modules_read_cls_alone_and_padded_batches_of_others_are_as_before(bert_folder, tmp_path):
    torch.manual_seed(1)
    folder = save_modules(
        tmp_path / "dense",
        bert_folder,
        lambda size: [Pooling(size, pooling_mode="cls"), Dense(size, 12), Normalize()],
        similarity_fn_name="cosine",
    )
    retriever = packed(folder)
    actual, shapes = encode(retriever)
    assert [shape[3] for shape in shapes] == [len(MIXED) + 1]  # and the filler
    by_the_library = retriever.model.encode(MIXED, show_progress_bar=False)
    np.testing.assert_allclose(actual, by_the_library, rtol=0, atol=2e-6)
    untouched = Retriever(folder, device="cpu").model.encode(MIXED, show_progress_bar=False)
    assert np.array_equal(by_the_library, untouched)


def test_segment_ids_are_packed_too(bert_folder, tmp_path):
    encoder = with_segments(bert_folder, tmp_path / "encoder")
    retriever = packed(save_pooled(tmp_path / "pooled", encoder, "mean"))
    expected = retriever.model.encode(MIXED, show_progress_bar=False)
    for budget in (2048, 64):
        retriever.token_budget = budget
        actual, shapes = encode(retriever)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6)
        assert all(shape[:2] == shape[2:] and shape[0] == 1 for shape in shapes)


def test_other_models_stay_padded(bert_folder, tmp_path):
    causal = save_pooled(tmp_path / "causal", bert_folder, "cls")
    AutoConfig.from_pretrained(causal, is_decoder=True).save_pretrained(causal)
    dense = save_mapped(tmp_path / "dense", bert_folder)
    for folder in (causal, dense):
        assert not accept_packed(SentenceTransformer(str(folder), device="cpu"))
    plain = save_pooled(tmp_path / "plain", bert_folder, "cls")
    # Apple's and Intel's GPUs, as another device here, have no packed attention.
    assert not accept_packed(SentenceTransformer(str(plain), device="cpu").to("meta"))
    assert accept_packed(SentenceTransformer(str(plain), device="cpu"))
    # Float32 is padded, too, as in the evaluation script.
    settings: Any = {"pooling": "cls", "device": "cpu"}
    _, shapes = encode(Retriever(bert_folder, **settings))
    assert [shape[0] for shape in shapes] == [len(MIXED)]
    _, shapes = encode(Retriever(bert_folder, **settings, dtype="bfloat16"))
    assert [shape[3] for shape in shapes] == [len(MIXED) + 1]
