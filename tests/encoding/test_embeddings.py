"""A folder of embeddings: what was written comes back, and what is damaged is found."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from modeling_condenser.encoding.embeddings import Embeddings, write_embeddings

# Spans one to four bytes of UTF-8; U+FFFF sorts before U+1D11E by code points, not in UTF-16.
LETTERS = ["a", "Z", "0", "é", "東", "\uffff", "\U0001d11e", "\x00", " "]


def draw_ids(n: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    ids = {"", "a", "a\x00", "\uffff", "\U0001d11e"}
    while len(ids) < n:
        ids.add("".join(rng.choices(LETTERS, k=rng.randint(1, 6))))
    return rng.sample(sorted(ids), n)


def draw_vectors(n: int, dimension: int = 7) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((n, dimension)).astype(np.float32)


@pytest.mark.parametrize(("n", "shard_size"), [(1, 1), (10, 3), (10, 10), (12, 4), (7, 100)])
def test_what_is_written_comes_back(n: int, shard_size: int, tmp_path: Path) -> None:
    vectors, ids = draw_vectors(n), draw_ids(max(n, 5))[:n]
    write_embeddings(
        tmp_path / "e", vectors, ids, shard_size=shard_size, retriever_fingerprint="model"
    )
    embeddings = Embeddings.open(tmp_path / "e")
    assert (embeddings.n_passages, embeddings.dimension) == (n, 7)
    assert embeddings.manifest.retriever == "model"
    firsts, blocks = zip(*embeddings.blocks(), strict=True)
    assert firsts == tuple(range(0, n, shard_size))
    assert np.concatenate(blocks).tobytes() == vectors.tobytes()
    assert all(isinstance(block, np.memmap) for block in blocks)
    assert list(embeddings.passage_ids) == ids
    assert [embeddings.passage_ids[i] for i in range(-n, n)] == ids + ids
    assert embeddings.passage_ids[1:3] == ids[1:3]
    rows = np.random.default_rng(1).integers(0, n, 2 * n)
    assert embeddings.passage_ids.take(rows) == [ids[row] for row in rows]
    np.testing.assert_array_equal(embeddings.vectors(rows), vectors[rows])
    assert embeddings.vectors(rows[:0]).shape == (0, 7)
    assert embeddings.passage_ids.take(rows[:0]) == []


def test_ids_are_ordered_as_python_orders_strings(tmp_path: Path) -> None:
    ids = draw_ids(3000)
    embeddings = write_embeddings(tmp_path / "e", draw_vectors(3000, 1), ids)
    place = {one: i for i, one in enumerate(sorted(ids))}
    assert embeddings.id_order.tolist() == [place[one] for one in ids]
    assert embeddings.id_order.dtype == np.int64


def test_ids_in_several_arrow_batches_are_found_and_ordered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modeling_condenser.encoding.passage_ids._BATCH", 7)
    ids = draw_ids(50)
    embeddings = write_embeddings(tmp_path / "e", draw_vectors(50, 1), ids)
    assert len(embeddings.passage_ids.column.chunks) == 8
    rows = np.random.default_rng(0).permutation(50)
    assert embeddings.passage_ids.take(rows) == [ids[row] for row in rows]
    assert [ids[i] for i in np.argsort(embeddings.id_order)] == sorted(ids)


def test_the_files_are_what_other_programs_read(tmp_path: Path) -> None:
    vectors, ids = draw_vectors(10), draw_ids(10)
    write_embeddings(tmp_path, vectors, ids, shard_size=4)
    np.testing.assert_array_equal(np.load(tmp_path / "shard-00002.npy"), vectors[8:])
    with pa.OSFile(str(tmp_path / "passage_ids.arrow")) as file:
        table = pa.ipc.open_file(file).read_all()
    assert table.column("_id").to_pylist() == ids
    assert table.schema.field("_id").type == pa.large_string()
    assert not list(tmp_path.glob(".*"))


def test_rows_outside_of_the_collection_are_refused(tmp_path: Path) -> None:
    embeddings = write_embeddings(tmp_path, draw_vectors(5), draw_ids(5), shard_size=2)
    for rows in ([5], [0, -6]):
        with pytest.raises(IndexError, match=f"row {rows[-1]}"):
            embeddings.passage_ids.take(np.array(rows))
        with pytest.raises(IndexError, match=f"row {rows[-1]}"):
            embeddings.vectors(np.array(rows))
    with pytest.raises(IndexError, match="row -1: expected 0 to 4"):
        embeddings.vectors(np.array([-1]))


def test_no_embeddings_and_unfinished_ones_are_not_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no embeddings \(manifest.json is missing"):
        Embeddings.open(tmp_path / "nowhere")
    write_embeddings(tmp_path, draw_vectors(10), draw_ids(10), shard_size=4)
    (tmp_path / "shard-00001.npy").unlink()
    with pytest.raises(FileNotFoundError, match="not complete: 2 of 3 shards are finished"):
        Embeddings.open(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match="not a manifest of embeddings"):
        Embeddings.open(tmp_path)
    (tmp_path / "manifest.json").write_text('{"version": 2}')
    with pytest.raises(ValueError, match="has version 2, expected 1"):
        Embeddings.open(tmp_path)


def test_a_shard_of_the_wrong_size_is_seen_on_opening(tmp_path: Path) -> None:
    write_embeddings(tmp_path, draw_vectors(10), draw_ids(10), shard_size=4)
    file = tmp_path / "shard-00002.npy"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match="shard-00002.npy is damaged: expected vectors of shape"):
        Embeddings.open(tmp_path)


@pytest.mark.parametrize(
    ("vectors", "ids", "message"),
    [
        (draw_vectors(3), ["a", "b"], r"shape \(3, 7\) and 2 ids"),
        (draw_vectors(3)[0], ["a"] * 7, r"shape \(7,\)"),
        (draw_vectors(3), ["a", "b", "a"], "Several passages have the id 'a'"),
        (draw_vectors(3), ["a", None, "b"], "1 passages have no id"),
        (draw_vectors(3).astype(np.float64), ["a", "b", "c"], "type float64; expected .* float32"),
        (draw_vectors(3)[:0], [], "n_passages is 0"),
        (np.full((2, 2), np.inf, np.float32), ["a", "b"], "2 of 2 vectors .* the first in row 0"),
    ],
)
def test_what_does_not_fit_is_refused(
    vectors: np.ndarray, ids: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        write_embeddings(tmp_path, vectors, ids)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(FileExistsError, match="is not empty"):
        write_embeddings(tmp_path, draw_vectors(2), ["a", "b"])
