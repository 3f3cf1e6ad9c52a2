"""Vectors of queries and passages against transformers and sentence-transformers alone."""

import copy
import dataclasses
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
)
from transformers import (
    AutoModel,
    AutoTokenizer,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2Model,
)

from modeling_condenser.encoding import retriever as encoding
from modeling_condenser.encoding.precision import Dtype
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.repository.contract import EncodingContract
from tests.encoding.encoders import (
    LONG,
    MIXED,
    SEGMENTED,
    as_passages,
    save_modules,
    save_pooled,
    with_template,
)
from tests.publishing.making import make_run, plain_vectors

TEXTS = ["Why?", LONG * 3]
TITLES = ["", "Museums of Leeds"]


@pytest.fixture(scope="module")
def run(bert_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(bert_folder, tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def dense_folder(bert_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence-transformers model with prompts and more than a pooling."""
    return save_modules(
        tmp_path_factory.mktemp("models") / "dense",
        bert_folder,
        lambda size: [Pooling(size, pooling_mode="mean"), dense_layer(size), Normalize()],
        max_seq_length=40,
        prompts={"query": "In words: ", "document": "It says: "},
        similarity_fn_name="cosine",
    )


def dense_layer(size: int) -> Dense:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return Dense(size, 12)


def open_retriever(run: Path, folder: Path, *, similarity: str = "dot") -> Retriever:
    contract = EncodingContract(8, 20, title_separator=" | ", similarity=similarity)
    return Retriever(export_encoder(run, folder, contract=contract))


def test_queries_and_passages_are_cut_at_their_own_lengths(run: Path, tmp_path: Path) -> None:
    retriever = open_retriever(run, tmp_path / "encoder")
    passages = as_passages(TEXTS, TITLES)
    titled = [TEXTS[0], f"{TITLES[1]} | {TEXTS[1]}"]
    # Twice, since the one must not leave its length to the other.
    for _ in range(2):
        queries = retriever.encode_queries(TEXTS)
        documents = retriever.encode_passages(passages)
        assert queries.dtype == documents.dtype == np.float32
        np.testing.assert_allclose(queries, plain_vectors(retriever.folder, TEXTS, 8), atol=2e-6)
        np.testing.assert_allclose(
            documents, plain_vectors(retriever.folder, titled, 20), atol=2e-6
        )
    for other in (7, 9, 20):
        difference = queries[1] - plain_vectors(retriever.folder, TEXTS[1:], other)[0].numpy()
        assert np.abs(difference).max() > 1e-3


def test_cosine_gives_unit_vectors(run: Path, tmp_path: Path) -> None:
    retriever = open_retriever(run, tmp_path / "encoder", similarity="cosine")
    expected = plain_vectors(retriever.folder, TEXTS, 8).numpy()
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(retriever.encode_queries(TEXTS), expected, rtol=0, atol=1e-6)
    stated = Retriever(retriever.folder, similarity="dot")
    expected = plain_vectors(retriever.folder, TEXTS, 8)
    np.testing.assert_allclose(stated.encode_queries(TEXTS), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("similarity", ["dot", "euclidean"])
@pytest.mark.parametrize("encoder", ["bert_folder", "roberta_folder"])
@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_a_plain_encoder_gives_what_transformers_gives_for_each_text_alone(
    encoder: str, pooling: str, similarity: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(encoder)
    retriever = Retriever(folder, pooling=pooling, similarity=similarity, token_budget=150)
    expected = plain_vectors(folder, MIXED, pooling=pooling).numpy()
    assert retriever.dimension == expected.shape[1] == 32
    assert retriever.contract == EncodingContract(
        64, 64, pooling=pooling, similarity=similarity, token_type_ids=encoder == "bert_folder"
    )
    for found in (
        retriever.encode_queries(MIXED),
        retriever.encode_passages(as_passages(MIXED)),
        retriever.encode_texts(MIXED, 64),
    ):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    shorter = plain_vectors(folder, MIXED, 9, pooling=pooling)
    np.testing.assert_allclose(retriever.encode_texts(MIXED, 9), shorter, rtol=0, atol=1e-5)
    assert np.abs(expected - shorter.numpy()).max() > 1e-2


def test_the_vectors_of_an_exports_encoder_are_those_of_its_backbone(
    run: Path, tmp_path: Path
) -> None:
    contract = EncodingContract(16, 64, pooling="max")
    retriever = Retriever(export_encoder(run, tmp_path / "encoder", contract=contract))
    backbone = Retriever(run / "model", pooling="max")  # a checkpoint is an encoder, too
    np.testing.assert_array_equal(
        retriever.encode_texts(MIXED, 64), backbone.encode_texts(MIXED, 64)
    )
    expected = plain_vectors(retriever.folder, MIXED, pooling="max")
    np.testing.assert_allclose(
        retriever.encode_passages(as_passages(MIXED)), expected, rtol=0, atol=1e-5
    )


def test_a_sentence_transformers_model_gives_what_the_library_itself_gives(
    dense_folder: Path,
) -> None:
    retriever = Retriever(dense_folder, token_budget=100)
    model = SentenceTransformer(str(dense_folder), device="cpu")
    assert retriever.dimension == 12
    assert retriever.contract == EncodingContract(
        40,
        40,
        pooling="mean",
        similarity="cosine",
        query_prompt="In words: ",
        passage_prompt="It says: ",
        token_type_ids=True,
    )
    titles = ["A title" if row % 2 else "" for row in range(len(MIXED))]
    titled = [
        f"{title} {text}" if title else text for title, text in zip(titles, MIXED, strict=True)
    ]
    queries = retriever.encode_queries(MIXED)
    passages = retriever.encode_passages(as_passages(MIXED, titles))
    np.testing.assert_allclose(queries, model.encode_query(MIXED), rtol=0, atol=1e-5)
    np.testing.assert_allclose(passages, model.encode_document(titled), rtol=0, atol=1e-5)
    bare = retriever.encode_texts(MIXED, 40)
    np.testing.assert_allclose(bare, model.encode(MIXED), rtol=0, atol=1e-5)
    assert np.abs(bare - queries).max() > 1e-2


@pytest.mark.parametrize(
    ("modes", "name"),
    [
        ("weightedmean", "weightedmean"),
        ("lasttoken", "lasttoken"),
        (("cls", "mean"), "cls+mean"),
    ],
)
def test_poolings_that_contracts_have_no_word_for_work_and_are_named(
    modes: object, name: str, bert_folder: Path, tmp_path: Path
) -> None:
    folder = save_pooled(tmp_path / "model", bert_folder, modes)
    retriever = Retriever(folder)
    expected = SentenceTransformer(str(folder), device="cpu").encode(MIXED)
    assert retriever.contract.pooling == name
    assert retriever.dimension == expected.shape[1]
    np.testing.assert_allclose(retriever.encode_queries(MIXED), expected, rtol=0, atol=1e-5)
    # It can be stated as it was read, but our own files cannot hold it.
    assert Retriever(folder, pooling=name).fingerprint == retriever.fingerprint
    retriever.contract.save(tmp_path)
    with pytest.raises(ValueError, match="expected one of 'cls', 'mean', 'max'"):
        EncodingContract.load(tmp_path)


def test_a_pooling_that_leaves_out_the_prompt_does_so(bert_folder: Path, tmp_path: Path) -> None:
    folder = save_modules(
        tmp_path / "model",
        bert_folder,
        lambda size: [Pooling(size, pooling_mode="mean", include_prompt=False)],
        prompts={"query": "In other words: ", "document": ""},
        similarity_fn_name="dot",
    )
    retriever = Retriever(folder)
    model = SentenceTransformer(str(folder), device="cpu")
    assert retriever.contract.pooling == "mean without prompt"
    np.testing.assert_allclose(
        retriever.encode_queries(MIXED), model.encode_query(MIXED), rtol=0, atol=1e-5
    )


def test_a_decoder_that_pads_on_the_left_gives_what_each_text_gives_alone(
    byte_level_tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    tokenizer = copy.deepcopy(byte_level_tokenizer)
    tokenizer.padding_side = "left"
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    Qwen2Model(config).save_pretrained(tmp_path / "decoder")
    tokenizer.save_pretrained(tmp_path / "decoder")
    folder = save_modules(
        tmp_path / "model",
        tmp_path / "decoder",
        lambda size: [Pooling(size, pooling_mode="lasttoken")],
        similarity_fn_name="cosine",
    )
    model, rows = AutoModel.from_pretrained(tmp_path / "decoder"), []
    for text in MIXED:
        batch = tokenizer(text, truncation=True, max_length=64, return_tensors="pt")
        with torch.no_grad():
            rows.append(model(**batch).last_hidden_state[0, -1])
    expected = torch.nn.functional.normalize(torch.stack(rows))
    found = Retriever(folder, token_budget=300).encode_queries(MIXED)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_segment_ids_are_passed_where_the_contract_says_so(
    bert_folder: Path, wordpiece_tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    folder = with_template(bert_folder, tmp_path / "encoder", wordpiece_tokenizer, SEGMENTED)
    with_ids = Retriever(folder, pooling="mean")
    assert with_ids.contract.token_type_ids
    expected = plain_vectors(folder, MIXED, pooling="mean").numpy()
    np.testing.assert_allclose(with_ids.encode_queries(MIXED), expected, rtol=0, atol=1e-5)

    EncodingContract(64, 64, pooling="mean").save(folder)
    without = Retriever(folder).encode_queries(MIXED)
    bare = plain_vectors(bert_folder, MIXED, pooling="mean")  # whose segments are all 0
    np.testing.assert_allclose(without, bare, rtol=0, atol=1e-5)
    assert np.abs(without - expected).max() > 1e-3


def test_neither_budget_nor_window_nor_company_changes_a_vector(
    bert_folder: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    some = [*MIXED, *texts[:60]]
    retriever = Retriever(bert_folder, pooling="mean")
    expected = retriever.encode_queries(some)
    for budget in (1, 65, 700, 10**9):
        retriever.token_budget = budget
        np.testing.assert_allclose(retriever.encode_queries(some), expected, rtol=0, atol=1e-6)
    monkeypatch.setattr(encoding, "WINDOW", 7)
    np.testing.assert_allclose(retriever.encode_queries(some), expected, rtol=0, atol=1e-6)
    found = retriever.encode_passages(as_passages(some).select(range(3, 40)))
    np.testing.assert_allclose(found, expected[3:40], rtol=0, atol=1e-6)


def test_passages_are_read_one_window_ahead_and_no_further(
    bert_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, int]] = []
    retriever = Retriever(bert_folder, pooling="cls")
    tokenize, encode = encoding.tokenize_texts, retriever._encode_window

    def spy_tokenize(tokenizer: object, texts: list[str], **settings: object) -> object:
        events.append(("read", len(texts)))
        return tokenize(tokenizer, texts, **settings)

    def spy_encode(window: list, *rest: object) -> np.ndarray:
        time.sleep(0.05)  # in which a reader without restraint would read on
        events.append(("encode", len(window)))
        return encode(window, *rest)

    monkeypatch.setattr(encoding, "WINDOW", 4)
    monkeypatch.setattr(encoding, "tokenize_texts", spy_tokenize)
    monkeypatch.setattr(retriever, "_encode_window", spy_encode)
    retriever.encode_passages(as_passages([*MIXED, *MIXED]))
    for kind in ("read", "encode"):
        assert [size for event, size in events if event == kind] == [4, 4, 4, 4, 2]
    for place, (event, _) in enumerate(events):
        ahead = sum(1 if name == "read" else -1 for name, _ in events[: place + 1])
        assert 0 <= ahead <= 2 - (event == "encode")


def test_the_same_texts_give_the_same_bits(bert_folder: Path, texts: list[str]) -> None:
    passages = as_passages([*MIXED, *texts[:60]])
    first = Retriever(bert_folder, pooling="mean", token_budget=500)
    vectors = first.encode_passages(passages.select(range(20, 50)))
    first.encode_queries(texts[:5])
    assert np.array_equal(first.encode_passages(passages.select(range(20, 50))), vectors)
    again = Retriever(bert_folder, pooling="mean", token_budget=500)
    assert np.array_equal(again.encode_passages(passages.select(range(20, 50))), vectors)


def test_batches_keep_to_the_budget(
    bert_folder: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever = Retriever(bert_folder, pooling="cls", token_budget=300)
    shapes = []
    forward = retriever.model.forward

    def spy(features: dict, **kwargs: object) -> dict:
        shapes.append(tuple(features["input_ids"].shape))
        return forward(features, **kwargs)

    monkeypatch.setattr(retriever.model, "forward", spy)
    retriever.encode_queries(texts[:100])
    assert sum(rows for rows, _ in shapes) == 100
    assert max(rows * longest for rows, longest in shapes) <= 300
    assert len({longest for _, longest in shapes}) > 3


def test_no_texts_give_no_vectors(bert_folder: Path, dense_folder: Path) -> None:
    for retriever, dimension in (
        (Retriever(bert_folder, pooling="cls"), 32),
        (Retriever(dense_folder), 12),
    ):
        for found in (
            retriever.encode_queries([]),
            retriever.encode_passages(as_passages([])),
            retriever.encode_texts([], 16),
        ):
            assert found.shape == (0, dimension) and found.dtype == np.float32


def test_a_passage_without_title_or_text_is_its_special_tokens(bert_folder: Path) -> None:
    retriever = Retriever(bert_folder, pooling="cls")
    found = retriever.encode_passages(as_passages(["", "Why?", ""], ["", None, "Why?"]))
    tokenizer, model = (
        AutoTokenizer.from_pretrained(bert_folder),
        AutoModel.from_pretrained(bert_folder),
    )
    special = torch.tensor([[tokenizer.cls_token_id, tokenizer.sep_token_id]])
    with torch.no_grad():
        expected = model(special).last_hidden_state[0, 0]
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(found[1], found[2], rtol=0, atol=1e-5)


def test_what_is_stated_goes_before_the_contract_and_has_another_fingerprint(
    run: Path, tmp_path: Path
) -> None:
    folder = export_encoder(run, tmp_path / "encoder", contract=EncodingContract(8, 20))
    plain = Retriever(folder)
    changes = {
        "pooling": "mean",
        "similarity": "cosine",
        "query_max_length": 9,
        "passage_max_length": 21,
        "title_separator": " | ",
        "query_prompt": "q: ",
        "passage_prompt": "p: ",
    }
    prints = {plain.fingerprint}
    for name, value in changes.items():
        changed = Retriever(folder, **{name: value})
        assert changed.contract == dataclasses.replace(plain.contract, **{name: value})
        prints.add(changed.fingerprint)
    assert len(prints) == 1 + len(changes)
    changed = Retriever(folder, pooling="mean", query_prompt="", query_max_length=9)
    expected = plain_vectors(folder, TEXTS, 9, pooling="mean")
    np.testing.assert_allclose(changed.encode_queries(TEXTS), expected, rtol=0, atol=1e-5)
    again = Retriever(changed.folder, **changed.settings)
    assert again.fingerprint == changed.fingerprint


def test_a_stated_pooling_replaces_that_of_a_sentence_transformers_model(
    bert_folder: Path, dense_folder: Path, tmp_path: Path
) -> None:
    found = Retriever(dense_folder, pooling="max", query_prompt="")
    assert found.contract.pooling == "max"
    hidden = plain_vectors(bert_folder, MIXED, 40, pooling="max")
    with torch.no_grad():
        features = {"sentence_embedding": hidden}
        for module in list(SentenceTransformer(str(dense_folder), device="cpu"))[2:]:
            features = module(features)
    np.testing.assert_allclose(
        found.encode_queries(MIXED), features["sentence_embedding"], rtol=0, atol=1e-5
    )
    assert found.fingerprint != Retriever(dense_folder, query_prompt="").fingerprint


def test_a_model_that_keeps_the_first_numbers_of_its_vectors_does_so(
    bert_folder: Path, tmp_path: Path
) -> None:
    for similarity in ("dot", "cosine"):
        folder = save_modules(
            tmp_path / similarity,
            bert_folder,
            lambda size: [Pooling(size, pooling_mode="cls"), Normalize()],
            similarity_fn_name=similarity,
            truncate_dim=10,
        )
        retriever = Retriever(folder)
        expected = SentenceTransformer(str(folder), device="cpu").encode(MIXED)
        if similarity == "cosine":
            expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
        assert retriever.dimension == 10
        assert retriever.encode_queries([]).shape == (0, 10)
        np.testing.assert_allclose(retriever.encode_queries(MIXED), expected, rtol=0, atol=1e-5)


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
