"""Corpora in every kind of file."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from datasets import Dataset, DatasetDict, Features, Value

from modeling_condenser.collection import rows as row_reading
from modeling_condenser.collection.load import load_passages
from modeling_condenser.pretraining.corpus import Source, load_documents, load_some, open_stream
from modeling_condenser.pretraining.data import BlockBuilder, build_blocks
from modeling_condenser.pretraining.rows import as_rows, warn_of_type

TEXTS = ["The poet left.", "In 1900, the café's museum cost $4.50; why?", 'She said: "no, thanks".']
FILES = ["c.txt", "c.jsonl", "c.v1.jsonl.gz", "c.csv", "c.parquet"]


def write(file: Path, texts: list[Any], *, column: str = "text", **others: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = pd.DataFrame({"number": range(len(texts)), **others, column: texts})
    match file.suffix:
        case ".txt":
            file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        case ".csv":
            rows.to_csv(file, index=False)
        case ".parquet":
            rows.to_parquet(file)
        case _:
            rows.to_json(file, orient="records", lines=True)
    return file


def read(*sources: Source | Path | str) -> list[str]:
    rows = load_documents(list(sources))
    assert all(row.keys() == {"text"} for row in rows)
    return [row["text"] for row in rows]


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file_gives_its_documents(name, tmp_path):
    column = "text" if name == "c.txt" else "body"
    source = Source(str(write(tmp_path / name, TEXTS, column=column)), text_column=column)
    assert read(source) == TEXTS


def test_a_folder_or_a_pattern_is_read_in_order_of_name(tmp_path):
    write(tmp_path / "c" / "b.jsonl", TEXTS[1:2])
    write(tmp_path / "c" / "a.jsonl", TEXTS[:1])
    write(tmp_path / "c" / "later" / "a.jsonl", TEXTS[2:])
    (tmp_path / "c" / "empty.jsonl").touch()
    (tmp_path / "c" / "README.md").write_text("not a document")
    for hidden in ("._a.txt", ".ipynb_checkpoints/a-checkpoint.txt", "sub/.old/a.txt"):
        write(tmp_path / "c" / hidden, TEXTS[1:])
    assert read(tmp_path / "c") == read(f"{tmp_path}/c/**/*.jsonl") == TEXTS
    assert read(f"{tmp_path}/c/[ab].jsonl") == TEXTS[:2]


def test_documents_of_several_kinds_are_read_as_collect_reads_them(tmp_path, caplog):
    write(tmp_path / "c" / "a.csv", TEXTS[:2])
    page = "<title>Trips</title><h2>By rail</h2><p>It is slow.</p><p>It is cheap.</p>"
    (tmp_path / "c" / "b.html").write_text(page)
    (tmp_path / "c" / "c.txt").write_bytes(
        "Grüße aus Köln.\nDie Straße ist größer.".encode("cp1252")
    )
    (tmp_path / "c" / "d.html").write_bytes(bytes(range(256)) * 9)
    html = "Trips\n\nBy rail\n\nIt is slow.\n\nIt is cheap."
    texts = [*TEXTS[:2], html, "Grüße aus Köln.\nDie Straße ist größer."]
    assert sorted(read(tmp_path / "c")) == sorted(texts)
    assert "d.html is not text of a known encoding" in caplog.text
    assert read(tmp_path / "c" / "b.html") == [html]


def test_a_folder_of_texts_has_a_document_in_each_file_and_a_pattern_one_in_each_line(tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "a.txt").write_text("One.\nTwo.")
    (tmp_path / "c" / "b.txt").write_text("Three.")
    assert read(tmp_path / "c") == ["One.\nTwo.", "Three."]
    assert read(f"{tmp_path}/c/*.txt") == ["One.", "Two.", "Three."]
    assert read(tmp_path / "c" / "a.txt") == ["One.", "Two."]
    (tmp_path / "c" / "d.md").write_text("Four.")
    assert sorted(read(tmp_path / "c")) == ["Four.", "One.\nTwo.", "Three."]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_other_columns_may_differ_between_files(kind, tmp_path):
    others: list[dict[str, Any]] = [{"id": 1, "date": None}, {"url": "x", "date": "2024-01-01"}, {}]
    for i, (text, columns) in enumerate(zip(TEXTS, others, strict=True)):
        write(tmp_path / f"{i}.{kind}", [text], **columns)
    assert read(tmp_path) == TEXTS


def test_a_column_that_few_rows_have_is_read_and_one_that_none_has_is_refused(tmp_path):
    file = tmp_path / "c.jsonl"
    file.write_text('{"id": 1}\n{"text": "a."}\n{"text": NaN, "id": {"x": 2}}\n{"id": 3}\n')
    assert read(file) == ["", "a.", "", ""]
    with pytest.raises(ValueError, match=r"c.jsonl has no column 'body': its columns are id"):
        load_documents(Source(str(file), text_column="body"))


@pytest.mark.parametrize("name", ["c.csv", "c.parquet", "c.jsonl"])
def test_words_for_nothing_are_text_and_null_is_no_text(name, tmp_path):
    texts = ["null", "NA", "1.50", "None", None]
    assert [text or None for text in read(write(tmp_path / name, texts))] == texts


@pytest.mark.parametrize("name", ["docs [2024]", "notes[v2].txt", "*.txt", "2024_05", "0123"])
def test_a_path_that_exists_is_no_pattern_and_no_hub_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(Path("notes2.txt"), TEXTS[1:])
    write(Path(name) if name.endswith(".txt") else Path(name) / "a.txt", TEXTS[:1])
    assert read(name) == TEXTS[:1]


def test_files_are_stored_once_until_they_change(tmp_path):
    file = write(tmp_path / "c.txt", TEXTS)
    first, second = load_documents(str(file)), load_documents(str(file))
    assert first._fingerprint == second._fingerprint
    write(file, TEXTS[:2])
    assert read(file) == TEXTS[:2]
    assert load_documents(str(file))._fingerprint != first._fingerprint


def test_a_saved_data_set_and_the_passages_of_a_collection_are_read(tmp_path):
    saved = Dataset.from_dict({"text": TEXTS, "id": [1, 2, 3]})
    saved.save_to_disk(tmp_path / "saved")
    DatasetDict(train=saved, test=saved.select([1])).save_to_disk(tmp_path / "splits")
    write(tmp_path / "c" / "corpus.jsonl.gz", TEXTS)
    write(tmp_path / "c" / "queries.jsonl", ["not a document"])
    for name in ("saved", "splits", "c"):
        assert read(tmp_path / name) == TEXTS
    stream = open_stream(Source(str(tmp_path / "c"), streaming=True))
    assert [row["text"] for row in stream] == TEXTS
    assert read(Source(str(tmp_path / "splits"), split="test")) == TEXTS[1:2]
    assert len(read("health")) == len(load_passages("health"))
    first = next(iter(open_stream(Source("health", streaming=True))))
    assert first["text"] == load_passages("health")[0]["text"]


def test_nothing_is_written_beside_a_saved_data_set(tmp_path, wordpiece_tokenizer):
    Dataset.from_dict({"number": list(range(9))}).save_to_disk(tmp_path)
    files = sorted(tmp_path.iterdir())
    rows = load_documents(Source(str(tmp_path), text_column="number", join_rows=3))
    assert rows["text"] == ["0 1 2", "3 4 5", "6 7 8"]
    assert len(build_blocks(rows, BlockBuilder(wordpiece_tokenizer, max_length=8))) == 3
    assert sorted(tmp_path.iterdir()) == files


def test_long_strings_are_read_without_a_copy_and_follow_others(tmp_path):
    features = Features({"text": Value("large_string")})
    Dataset.from_dict({"text": ["a", "b"]}, features).save_to_disk(tmp_path / "long")
    Dataset.from_dict({"text": ["c"]}).save_to_disk(tmp_path / "short")
    long = load_documents(str(tmp_path / "long"))
    assert long["text"][:] == ["a", "b"]
    assert Path(long.cache_files[0]["filename"]).parent == tmp_path / "long"
    both = load_documents([str(tmp_path / name) for name in ("long", "short")])
    assert both["text"][:] == ["a", "b", "c"]


def test_sources_follow_one_another(tmp_path):
    rows = ["a.", "b.", "", "c.", "d.", "e.", "f."]
    long = write(tmp_path / "c.parquet", rows, column="sentence")
    joined = Source(str(long), text_column="sentence", join_rows=3)
    (tmp_path / "c.csv").write_text("text\n1900\n")  # a number is text, too
    short = tmp_path / "c.csv"
    assert read(joined, short) == ["a. b.", "c. d. e.", "f.", "1900"]


@pytest.mark.parametrize("path", ["{}/c.jsonl", "./no/folder", "c.txt", "{}/*.txt", "{}"])
def test_a_missing_file_is_not_taken_for_a_data_set(path, tmp_path):
    with pytest.raises(FileNotFoundError, match="There are no documents at"):
        read(path.format(tmp_path))
    with pytest.raises(FileNotFoundError, match="There are no documents at"):
        open_stream(Source(path.format(tmp_path), streaming=True))


def test_settings_of_a_hub_data_set_are_refused_for_local_files(tmp_path):
    file = str(write(tmp_path / "c.jsonl", TEXTS))
    Dataset.from_dict({"text": TEXTS}).save_to_disk(tmp_path / "saved")
    for source in (Source(file, split="test"), Source(str(tmp_path / "saved"), revision="v2")):
        with pytest.raises(ValueError, match="is local and has no name, split or revision"):
            read(source)
    with pytest.raises(ValueError, match="is local and has no name, split or revision"):
        open_stream(Source(file, streaming=True, name="en"))


@pytest.mark.parametrize("name", ["c.jsonl", "c.csv", "c.parquet"])
def test_a_stream_has_the_column_that_is_named_also_beside_another_text(name, tmp_path):
    file = str(write(tmp_path / name, TEXTS, column="body", text=["label"] * 3))
    stream = open_stream(Source(file, text_column="body", streaming=True))
    assert [row["text"] for row in as_rows(stream, name="corpus")] == TEXTS
    with pytest.raises(ValueError, match="no column 'bod': its columns are body, number, text"):
        open_stream(Source(file, text_column="bod", streaming=True))


def test_files_are_streamed_as_they_are_stored(tmp_path, caplog):
    (tmp_path / "a.jsonl").write_text(
        '{"meta": 1}\n{"text": "Half of \\ud83d a character."}\n'
        '{"text": "2024-01-01", "other": [1]}\n'
    )
    (tmp_path / "b.csv").write_text("text;more\nNA;1\nnull;2\nThe end.;3\n")
    (tmp_path / "empty.csv").write_text("text;more\n")
    stream = open_stream(Source(f"{tmp_path}/*", streaming=True))
    rows = [row["text"] for row in as_rows(stream, name="corpus")]
    assert rows == load_documents(f"{tmp_path}/*")["text"][:]
    assert rows == ["Half of \ufffd a character.", "2024-01-01", "NA", "null", "The end."]
    (tmp_path / "odd.jsonl").write_text('{"text": "A."}\n{"text": ["a", "b"]}\n{"text": "B."}\n')
    warn_of_type.cache_clear()
    odd = Source(f"{tmp_path}/odd.jsonl", streaming=True)  # which must not end a training
    assert [row["text"] for row in as_rows(open_stream(odd), name="corpus")] == ["A.", "B."]
    assert "rows whose text is a list: such rows are left out" in caplog.text
    warn_of_type.cache_clear()
    (tmp_path / "odd.jsonl").unlink()
    (tmp_path / "zz_infos.json").write_text('{"version": 1}\n')
    with pytest.raises(ValueError, match="zz_infos.json has no column 'text'"):
        open_stream(Source(f"{tmp_path}/*", streaming=True))
    Dataset.from_dict({"text": TEXTS}).save_to_disk(tmp_path / "saved")
    with pytest.raises(ValueError, match="saved by save_to_disk, .* leave out streaming"):
        open_stream(Source(str(tmp_path / "saved"), streaming=True))


def test_a_sample_of_a_stream_is_of_its_beginning(tmp_path):
    file = str(write(tmp_path / "c.jsonl", [f"Text {i}." for i in range(4100)]))
    assert load_some(file)["text"][:] == load_documents(file)["text"][:]
    expected = [f"Text {i}." for i in range(4000)]
    assert load_some({"path": file, "streaming": True})["text"][:] == expected


def test_a_broken_file_is_named(tmp_path):
    file = tmp_path / "c.jsonl"
    file.write_text('{"text": "a."}\n{"text": \n')
    with pytest.raises(ValueError, match=r"c.jsonl:2: .* is not JSON"):
        read(str(file))
    file.write_text('{"text": ["a.", "b."]}\n')
    with pytest.raises(ValueError, match=r"c.jsonl, row 1, .*\['a.', 'b.'\], expected one"):
        read(str(file))


@pytest.mark.parametrize("name", ["owner/name", "wikitext"])
def test_a_hub_name_is_loaded_with_its_configuration_split_and_revision(name, monkeypatch):
    calls = []

    def load(*args: Any, **kwargs: Any) -> Dataset:
        calls.append((args, kwargs))
        return Dataset.from_dict({"title": ["a"] * 3, "body": TEXTS})

    monkeypatch.setattr(row_reading, "load_dataset", load)
    source = Source(name, name="en", split="train[:1%]", revision="v2", text_column="body")
    assert read(source) == TEXTS
    expected = {"split": "train[:1%]", "revision": "v2"}
    assert calls == [((name, "en"), expected)]
    with pytest.raises(ValueError, match=r"no column 'text': its columns are body, title"):
        read(name)
