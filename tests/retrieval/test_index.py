"""`Index` beside the systems that it is made of, changed, reopened, and shared by threads."""

import json
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset, DatasetDict

from modeling_condenser import Index
from modeling_condenser.collection.load import load_collection, load_passages
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.retrieval import index as index_module
from modeling_condenser.retrieval.bm25 import Bm25
from modeling_condenser.retrieval.index import INDEX_FILE
from modeling_condenser.retrieval.systems import open_searcher, parse_system
from tests.encoding.making import change_json, note_encoded

TEXTS = {
    "spring": "A river begins at a spring. It ends in the sea.",
    "may": "In May the flowers open. The river is high then. Snow melts.",
    "snow": "Snow falls in winter.",
}
QUERY = "where does the snow melt into a river?"


def test_bm25_finds_passages_with_the_words_and_the_sentence_that_match(tmp_path):
    index = Index.build(TEXTS, folder=tmp_path / "saved")
    [actual, none] = index.search([QUERY, "xylophone"], k=3)
    assert [(each.id, each.words) for each in actual] == [
        ("may", ("snow", "melt", "river")),
        ("snow", ("snow",)),
        ("spring", ("river",)),
    ]
    assert [each.sentence for each in actual] == [
        "Snow melts.",
        "Snow falls in winter.",
        "A river begins at a spring.",
    ]
    assert all(each.text == TEXTS[each.id] and each.title == "" for each in actual)
    assert actual[0].score > actual[1].score > 0 and none == []
    assert index.search([]) == [] and len(index) == 3
    assert index.search(iter([QUERY]), k=3) == [actual]  # type: ignore[arg-type]
    opened = Index.open(tmp_path / "saved")
    assert opened.search([QUERY], k=3) == [actual]
    assert repr(opened) == f"Index(3 passages, bm25, {tmp_path / 'saved'})"
    assert [each.id for each in Index.build(list(TEXTS.values())).search(["snow"])[0]] == ["2", "1"]


@pytest.mark.parametrize("kind", ["", "hybrid:"])
def test_an_encoder_and_hybrid_search_rank_as_the_systems_do(
    kind, retriever, collection, tmp_path, monkeypatch
):
    monkeypatch.chdir(Path(retriever).parent)
    system = f"{kind}{Path(retriever).name}"
    index = Index.build(str(collection), system, folder=tmp_path / "index")
    loaded = load_collection(collection)
    searcher = open_searcher(parse_system(system), loaded.passages, tmp_path / "other")
    expected = searcher.search(loaded.queries, 5)
    monkeypatch.chdir(tmp_path)  # the index knows where its model is
    for each in (index, Index.open("index")):
        answers = each.search(list(loaded.queries.values()), k=5)
        actual = [{passage.id: passage.score for passage in answer} for answer in answers]
        assert actual == [pytest.approx(run, abs=1e-5) for run in expected.values()]
        assert [list(run) for run in actual] == [list(run) for run in expected.values()]


def list_index(index: Index) -> list[str]:
    return sorted(each.name for each in index.folder.glob("[!.]*"))


def test_an_update_encodes_what_is_new_and_a_killed_one_is_continued(
    retriever, collection, tmp_path, monkeypatch
):
    passages = load_passages(collection)
    rows = passages.to_list()
    rows[3]["text"] += " Alpine marmots whistle."
    rows = [*rows[:10], *rows[12:], {"_id": "new", "title": "Marmots", "text": "They whistle."}]
    changed, queries = Dataset.from_list(rows), ["marmots whistle", "glacier"]
    index = Index.build(passages, f"hybrid:{retriever}", folder=tmp_path / "index")
    before = index.search(queries, k=60)

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    # The new passages are encoded, but BM25 does not index them.
    monkeypatch.setattr(Bm25, "_make_index", fail)
    with pytest.raises(KeyboardInterrupt):
        index.update(changed)
    monkeypatch.undo()
    assert index.search(queries, k=60) == before
    encoded, dropped = note_encoded(monkeypatch), passages["_id"][10:12]
    reopened = Index.open(tmp_path / "index")
    assert reopened.search(queries, k=60) == before
    assert reopened.update(changed) == (["new"], [rows[3]["_id"]], dropped)
    assert encoded == []  # the killed call had encoded them
    assert reopened.update(changed) == ([], [], [])
    assert reopened.update(passages) == (dropped, [rows[3]["_id"]], ["new"])
    assert encoded == [rows[3]["_id"], *dropped]
    assert reopened.update(changed) == (["new"], [rows[3]["_id"]], dropped)
    assert reopened.update(changed) == ([], [], []) and len(reopened) == len(rows)
    assert list_index(reopened) == ["6", "index.json"]
    fresh = Index.build(changed, f"hybrid:{retriever}", folder=tmp_path / "fresh")
    expected = fresh.search(queries, k=60)
    for each in (reopened, Index.open(tmp_path / "index")):
        for hits, wanted in zip(each.search(queries, k=60), expected, strict=True):
            assert [hit.id for hit in hits] == [hit.id for hit in wanted]
            scores = [[hit.score for hit in answer] for answer in (hits, wanted)]
            np.testing.assert_allclose(scores[0], scores[1], atol=1e-5)
    [hits] = reopened.search(["marmots whistle"], k=len(rows))
    assert {hit.id for hit in hits if hit.words} == {"new", rows[3]["_id"]}


