"""Systems with compressed vectors: their runs, sizes and identities, and what is refused."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from hub_scripts.main import main
from modeling_condenser.collection.load import load_collection
from modeling_condenser.evaluation.evaluate import evaluate
from modeling_condenser.files.contract import EncodingContract
from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.retrieval.dense import search_exact_arrays
from modeling_condenser.retrieval.runs import read_run
from modeling_condenser.retrieval.systems import parse_system
from tests.publishing.making import plain_vectors


@pytest.fixture(scope="module")
def retriever(bert_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("retrievers") / "retriever"
    return export_encoder(bert_run, folder, contract=EncodingContract(8, 24, similarity="cosine"))


@pytest.mark.slow
def test_a_report_shows_quality_against_bytes_of_vectors_that_are_encoded_once(
    retriever, collection, tmp_path
):
    whole = str(retriever)
    sizes = {
        whole: 4 * 32,
        f"{whole},truncate_dim=8": 4 * 8,
        f"{whole},precision=int8": 32,
        f"{whole},precision=binary": 4,
        f"{whole},truncate_dim=12,precision=binary": 2,
        f"hybrid:{whole},precision=int8,fusion=rrf": 32,
        "bm25": None,
    }
    options = {"output_dir": tmp_path, "depth": 10, "measures": ["MRR@10"]}
    report = evaluate(list(sizes), collection, baseline=whole, **options)
    names = dict(zip(sizes, report.means, strict=True))
    assert [*names.values()][1:3] == ["retriever-8", "retriever-int8"]
    found = {result.system: result.record.get("bytes_per_vector") for result in report.results}
    assert found == {names[word]: size for word, size in sizes.items()}
    # Encoded once.
    assert len([*tmp_path.rglob("manifest.json")]) == 1
    # The first numbers, at length 1, by transformers and NumPy alone.
    loaded = load_collection(collection)
    texts = [f"{p['title']} {p['text']}".strip() for p in loaded.passages]
    vectors = [
        plain_vectors(retriever, some, length).numpy()[:, :8]
        for some, length in ((list(loaded.queries.values()), 8), (texts, 24))
    ]
    queries, passages = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in vectors)
    ids = {"query_embeddings": queries, "query_ids": list(loaded.queries)}
    expected = search_exact_arrays(passages, loaded.passages["_id"], depth=10, **ids)
    run = read_run(report.results[1].run_file)
    for query, scores in expected.items():
        assert list(run[query]) == list(scores)
        assert run[query] == pytest.approx(scores, abs=1e-5)
    assert report.results[3].record["recall_against_exact"] < 1
    # Text, Markdown and significance.
    assert re.search(r"\nretriever-binary +MRR@10 +0\.\d+ +4 ", str(report))
    rows = report.file.read_text().splitlines()
    assert "| system | bytes per vector | MRR@10 |" in rows
    [row] = [row for row in rows if row.startswith("| retriever-8 | 32 | ")]
    assert "p = " in row or "p < " in row
    assert [row for row in rows if row.startswith("| bm25 |  | ")]
    # The runs are read again; the same by a setting of the search.
    again = evaluate(whole, collection, precision="int8", **options)
    assert again.means == {"retriever-int8": report.means["retriever-int8"]}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{},precision=int8", "{c}", "--index", "IVF4,Flat"], "the index IVF4,Flat would have no"),
        (["{},truncate_dim=32", "{c}"], "truncate_dim is 32, but .* 32 numbers: state 1 to 31"),
        (["{},truncate_dim=0", "{c}"], "truncate_dim is 0, but .* 32 numbers: state 1 to 31"),
        (["{},precision=int4", "{c}"], "precision is 'int4', expected one of float32, int8, bin"),
        (["bm25", "{c}", "--precision", "int8"], "No system has vectors"),
        (["{}", "bm25", "{c}", "--rescore", "9"], "rescore is 9, but exact search has the exact"),
        (["bm25,k1=1,name=a", "bm25,k1=2,name=a", "{c}"], "have the same name 'a'"),
        (["bm25", "{c}", "--measures", "NCDG@10"], "'NCDG@10' is not a measure"),
        (["{},precision=int8", "{t}", "--task", "triplets"], "precision is a setting of search"),
        (["{}", "{t}"], "triplets.csv is a file.* set task to graded_pairs"),
        (["bm25", "{c}", "--depth", "0"], "depth is 0, expected at least 1"),
        (["bm25", "{c}", "--measures", "[]"], "measures is empty: name at least one"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_anything_is_written(
    retriever, collection, tmp_path, monkeypatch, capsys, words, message
):
    monkeypatch.chdir(tmp_path)
    triplets = tmp_path.parent / "triplets.csv"
    triplets.write_text("anchor,positive,negative\na,b,c\n")
    named = [word.format(retriever, c=collection, t=triplets) for word in words]
    assert main(["evaluate", *named]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not [*tmp_path.iterdir()]


def test_truncated_vectors_can_be_stored_and_searched(
    retriever, collection, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    short = f"{retriever},truncate_dim=8"
    words = (str(retriever), short, f"{retriever},precision=int8")
    assert len({parse_system(word).fingerprint for word in words}) == 3
    options = ["--devices", "cpu", "--shard_size", "7", "--table", "table"]
    assert main(["encode", short, str(collection), "vectors", *options]) == 0
    printed = capsys.readouterr().out
    speed = r"\n  \d+\.\d s, [\d,]+ passages a second, \d\.\d\d GB\n"
    assert re.search(rf"embeddings: vectors\n  60 passages of 8 numbers{speed}", printed)
    assert printed.endswith("table: table (1 parquet files)\n")
    manifest = json.loads(Path("vectors/manifest.json").read_text())
    assert (manifest["dimension"], manifest["shard_size"]) == (8, 7)
    query = ["search", short, str(collection), "the old telescope", "-k", "3"]
    assert main([*query, "--embeddings", "vectors"]) == 0
    stored = capsys.readouterr().out
    assert main(query) == 0  # of the whole vectors, which this encodes
    assert capsys.readouterr().out == stored
    assert main([*query, "--rescore", "60", "--precision", "binary"]) == 0
    assert main(["encode", words[2], str(collection), "other"]) == 2
    assert not Path("other").exists()
