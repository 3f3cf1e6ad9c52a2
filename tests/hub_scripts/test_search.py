"""condenser search: answers for one query or many, against scores computed by hand."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hub_scripts.main import main
from modeling_condenser.collection.load import load_passages
from modeling_condenser.encoding.encode import encode
from modeling_condenser.evaluation.evaluate import evaluate
from modeling_condenser.files.models import EncodingContract
from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.retrieval.bm25 import Bm25
from tests.publishing.loopback_hub import contents
from tests.publishing.making import plain_vectors

QUERY = "the old telescope near Oslo"


@pytest.fixture
def encoder(bert_run, tmp_path, monkeypatch):
    """An encoder; the working folder is empty."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return export_encoder(bert_run, tmp_path / "encoder", contract=EncodingContract(32, 64))


@pytest.fixture
def search(capsys, monkeypatch):
    """Run the command: the lines that it prints, or its error."""

    def run(*words, typed=""):
        capsys.readouterr()
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        failed = main(["search", *map(str, words)])
        captured = capsys.readouterr()
        lines = captured.out.splitlines()
        if lines and lines[-1].startswith("in an application: "):
            lines.pop()
        return captured.err if failed else lines

    return run


def expected_lines(encoder, collection, query, k):
    """The answer by transformers and NumPy alone."""
    passages = [json.loads(line) for line in (collection / "corpus.jsonl").read_text().splitlines()]
    texts = [f"{passage['title']} {passage['text']}".strip() for passage in passages]
    scores = plain_vectors(encoder, texts) @ plain_vectors(encoder, [query], max_length=32)[0]
    lines = []
    for rank, row in enumerate(np.argsort(-scores.numpy())[:k], start=1):
        passage = passages[row]
        title = f"  {passage['title']}" if passage["title"] else ""
        lines.append(f"{rank}. {passage['_id']}  ({scores[row]:.4g}){title}")
        lines.append("   " + " ".join(passage["text"].split()))
    return lines


def test_the_sentence_that_is_shown_matches_the_query_in_the_words_of_bm25(search, tmp_path):
    text = "Ein Fisch. " + "Die Bienen und der Nektar in den Blumen. " * 9 + "Fische leben."
    row = json.dumps({"_id": "a", "title": "", "text": text})
    (tmp_path / "corpus.jsonl").write_text(row)
    for setting, shown in (("", "Ein Fisch. "), (",language=none", "Fische leben.")):
        assert search(f"bm25{setting}", tmp_path, "fische")[1].strip().startswith(shown)


def are_shown(lines, expected):
    """Whether these are the passages, with all or a part of their texts."""
    if lines[::2] != expected[::2]:
        return False
    pairs = zip(lines[1::2], expected[1::2], strict=True)
    shown = [(text.strip().removesuffix("…"), whole) for text, whole in pairs]
    return all(text and text in whole for text, whole in shown)


def test_a_query_is_answered_with_scores_titles_and_texts(encoder, collection, search):
    expected = expected_lines(encoder, collection, QUERY, 30)
    assert are_shown(search(encoder, collection, QUERY, "-k", 30), expected)
    # The embeddings are stored where `evaluate` has them, and serve the next query.
    [folder] = Path("runs/evaluation/small/embeddings").glob("encoder-*/embeddings")
    written = (folder / "shard-00000.npy").stat().st_mtime_ns
    assert are_shown(search("-k", 2, encoder, collection, QUERY), expected[:4])
    assert (folder / "shard-00000.npy").stat().st_mtime_ns == written
    evaluate(systems=str(encoder), collection=str(collection))
    assert (folder / "shard-00000.npy").stat().st_mtime_ns == written
    assert {file.name for file in encoder.parent.iterdir()} == {"work", "encoder"}


def test_the_embeddings_of_a_larger_collection_are_not_replaced(
    encoder, collection, search, tmp_path
):
    vectors = tmp_path / "vectors"
    main(["encode", str(encoder), str(collection), str(vectors)])
    before = contents(vectors)
    smaller = Path(shutil.copytree(collection, tmp_path / "smaller"))
    lines = (collection / "corpus.jsonl").read_text().splitlines()
    (smaller / "corpus.jsonl").write_text("\n".join(lines[:9]))
    error = search(encoder, smaller, QUERY, "--embeddings", vectors)
    assert f"condenser encode {encoder} COLLECTION {vectors}" in error
    assert contents(vectors) == before


