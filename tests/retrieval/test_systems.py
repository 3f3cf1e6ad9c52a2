"""Systems by name: what a command's word says."""

import pytest

from modeling_condenser.retrieval.dense import SearchSettings
from modeling_condenser.retrieval.systems import StoredRun, parse_system


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
    assert system.word == text


def test_a_system_takes_a_dtype_only_if_it_states_none():
    search = SearchSettings(dtype="bfloat16")
    half = parse_system("owner/bert,pooling=cls").completed(search)
    assert half.name == "bert-cls-bfloat16"
    assert half == parse_system("owner/bert,pooling=cls,dtype=bfloat16")
    hybrid = parse_system("hybrid:owner/bert,pooling=cls,fusion=rrf").completed(search)
    assert hybrid.encoder == half
    for word in ("owner/bert,dtype=float32,name=mine", "bm25"):
        assert parse_system(word).completed(search) == parse_system(word)


def test_a_run_file_answers_the_queries_that_it_has():
    searcher = StoredRun({"q1": {"a": 1.0, "b": 3.0, "c": 3.0}, "q2": {"a": 1.0}})
    assert searcher.search({"q1": "x", "q3": "y"}, depth=2) == {"q1": {"b": 3.0, "c": 3.0}}
    with pytest.raises(ValueError, match="has no vectors"):
        parse_system("bm25").open()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no system"),
        ("hybrid:bm25", "hybrid:bm25 has no vectors to fuse with BM25: name an encoder"),
        (f"hybrid:{__file__}", r"test_systems\.py has no vectors to fuse with BM25"),
        ("hybrid:x,fusion=1.0", r"fusion is '1\.0', expected one of rrf, 0\.1, 0\.2"),
        ("bm25,pooling=mean", "bm25 has no setting 'pooling=mean'.*preset=…, k1=…, b=…"),
        ("x,query_max_length=long", "query_max_length is 'long', expected int"),
    ],
)
def test_wrong_settings_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_system(text)
