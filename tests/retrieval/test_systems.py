"""Systems: what a word of a command or a mapping says."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from modeling_condenser.collection.load import load_collection
from modeling_condenser.retrieval.systems import (
    SearchSettings,
    StoredRun,
    System,
    as_folder,
    open_searcher,
    open_stored,
    parse_system,
    parse_systems,
)
from tests.encoding.making import change_json, note_encoded


@pytest.mark.parametrize(
    ("text", "kind", "name", "settings"),
    [
        ("folder/my-run/model", "encoder", "my-run", {}),
        (  # the budget changes no vector
            "owner/bert,pooling=mean,query_max_length=32,token_budget=512",
            "encoder",
            "bert-mean-32",
            {"pooling": "mean", "query_max_length": 32, "token_budget": 512},
        ),
        ("owner/e5,query_prompt=query= ,name=E5", "encoder", "E5", {"query_prompt": "query= "}),
        ("bm25,k1=0.82,b=0.68", "bm25", "bm25-0.82-0.68", {"k1": 0.82, "b": 0.68}),
        ("bm25,language=german", "bm25", "bm25-german", {"language": "german"}),
        ("hybrid:owner/bert,fusion=0.3", "hybrid", "hybrid-bert-0.3", {"fusion": "0.3"}),
    ],
)
def test_a_system_is_named_after_its_model_and_settings(text, kind, name, settings):
    system = parse_system(text)
    assert (system.kind, system.name, system.settings) == (kind, name, settings)
    assert system.text == text
    mapping = {"model": system.model, "name": system.stated_name, **settings}
    assert parse_system(mapping) == system


def test_a_value_or_path_with_commas_is_given_in_a_mapping():
    prompt = 'Instruct: given "a query", retrieve a=b,c\nQuery: "' + "long" * 99
    mapping = {"model": "a,b", "query_prompt": prompt, "query_max_length": 32, "pooling": None}
    system = parse_system(mapping)
    assert system == System("a,b", {"query_prompt": prompt, "query_max_length": 32})
    assert parse_system(system.text) == system == parse_system(system)
    assert system.name == 'a,b-Instruct: given "a query", retrieve…-32'
    written = parse_system('{model: "hybrid:x", fusion: 0.3, query_prompt: "a, b"}')
    assert written == System("hybrid:x", {"fusion": "0.3", "query_prompt": "a, b"})


def test_devices_may_be_separated_by_commas_and_blanks():
    assert SearchSettings(devices="cuda:0, cuda:1").device_list == ["cuda:0", "cuda:1"]
    assert SearchSettings().device_list is None


def test_a_folder_named_bm25_is_opened_by_its_path():
    assert parse_system("./bm25").kind == "encoder"


def test_a_long_name_becomes_a_short_folder():
    assert as_folder("E5, query: x") == "E5_query_x"
    assert len(as_folder("東" * 300).encode()) < 255


def test_the_encoder_of_a_hybrid_has_its_settings():
    hybrid = parse_system("hybrid:owner/bert,fusion=rrf,dtype=bfloat16,truncate_dim=8")
    assert hybrid.encoder == parse_system("owner/bert,dtype=bfloat16,truncate_dim=8")


def test_systems_share_equal_vectors_and_keep_those_of_models_with_the_same_name(
    retriever, collection, tmp_path, monkeypatch
):
    passages, other = load_collection(collection).passages, tmp_path / "other" / retriever.name
    shutil.copytree(retriever, other)
    change_json(other / "config.json", layer_norm_eps=0.1)
    encoded, words = note_encoded(monkeypatch), [str(retriever), str(other)]
    shared = [
        f"hybrid:{retriever},fusion=rrf",
        f"{retriever},name=x",
        f"{retriever},query_prompt=q",
    ]
    for _ in range(2):
        for system in [
            *words,
            *shared,
            f"{retriever},truncate_dim=8",
            f"{retriever},truncate_dim=4",
        ]:
            open_stored(parse_system(system), passages, tmp_path / "work")
    assert len(encoded) == 4 * len(passages)
    changed = passages.select(range(1, len(passages)))
    for system in words:
        open_stored(parse_system(system), changed, tmp_path / "work")
    assert len(encoded) == 4 * len(passages)
    folders = [folder.name[: -len("-01234567")] for folder in tmp_path.glob("work/embeddings/*")]
    name = retriever.name
    assert sorted(folders) == [name, name, f"{name}-4", f"{name}-8"]


def test_a_run_file_answers_the_queries_that_it_has():
    searcher = StoredRun({"q1": {"a": 1.0, "b": 3.0, "c": 3.0}, "q2": {"a": 1.0}})
    assert searcher.search({"q1": "x", "q3": "y"}, 2) == {"q1": {"b": 3.0, "c": 3.0}}


@pytest.mark.parametrize(
    ("system", "message"),
    [
        ("", "names no system"),
        ({"pooling": "mean"}, "names no system"),
        ("hybrid:bm25", "hybrid:bm25 has no vectors to fuse with BM25: name an encoder"),
        (f"hybrid:{__file__}", r"test_systems\.py has no vectors to fuse with BM25"),
        ("hybrid:x,fusion=1.0", r"fusion is '1\.0', expected one of rrf, 0\.1, 0\.2"),
        ("bm25,preset=x", "preset is 'x', expected one of default, dpr, msmarco-passage"),
        ("bm25,pooling=mean", "bm25 has no setting 'pooling'; it has preset, k1, b, language, na"),
        ("x,query_prompt=a, b", "x has no setting ' b'; .* with a comma needs a mapping"),
        ("{model: x", "is not a valid mapping"),
        ("x,query_max_length=long", "query_max_length is 'long', expected int"),
    ],
)
def test_wrong_settings_are_refused(system, message):
    with pytest.raises(ValueError, match=message):
        parse_system(system)


def test_systems_that_do_not_fit_a_search_are_refused():
    with pytest.raises(ValueError, match="index is 'SQ8', but no system has vectors"):
        parse_systems(["bm25"], SearchSettings(index="SQ8"))
    with pytest.raises(ValueError, match="a/x and b/x have the same name 'x': rename one"):
        parse_systems(["a/x", "b/x"], SearchSettings())
    with pytest.raises(ValueError, match="bm25 has no vectors: name an encoder"):
        parse_system("bm25").open()


def test_a_model_that_was_trained_again_is_encoded_again(retriever, collection, tmp_path):
    loaded = load_collection(collection)
    model = shutil.copytree(retriever, tmp_path / "model")
    system = parse_system(str(model))
    before = open_searcher(system, loaded.passages, tmp_path / "work").search(loaded.queries, 5)
    weights = load_file(model / "model.safetensors")
    save_file({name: torch.sin(3 * w) for name, w in weights.items()}, model / "model.safetensors")
    searchers = [
        open_searcher(parse_system(str(model)), loaded.passages, tmp_path / place)
        for place in ("work", "new")
    ]
    after, expected = (searcher.search(loaded.queries, 5) for searcher in searchers)
    assert after == expected != before