@pytest.mark.slow
def test_given_embeddings_and_an_index_answer_too(
    encoder, collection, tmp_path, search, monkeypatch, capsys
):
    monkeypatch.setenv("RANK", "1")  # as some clusters do; `encode` is one process all the same
    assert main(["encode", str(encoder), str(collection), str(tmp_path / "vectors")]) == 0
    assert "60 passages of 32 numbers" in capsys.readouterr().out
    named: Any = {"model": str(encoder)}
    assert encode(model=named, collection=collection, out=tmp_path / "vectors").n_passages == 60
    words = (collection, QUERY, "-k", 3, "--embeddings", tmp_path / "vectors")
    expected = expected_lines(encoder, collection, QUERY, 3)
    assert are_shown(search(encoder, *words), expected)
    assert not Path("runs").exists()
    assert str(tmp_path / "vectors") in search(f"{encoder},pooling=mean", *words)  # not its own
    words = ("--index", "IVF4,Flat", "--search_parameters", "nprobe=4")
    words = (*words, "--output_dir", "out")
    assert are_shown(search(encoder, collection, QUERY, "-k", 3, *words), expected)
    assert list(Path("out/small/embeddings").glob("encoder-*/index-IVF4_Flat/index.faiss"))


def test_bm25_answers_by_words_and_keeps_its_index(collection, tmp_path, monkeypatch, search):
    monkeypatch.chdir(tmp_path)
    passages = load_passages(collection)
    query = passages[0]["text"]
    run = Bm25(passages, preset="thesis").search({"q": query}, 2)["q"]
    lines = search("bm25,preset=thesis", collection, query, "-k", 2)
    assert [line.split()[1:3] for line in lines[::2]] == [
        [passage_id, f"({score:.4g})"] for passage_id, score in run.items()
    ]
    assert Path("runs/evaluation/small/bm25/bm25_preset=thesis/index").is_dir()
    typed = f"{query}\r\nxylophone\n"  # the end of a line on Windows, and on Linux
    first, second = search("bm25", collection, "--json", "-k", 2, typed=typed)
    default = Bm25(passages).search({"q": query}, 2)["q"]
    rows = {row["_id"]: row for row in passages}
    assert json.loads(first) == {
        "query": query,
        "passages": [
            {"id": name, "score": score, "title": rows[name]["title"], "text": rows[name]["text"]}
            for name, score in default.items()
        ],
    }
    assert json.loads(second) == {"query": "xylophone", "passages": []}
    place = {"headings": "What we sell", "file": "files/shop.md"}  # as of `condenser collect`
    row = {"_id": "a", "title": "Shop", "text": "The shop sells telescopes.", **place}
    Path("collected").mkdir()
    Path("collected/corpus.jsonl").write_text(json.dumps(row))
    [line] = search("bm25", "collected", "telescopes", "--json")
    [hit] = json.loads(line)["passages"]
    assert {name: hit[name] for name in ("text", *place)} == {"text": row["text"], **place}
    assert search("bm25", collection, query, "-k", "-1") == (
        "error: k is -1, expected at least 1.\n"
    )


def test_a_long_text_is_shown_from_the_sentence_that_matches(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sentences = [f"Sentence {name} is about {name * 9}." for name in "abcdefghij" * 3]
    row = {"_id": "a", "title": "", "text": " ".join([*sentences, "Telescopes are sold here."])}
    row["text"] = f"We sell shoes. A telescope is 90 euros.\nAsk us. {row['text']}"
    Path("c").mkdir()
    Path("c/corpus.jsonl").write_text(json.dumps(row))
    assert main(["search", "bm25", "c", "telescope price euros"]) == 0
    header, text, last = capsys.readouterr().out.splitlines()
    assert header.startswith("1. a  (")
    shown = " ".join(["A telescope is 90 euros. Ask us.", *sentences])
    assert text.strip() == f"{shown[:300]}…"
    assert last == "in an application: modeling_condenser.Index.build('c', 'bm25')"


def test_a_longer_collection_is_searched_and_another_of_its_name_replaces_its_vectors(
    encoder, collection, search
):
    shutil.copytree(collection, "c")
    first = search(encoder, "c", QUERY, "-k", 100)
    with Path("c/corpus.jsonl").open("a") as file:
        file.write(json.dumps({"_id": "added", "title": "", "text": QUERY}) + "\n")
    longer = search(encoder, "c", QUERY, "-k", 100)
    assert are_shown(longer, expected_lines(encoder, Path("c"), QUERY, 100))
    assert len(longer) == len(first) + 2
    Path("d/c").mkdir(parents=True)
    Path("d/c/corpus.jsonl").write_text('{"_id": "other", "title": "", "text": "Another one."}\n')
    assert search(encoder, "d/c", QUERY)[1].strip() == "Another one."
    assert search(encoder, "c", QUERY, "-k", 100) == longer
