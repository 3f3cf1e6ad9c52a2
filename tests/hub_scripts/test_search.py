"""condenser search: answers for one query or many, against scores computed by hand."""

import io
import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from hub_scripts.main import main
from hub_scripts.search import find
from modeling_condenser.collection.load import load_passages
from modeling_condenser.encoding.embeddings import write_embeddings
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.repository.contract import EncodingContract
from modeling_condenser.retrieval.bm25 import Bm25
from modeling_condenser.retrieval.dense import DenseSearcher
from modeling_condenser.retrieval.exact import search_exact
from tests.publishing.making import make_collection, make_run, plain_vectors

QUERY = "the old telescope near Oslo"


@pytest.fixture(scope="module")
def collection(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_collection(tmp_path_factory.mktemp("collections") / "small", texts)


@pytest.fixture(scope="module")
def exported(bert_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoders")
    run = make_run(bert_folder, folder / "run")
    return export_encoder(run, folder / "encoder", contract=EncodingContract(32, 64))


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
    """The one line of error that the command prints."""
    capsys.readouterr()
    assert main(["search", *map(str, words)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err.splitlines()[-1]


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


def test_lines_are_answered_until_an_empty_one(
    encoder: Path, collection: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = QUERY, "Why? 東京"
    expected = [
        *expected_lines(encoder, collection, first, 2),
        *expected_lines(encoder, collection, second, 2),
    ]
    typed = f"{first}\n  {second} \n\nnot any more\n"
    assert search(encoder, collection, "-k", 2, capsys=capsys, typed=typed) == expected
    assert (
        search(
            encoder, collection, "-k", 2, capsys=capsys, typed=typed[: -len("\n\nnot any more\n")]
        )
        == expected
    )
    assert search(encoder, collection, capsys=capsys, typed="") == []


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
    (study).mkdir(exist_ok=True)
    (study / "search.json").write_text(json.dumps(named))
    expected = expected_lines(encoder, collection, QUERY, 3)
    assert search(study, QUERY, "-k", 3, capsys=capsys) == expected
    assert (study / "arm/evaluation/embeddings/manifest.json").is_file()
    assert search(study, "-k", 3, capsys=capsys, typed=QUERY) == expected
    assert "names its collection itself: leave out" in fails(study, collection, "x", capsys=capsys)
    (study / "search.json").write_text(json.dumps({"model": "m", "index": "i", "collection": "c"}))
    assert "names no embeddings: run the study again" in fails(study, "x", capsys=capsys)


def test_embeddings_can_lie_elsewhere_and_must_be_the_models(
    encoder: Path, collection: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["encode", str(encoder), str(collection), str(tmp_path / "vectors")]) == 0
    words = (collection, QUERY, "-k", 3, "--embeddings", tmp_path / "vectors")
    expected = expected_lines(encoder, collection, QUERY, 3)
    assert search(encoder, *words, capsys=capsys) == expected
    assert not (tmp_path / "encoder-search-small").exists()
    error = fails(f"{encoder},pooling=mean", *words, capsys=capsys)
    assert str(tmp_path / "vectors") in error


def test_settings_of_a_model_get_embeddings_of_their_own(
    encoder: Path, collection: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = search(encoder, collection, QUERY, capsys=capsys)
    cosine = search(f"{encoder},similarity=cosine", collection, QUERY, capsys=capsys)
    assert cosine != plain
    assert all(0 < float(line.split("(")[1].split(")")[0]) <= 1 for line in cosine[::2])
    assert sorted(path.name for path in tmp_path.iterdir() if "search" in path.name) == [
        "encoder-cosine-search-small",
        "encoder-search-small",
    ]


def test_an_index_answers_too(
    encoder: Path, collection: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = search(encoder, collection, QUERY, "-k", 3, capsys=capsys)
    words = (encoder, collection, QUERY, "-k", 3, "--index", "IVF4,Flat")
    every_cell = search(*words, "--search_parameters", "nprobe=4", capsys=capsys)
    assert every_cell == expected
    assert (tmp_path / "encoder-search-small" / "index-IVF4_Flat" / "index.faiss").is_file()
    assert "does not have the parameters 'efSearch=4'" in fails(
        *words, "--search_parameters", "efSearch=4", capsys=capsys
    )
    error = fails(encoder, collection, QUERY, "--index", "nonsense", capsys=capsys)
    assert "faiss cannot make an index 'nonsense'" in error


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


def test_what_cannot_be_searched_is_said(
    encoder: Path, collection: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "holds no search.json" in fails(encoder, capsys=capsys)
    error = fails(encoder, "how to sort a list", capsys=capsys)
    assert "holds no search.json" in error and "no collection at how to sort a list" in error
    assert "no collection at nowhere" in fails("bm25", "nowhere", capsys=capsys)
    assert "no collection at nowhere" in fails(encoder, "nowhere", "x", capsys=capsys)
    assert "bm25 has no vectors" in fails(
        "bm25", collection, "x", "--index", "HNSW8", capsys=capsys
    )
    (tmp_path / "run.trec").write_text("q Q0 p00 1 1.0 tag\n")
    error = fails(tmp_path / "run.trec", collection, "x", capsys=capsys)
    assert "is a run file, which cannot answer a new query" in error
    assert "no setting 'poling=mean'" in fails(f"{encoder},poling=mean", collection, capsys=capsys)
    assert list(tmp_path.glob("*search*")) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [(["-k", "0"], "-k 0: expected at least 1"), ([" "], "the query is empty")],
)
def test_words_that_make_no_sense_are_refused_before_anything_is_loaded(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["search", "model", "collection", *words])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_query_among_22000_passages_takes_less_than_100_ms(encoder: Path, tmp_path: Path) -> None:
    n = 22_000
    corpus = tmp_path / "large"
    corpus.mkdir()
    rows = ({"_id": f"p{i}", "title": f"T{i}", "text": f"text {i} " * 50} for i in range(n))
    (corpus / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    passages = load_passages(corpus)
    vectors = np.random.default_rng(0).standard_normal((n, 768)).astype(np.float32)
    embeddings = write_embeddings(tmp_path / "vectors", vectors, list(passages["_id"]))

    class Padded:
        """The small encoder, whose vectors are made as wide as a large one's."""

        def encode_queries(self, texts: list[str], *, progress: bool = False) -> np.ndarray:
            small = retriever.encode_queries(texts, progress=progress)
            return np.pad(small, ((0, 0), (0, 768 - small.shape[1])))

    retriever = Retriever(encoder, device="cpu")
    searcher = DenseSearcher(Padded(), embeddings)  # type: ignore[arg-type]
    seconds = []
    for i in range(51):
        started = time.perf_counter()
        answers = find(searcher, passages, f"query {i}", depth=10)
        seconds.append(time.perf_counter() - started)
    assert np.median(seconds) < 0.1
    run = search_exact(embeddings, Padded().encode_queries(["query 50"]), ["q"], depth=10)["q"]
    assert {answer.passage_id: answer.score for answer in answers} == run
    assert all(answer.title == f"T{answer.passage_id[1:]}" for answer in answers)
