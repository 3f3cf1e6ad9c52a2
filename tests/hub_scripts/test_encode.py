"""`condenser encode`, as a person types it."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from datasets import load_dataset

from hub_scripts.main import main
from modeling_condenser.encoding.embeddings import Embeddings
from modeling_condenser.encoding.retriever import Retriever
from tests.publishing.making import N_PASSAGES, make_collection


@pytest.fixture
def collection(texts: list[str], tmp_path: Path) -> Path:
    return make_collection(tmp_path / "small", texts)


def test_a_collection_is_encoded_and_its_vectors_are_written_as_a_table(
    bert_folder: Path, collection: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, table = tmp_path / "embeddings", tmp_path / "table"
    words = ["encode", str(bert_folder), str(collection), str(out), "--pooling", "mean"]
    words += ["--devices", "cpu", "--shard_size", "7", "--table", str(table)]
    assert main(words) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"embeddings: {out}"
    assert re.fullmatch(
        rf"  {N_PASSAGES} passages of 32 numbers, \d+\.\d s, [\d,]+ passages a second", printed[1]
    )
    assert re.fullmatch(r"  \d\.\d\d GB of memory", printed[2])
    assert printed[3:] == [f"table: {table} (1 parquet files)"]

    embeddings = Embeddings.open(out)
    assert embeddings.manifest.shard_size == 7
    rows = [json.loads(line) for line in (collection / "corpus.jsonl").read_text().splitlines()]
    retriever = Retriever(bert_folder, pooling="mean", device="cpu")
    texts = [f"{row['title']} {row['text']}" if row["title"] else row["text"] for row in rows]
    expected = retriever.encode_texts(texts, retriever.contract.passage_max_length)
    np.testing.assert_allclose(embeddings.vectors(np.arange(N_PASSAGES)), expected, atol=2e-6)
    loaded = load_dataset(
        "parquet", data_files=str(table / "*"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert loaded["id"][:] == [row["_id"] for row in rows]
    assert loaded["text"][:] == [row["text"] for row in rows]

    # The same words again encode nothing, and find the table there.
    assert main(words) == 2
    assert "is not empty: name a new folder for the table" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bm25"], "bm25 has no vectors"),
        (["{bert}"], "pooling"),
        (["{bert},pooling=men"], "pooling is 'men', expected one of cls, mean, max"),
        (["{bert}", "--pooling", "men"], "pooling is 'men', expected one of cls, mean, max"),
        (["{bert},pooling=cls", "--shard_size", "0"], "shard_size is 0"),
    ],
)
def test_what_cannot_be_encoded_gives_status_2_and_leaves_nothing(
    words: list[str],
    message: str,
    bert_folder: Path,
    collection: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, *rest = (word.format(bert=bert_folder) for word in words)
    out = tmp_path / "out"
    assert main(["encode", model, str(collection), str(out), *rest]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and message in captured.err
    assert captured.out == "" and not out.exists()


def test_another_pooling_in_the_same_folder_is_refused(
    bert_folder: Path, collection: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    for pooling, status in (("cls", 0), ("max", 2), ("cls", 0)):
        assert main(["encode", f"{bert_folder},pooling={pooling}", str(collection), out]) == status
        error = capsys.readouterr().err
        assert ("contract pooling is 'cls' there and 'max' now" in error) is (status == 2)
