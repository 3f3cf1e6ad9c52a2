"""condenser search: answers for one query or many, against scores computed by hand."""

import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from hub_scripts.main import main
from modeling_condenser.collection.load import load_passages
from modeling_condenser.hub.contract import EncodingContract
from modeling_condenser.hub.export import export_encoder
from modeling_condenser.retrieval.bm25 import Bm25
from tests.hub.making import plain_vectors

QUERY = "the old telescope near Oslo"


@pytest.fixture(scope="module")
def exported(bert_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoders") / "encoder"
    return export_encoder(bert_run, folder, contract=EncodingContract(32, 64))


@pytest.fixture
def encoder(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of its own for each test, whose working folder is empty besides."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return Path(shutil.copytree(exported, tmp_path / "encoder"))


def search(*words: object, capsys: pytest.CaptureFixture[str], typed: str = "") -> list[str]:
    """What the command prints."""
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", io.StringIO(typed))
        status = main(["search", *map(str, words)])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    return captured.out.splitlines()


def fails(*words: object, capsys: pytest.CaptureFixture[str]) -> str:
    """The error that the command prints."""
    assert main(["search", *map(str, words)]) == 2
    return capsys.readouterr().err


def expected_lines(encoder: Path, collection: Path, query: str, k: int) -> list[str]:
    """The answer by transformers and NumPy alone."""
    passages = [json.loads(line) for line in (collection / "corpus.jsonl").read_text().splitlines()]
    texts = [f"{passage['title']} {passage['text']}".strip() for passage in passages]
    scores = plain_vectors(encoder, texts) @ plain_vectors(encoder, [query], max_length=32)[0]
    lines = []
    for rank, row in enumerate(np.argsort(-scores.numpy())[:k], start=1):
        passage = passages[row]
        title = f"  {passage['title']}" if passage["title"] else ""
        lines.append(f"{rank}. {passage['_id']}  ({scores[row]:.4g}){title}")
        lines.append("   " + " ".join(passage["text"].split())[:160])
    return lines


def test_a_query_is_answered_with_scores_titles_and_texts(
    encoder: Path, collection: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = expected_lines(encoder, collection, QUERY, 30)
    assert any("  Title " in line for line in expected)
    assert search(encoder, collection, QUERY, "-k", 30, capsys=capsys) == expected
    # The embeddings lie beside the model, and serve the next query.
    [vectors] = encoder.parent.glob("encoder-search-small/embeddings/shard-00000.npy")
    written = vectors.stat().st_mtime_ns
    assert search("-k", 2, encoder, collection, QUERY, capsys=capsys) == expected[:4]
    assert vectors.stat().st_mtime_ns == written
    assert list(Path().iterdir()) == []


@pytest.mark.slow
def test_lines_are_answered_until_an_empty_one(
    encoder: Path, collection: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = [
        *expected_lines(encoder, collection, QUERY, 2),
        *expected_lines(encoder, collection, "Why? 東京", 2),
    ]
    typed = f"{QUERY}\n  Why? 東京 \n\nnot any more\n"
    assert search(encoder, collection, "-k", 2, capsys=capsys, typed=typed) == expected
    assert search(encoder, collection, capsys=capsys, typed="") == []


@pytest.mark.slow
def test_a_study_knows_its_collection_and_embeddings(
    encoder: Path, collection: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "study"
    shutil.copytree(encoder, study / "arm" / "model")
    named = {
        "model": "arm/model",
        "embeddings": "arm/evaluation/embeddings",
        "collection": os.path.relpath(collection, study),
    }
    (study / "search.json").write_text(json.dumps(named))
    expected = expected_lines(encoder, collection, QUERY, 3)
    assert search(study, QUERY, "-k", 3, capsys=capsys) == expected
    assert (study / "arm/evaluation/embeddings/manifest.json").is_file()
    assert search(study, "-k", 3, capsys=capsys, typed=QUERY) == expected
    assert "names its own collection: leave out" in fails(study, collection, "x", capsys=capsys)


@pytest.mark.slow
def test_an_index_answers_too_and_embeddings_must_be_the_models(
    encoder: Path, collection: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["encode", str(encoder), str(collection), str(tmp_path / "vectors")]) == 0
    words = (collection, QUERY, "-k", 3, "--embeddings", tmp_path / "vectors")
    expected = expected_lines(encoder, collection, QUERY, 3)
    assert search(encoder, *words, capsys=capsys) == expected
    assert not (tmp_path / "encoder-search-small").exists()
    error = fails(f"{encoder},pooling=mean", *words, capsys=capsys)
    assert str(tmp_path / "vectors") in error
    words = (encoder, collection, QUERY, "-k", 3, "--index", "IVF4,Flat")
    assert search(*words, "--search_parameters", "nprobe=4", capsys=capsys) == expected
    assert (tmp_path / "encoder-search-small" / "index-IVF4_Flat" / "index.faiss").is_file()


def test_bm25_answers_by_words_and_keeps_its_index(
    encoder: Path, collection: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    passages = load_passages(collection)
    query = passages[0]["text"]
    run = Bm25(passages, preset="thesis").search({"q": query}, depth=2)["q"]
    lines = search("bm25,preset=thesis", collection, query, "-k", 2, capsys=capsys)
    assert [line.split()[1:3] for line in lines[::2]] == [
        [passage_id, f"({score:.4g})"] for passage_id, score in run.items()
    ]
    assert Path("runs/bm25-thesis-search-small/bm25/bm25.json").is_file()
    assert search("bm25", collection, "xylophone", capsys=capsys) == ["nothing found"]


def test_what_cannot_be_searched_is_refused(
    collection: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.trec").write_text("q Q0 p00 1 1.0 tag\n")
    for words, message in (
        (("encoder",), "is not the folder of a finished study"),
        (("bm25", "how to sort a list"), "no collection at how to sort a list"),
        (("bm25", collection, "x", "--index", "HNSW8"), "bm25 has no vectors"),
        ((tmp_path / "run.trec", collection, "x"), "is a run file, which cannot answer a new"),
        (("bm25", collection, "x", "-k", "0"), "is 0, expected at least 1"),
    ):
        assert message in fails(*words, capsys=capsys)
