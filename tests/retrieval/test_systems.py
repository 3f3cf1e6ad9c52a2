"""Systems by name: what a command's word says."""

from pathlib import Path

import pytest

from modeling_condenser.retrieval.dense import SearchSettings
from modeling_condenser.retrieval.searchers import StoredRun
from modeling_condenser.retrieval.systems import System, as_folder, list_systems, parse_system


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
        (
            'owner/e5,query_prompt="a ""b"", c=d",pooling=mean',
            "encoder",
            'e5-a "b", c=d-mean',
            {"query_prompt": 'a "b", c=d', "pooling": "mean"},
        ),
        ("hybrid:owner/bert,fusion=0.3", "hybrid", "hybrid-bert-0.3", {"fusion": "0.3"}),
    ],
)
def test_a_system_is_named_after_its_model_and_settings(text, kind, name, settings):
    system = parse_system(text)
    assert (system.kind, system.name, system.settings) == (kind, name, settings)
    assert system.published_text == text


PROMPT = 'Instruct: given "a query", retrieve a=b,c\nQuery: "' + "long" * 99


def test_any_prompt_can_be_stated_as_text_or_as_a_mapping():
    stated = {"model": "owner/e5", "query_prompt": PROMPT, "query_max_length": 32, "pooling": None}
    system = parse_system(stated)
    assert system.settings == {"query_prompt": PROMPT, "query_max_length": 32}
    for same in (system, system.text, system.published_text):
        assert parse_system(same) == system
    other = parse_system({**stated, "query_prompt": PROMPT + "er"})
    assert system.name.startswith("e5-Instruct: given") and len(system.name) < 50
    assert "\n" not in system.name and system.name != other.name
    both = list_systems([system, {"model": "bm25", "k1": 0.5}, Path("a")])
    assert both == [system.text, "bm25,k1=0.5", "a"]
    with pytest.raises(ValueError, match="add the field model"):
        parse_system({"pooling": "mean"})


def test_a_path_with_commas_that_exists_is_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("lr=1,seed=2", "lr=1", "run,1.trec"):
        (tmp_path / name).mkdir() if "lr" in name else (tmp_path / name).touch()
    assert parse_system("lr=1,seed=2,pooling=mean") == System("lr=1,seed=2", {"pooling": "mean"})
    assert parse_system("hybrid:lr=1,seed=2,fusion=rrf").encoder == System("lr=1,seed=2")
    assert parse_system("run,1.trec,name=x") == System("run,1.trec", {}, "x")
    assert parse_system("lr=1,pooling=cls") == System("lr=1", {"pooling": "cls"})


def test_a_model_named_bm25_is_opened_by_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bm25").mkdir()
    assert parse_system("bm25").kind == "bm25"  # an index or negatives, but no system
    (tmp_path / "bm25" / "config.json").write_text("{}")
    assert parse_system("./bm25").kind == "encoder"
    with pytest.raises(ValueError, match="write ./bm25 for the one here"):
        parse_system("bm25")


def test_a_long_name_becomes_a_short_folder():
    assert as_folder("E5, query: x") == "E5_query_x"
    assert len(as_folder("東" * 300).encode()) < 200 and as_folder("東" * 300) != as_folder(
        "東" * 299
    )


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
        ("x,query_prompt=a, b", "x has no setting ' b': .*needs double quotes"),
        ("x,query_max_length=long", "query_max_length is 'long', expected int"),
    ],
)
def test_wrong_settings_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_system(text)