def test_an_index_that_another_process_has_updated_is_updated_from_there(tmp_path, monkeypatch):
    index = Index.build({"spring": TEXTS["spring"]}, folder=tmp_path / "index")
    other = Index.open(index.folder)
    number = json.loads((index.folder / INDEX_FILE).read_text())["version"]
    for n_updates in (1, 2):
        others = {name: TEXTS[name] for name in list(TEXTS)[:n_updates]}
        other.update(others)
        monkeypatch.setattr(Bm25, "_make_index", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            index.update(TEXTS)
        monkeypatch.undo()
        content = json.loads((index.folder / INDEX_FILE).read_text())
        assert content["version"] == number + n_updates  # the failed call changed nothing
    assert index.update(TEXTS) == (["may", "snow"], [], [])
    assert len(other) == 2 and len(Index.open(index.folder)) == len(index) == 3
    assert list_index(index) == ["4", "index.json"]


def test_an_index_that_is_updated_while_its_model_is_loaded_is_opened_as_updated(
    retriever, tmp_path, monkeypatch
):
    index = Index.build(TEXTS, str(retriever), folder=tmp_path / "index")
    load = Retriever.__init__

    def load_during_an_update(*args: Any, **options: Any) -> None:
        load(*args, **options)
        index.update({"may": TEXTS["may"]})

    monkeypatch.setattr(Retriever, "__init__", load_during_an_update)
    assert len(Index.open(index.folder)) == 1
    assert list_index(index) == ["2", "index.json"]


def test_an_index_that_is_updated_while_it_is_opened_is_opened_as_updated(
    retriever, tmp_path, monkeypatch
):
    index, encoded = Index.build(TEXTS, str(retriever), folder=tmp_path / "i"), []
    open_stored = index_module.open_searcher

    def open_after_an_update(*args: Any, **options: Any) -> Any:
        if options["is_stored"] and not encoded:
            index.update({**TEXTS, "sea": "The sea is deep."})
            encoded.append("sea")
        return open_stored(*args, **options)

    monkeypatch.setattr(index_module, "open_searcher", open_after_an_update)
    noted = note_encoded(monkeypatch)
    assert len(Index.open(index.folder)) == 4
    assert noted == encoded == ["sea"] and list_index(index) == ["2", "index.json"]


def test_an_index_whose_model_has_changed_is_refused_and_its_vectors_are_kept(
    retriever, tmp_path, monkeypatch
):
    model = shutil.copytree(retriever, tmp_path / "model")
    index = Index.build(TEXTS, f"hybrid:{model}", folder=tmp_path / "index")
    shards = {file: file.read_bytes() for file in index.folder.rglob("shard-*.npy")}
    change_json(model / "config.json", layer_norm_eps=0.1)  # as if it were trained again
    encoded = note_encoded(monkeypatch)
    with pytest.raises(ValueError, match="model is not the encoder of the index .* has changed"):
        Index.open(index.folder)
    assert encoded == [] and {file: file.read_bytes() for file in shards} == shards != {}
    again = Index.build(TEXTS, f"hybrid:{model}", folder=tmp_path / "new")
    assert again.search([QUERY]) == Index.open(tmp_path / "new").search([QUERY])
    assert Index.open(index.folder, model=retriever).search([QUERY]) == index.search([QUERY])


def test_an_update_that_fails_late_keeps_its_vectors_for_the_next(retriever, tmp_path, monkeypatch):
    index = Index.build(TEXTS, f"hybrid:{retriever}", folder=tmp_path / "index")
    encoded, more = note_encoded(monkeypatch), {**TEXTS, "sea": "The sea is deep."}

    def fail(*_: object) -> None:
        raise ValueError("late")

    with monkeypatch.context() as patch:
        patch.setattr(Bm25, "_make_index", fail)
        with pytest.raises(ValueError, match="late"):
            index.update(more)
    assert len(index) == len(Index.open(index.folder)) == 3 and encoded == ["sea"]
    assert index.update(more).added == encoded == ["sea"]
    assert list_index(index) == ["2", "index.json"]


def test_an_update_that_fails_changes_nothing(tmp_path):
    index = Index.build(TEXTS, folder=tmp_path / "index")
    with pytest.raises(ValueError, match="no word in"):
        index.update({"spring": "the of", "may": "and"})
    assert len(index) == len(Index.open(index.folder)) == len(TEXTS)
    assert index.update({"may": TEXTS["may"]}).dropped == ["spring", "snow"]
    assert list_index(index) == ["2", "index.json"]


def test_an_index_finds_its_encoder_where_it_was_moved_to(retriever, tmp_path, monkeypatch):
    shutil.copytree(retriever, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    index = Index.build(TEXTS, "hybrid:model,fusion=0.3", folder="index", devices="cpu")
    expected = index.search([QUERY])
    Path("model").rename("moved")
    with pytest.raises(FileNotFoundError, match="which does not exist: say where it is now"):
        Index.open("index")
    encoded = note_encoded(monkeypatch)
    shutil.copytree("moved", "other")
    change_json(Path("other/config.json"), layer_norm_eps=0.1)
    with pytest.raises(ValueError, match="other is not the encoder of the index"):
        Index.open("index", model="other")
    opened = Index.open("index", model="moved", devices="cpu:0")
    assert opened.search([QUERY]) == expected and encoded == []
    assert opened.settings.devices == "cpu:0"
    words = Index.build(TEXTS, folder="words").folder
    with pytest.raises(ValueError, match="is an index of BM25, which has no model"):
        Index.open(words, model="moved")
    opened.update({**TEXTS, "sea": "The sea is deep."})
    again = Index.open("index")  # the place is stored, but not the device
    assert len(again) == 4 and again.settings.devices == "cpu"


def test_a_killed_build_is_continued(retriever, collection, tmp_path, monkeypatch):
    encoded = note_encoded(monkeypatch)
    monkeypatch.setattr(Bm25, "search", lambda *_: [][0])
    with pytest.raises(IndexError):
        Index.build(collection, f"hybrid:{retriever}", folder=tmp_path / "index")
    with pytest.raises(FileNotFoundError, match="holds no complete index"):
        Index.open(tmp_path / "index")
    monkeypatch.undo()
    index = Index.build(collection, f"hybrid:{retriever}", folder=tmp_path / "index")
    assert len(index) == len(encoded)


def test_passages_of_own_files_have_their_headings_and_file(tmp_path):
    row = {"_id": "a", "title": "Shop", "text": "We sell telescopes.", "headings": "What we sell"}
    corpus = json.dumps({**row, "file": "files/shop.md"}) + "\n"  # as `condenser collect` does
    (tmp_path / "corpus.jsonl").write_text(corpus)
    Index.build(tmp_path, folder=tmp_path / "index")
    [[hit]] = Index.open(tmp_path / "index").search(["telescopes"])
    assert (hit.headings, hit.file) == ("What we sell", "files/shop.md")


@pytest.mark.parametrize(
    ("system", "settings"), [("bm25", {}), ("hybrid:{}", {}), ("{}", {"index": "SQ8"})]
)
def test_eight_threads_get_the_answers_of_one_also_during_an_update(
    system, settings, retriever, collection
):
    loaded = load_collection(collection)
    queries = list(loaded.queries.values())
    index = Index.build(loaded.passages, system.format(retriever), **settings)
    swapped = loaded.passages.select([*range(1, len(loaded.passages)), 0])  # which ranks alike
    expected = [[p.id for p in index.search([query], k=5)[0]] for query in queries]
    with ThreadPoolExecutor(8) as threads:
        answers = [threads.submit(index.search, [query], 5) for query in queries]
        index.update(swapped)
        answers += [threads.submit(index.search, [query], 5) for query in queries]
        hits = [[passage.id for passage in answer.result()[0]] for answer in answers]
    assert hits == expected * 2


@pytest.mark.parametrize("settings", [{}, {"index": "IVF2,Flat"}])
def test_a_forked_process_gets_the_answers_of_its_parent(settings, retriever, collection):
    index = Index.build(str(collection), f"hybrid:{retriever}", **settings)
    queries, n_threads = ["glacier", "telescope"], torch.get_num_threads()
    torch.set_num_threads(2)  # the child has but one of these threads
    expected = [[hit.id for hit in hits] for hits in index.search(queries)]
    process = os.fork()
    if process == 0:
        signal.alarm(20)  # ends a child that waits for a thread
        actual = [[hit.id for hit in hits] for hits in index.search(queries)]
        os._exit(actual != expected)
    assert os.waitpid(process, 0)[1] == 0
    assert [[hit.id for hit in hits] for hits in index.search(queries)] == expected
    torch.set_num_threads(n_threads)


def test_the_example_of_the_docs_prints_what_they_say(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "search.md").read_text()
    exec(page.split("```python\n")[1].split("```")[0], {})
    assert capsys.readouterr().out == page.split("```\n\n```\n")[1].split("```")[0]
    assert [each.id for each in Index.open("river-index").search(["the sea"])[0]] == ["sea"]


def test_a_blank_query_finds_nothing(tmp_path, retriever):
    index = Index.build({"a": "At a spring.", "b": "In May."}, f"hybrid:{retriever}")
    assert [len(actual) for actual in index.search([" ", "May", ""], k=2)] == [0, 2, 0]


def test_folders_of_killed_calls_are_removed(tmp_path):
    index = Index.build({"a": "At a spring."}, "bm25", folder=tmp_path / "i")
    (tmp_path / "i" / "0").mkdir()
    (tmp_path / "i" / "1.bak").mkdir()
    index.update({"a": "At a spring.", "b": "In May."})
    assert {file.name for file in (tmp_path / "i").glob("[0-9]*")} == {"2", "1.bak"}


def test_a_forked_process_that_ends_leaves_a_temporary_index(tmp_path):
    script = (
        "import os, sys\n"
        "from modeling_condenser import Index\n"
        "index = Index.build({'a': 'At a spring.'})\n"
        "if os.fork() == 0:\n    sys.exit(0)\n"
        "os.wait()\n"
        "assert index.folder.is_dir()\n"
        "print(index.folder)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert not Path(done.stdout.strip()).exists()


def test_what_does_not_fit_is_refused(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    (tmp_path / "run.trec").touch()
    index = Index.build(TEXTS, folder=tmp_path / "index")
    lists = Dataset.from_dict({"_id": ["a"], "title": [""], "text": ["t"], "headings": [["h"]]})
    splits: Any = DatasetDict({"train": lists})
    twice = Dataset.from_dict({name: ["a", "a"] for name in ("_id", "title", "text")})
    for error, message, call in (
        (FileExistsError, "is not empty", lambda: Index.build(TEXTS, folder=tmp_path / "index")),
        (FileNotFoundError, "holds no complete index", lambda: Index.open(tmp_path / "mine")),
        (ValueError, "is a run file", lambda: Index.build(TEXTS, str(tmp_path / "run.trec"))),
        (ValueError, "there are no passages", lambda: Index.build([])),
        (ValueError, "'a', '', None\\), expected three texts", lambda: index.update({"a": None})),  # type: ignore[dict-item]
        (ValueError, "1 passages repeat the id", lambda: index.update(twice)),
        (ValueError, "no white space", lambda: index.update({"a b": "text"})),
        (ValueError, "lacks _id, title", lambda: index.update(Dataset.from_dict({"text": [""]}))),
        (ValueError, "expected a list of queries", lambda: index.search("snow")),
        (ValueError, "expected a list of queries", lambda: index.search(None)),  # type: ignore[arg-type]
        (ValueError, "id of a passage is 3", lambda: Index.build({3: "a"})),  # type: ignore[dict-item]
        (ValueError, "column headings .* of type list", lambda: index.update(lists)),
        (ValueError, "is a Dataset, expected text. Name a split", lambda: index.update(splits)),
        (ValueError, "is a PosixPath, expected text", lambda: index.update([tmp_path])),  # type: ignore[list-item]
        (ValueError, "k is 0", lambda: index.search(["snow"], k=0)),
        (ValueError, "k is 2.5, expected a whole", lambda: index.search(["snow"], k=2.5)),  # type: ignore[arg-type]
        (ValueError, "the query is .* half of a character", lambda: index.search(["\ud83d"])),
        (ValueError, "passage 'a' is .* half of a char", lambda: index.update({"a": "\ude00"})),
    ):
        with pytest.raises(error, match=message):
            call()
    assert index.search([QUERY])[0][0].id == "may"


def test_a_data_frame_is_read_as_its_rows(retriever):
    rows = {"_id": ["may", "june"], "title": ["", ""], "text": ["snow melts", "it rains"]}
    frame: Any = pd.DataFrame(rows)
    assert Index.build(frame).search(["snow"])[0][0].id == "may"
    with pytest.raises(ValueError, match="expected a list of texts"):
        Retriever(retriever).encode_passages(frame)


@pytest.mark.parametrize("system", ["bm25", "{}"])
def test_chinese_passages_in_an_odd_folder_are_all_replaced_from_another_folder(
    system, retriever, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    texts = {"河流-一": "河流从泉水开始。春天的雪会融化。", "海": "河流流入大海。"}
    index = Index.build(texts, system.format(retriever), folder="my index [1]")
    [actual] = index.search(["流入大海的河流"], k=2)
    assert {each.id: each.text for each in actual} == texts
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    index.update({"山": "山上有雪。", "谷": "谷里有花。"})
    for each in (index, Index.open("../my index [1]")):
        [actual] = each.search(["山上谷里"], k=5)
        assert {passage.id for passage in actual} == {"山", "谷"} and len(each) == 2
