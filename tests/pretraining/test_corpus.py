"""Corpora: every kind of file gives the same documents, and a wrong source says what is wrong."""

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from datasets import Dataset, IterableDataset

from modeling_condenser.pretraining import corpus
from modeling_condenser.pretraining.corpus import Source, load_documents

TEXTS = ["The poet left.", "In 1900, the café's museum cost $4.50; why?", 'She said: "no, thanks".']


def write_txt(file: Path, texts: list[str], column: str) -> None:
    file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


def json_lines(texts: list[str], column: str) -> str:
    return "".join(f"{json.dumps({column: t, 'id': i})}\n" for i, t in enumerate(texts))


def write_jsonl(file: Path, texts: list[str], column: str) -> None:
    file.write_text(json_lines(texts, column))


def write_gz(file: Path, texts: list[str], column: str) -> None:
    file.write_bytes(gzip.compress(json_lines(texts, column).encode()))


def write_csv(file: Path, texts: list[str], column: str) -> None:
    with file.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([["id", column], *enumerate(texts)])


def write_parquet(file: Path, texts: list[str], column: str) -> None:
    pd.DataFrame({"id": range(len(texts)), column: texts}).to_parquet(file)


WRITERS: dict[str, Callable[[Path, list[str], str], None]] = {
    "c.txt": write_txt,
    "c.jsonl": write_jsonl,
    "c.json": write_jsonl,
    "c.v1.jsonl.gz": write_gz,
    "c.csv": write_csv,
    "c.parquet": write_parquet,
}


def write(file: Path, texts: list[str], *, column: str = "text") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    WRITERS[f"c{''.join(file.suffixes)}"](file, texts, column)
    return file


def read(*sources: Source | Path | str, streaming: bool = False) -> list[dict[str, Any]]:
    rows = load_documents(
        [s if isinstance(s, Source) else Source(str(s)) for s in sources], streaming=streaming
    )
    assert isinstance(rows, IterableDataset if streaming else Dataset)
    return list(rows)


def as_rows(texts: list[str]) -> list[dict[str, Any]]:
    return [{"text": text} for text in texts]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", WRITERS)
def test_every_kind_of_file_gives_its_documents(name: str, streaming: bool, tmp_path: Path) -> None:
    file = write(tmp_path / name, TEXTS)
    assert read(file, streaming=streaming) == as_rows(TEXTS)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", [name for name in WRITERS if name != "c.txt"])
def test_the_text_may_stand_in_another_column(name: str, streaming: bool, tmp_path: Path) -> None:
    file = write(tmp_path / name, TEXTS, column="body")
    assert read(Source(str(file), text_column="body"), streaming=streaming) == as_rows(TEXTS)


def test_the_shared_corpus_is_read_whole(corpus_file: Path, texts: list[str]) -> None:
    assert read(corpus_file) == as_rows(texts)
    assert read(corpus_file, streaming=True) == as_rows(texts)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_folder_is_read_with_its_subfolders_in_order_of_name(
    streaming: bool, tmp_path: Path
) -> None:
    write(tmp_path / "c" / "b.jsonl", TEXTS[1:2])
    write(tmp_path / "c" / "a.jsonl", TEXTS[:1])
    write(tmp_path / "c" / "later" / "a.json", TEXTS[2:])
    (tmp_path / "c" / "notes.md").write_text("not a document")
    (tmp_path / "c" / "shards.json").mkdir()
    assert read(tmp_path / "c", streaming=streaming) == as_rows(TEXTS)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_pattern_is_read_in_order_of_name(streaming: bool, tmp_path: Path) -> None:
    for i in (2, 0, 1):
        write(tmp_path / "c" / f"part-{i}.txt", TEXTS[i : i + 1])
    write(tmp_path / "c" / "other.txt", ["no"])
    assert read(f"{tmp_path}/c/part-*.txt", streaming=streaming) == as_rows(TEXTS)
    assert read(f"{tmp_path}/**/part-[01].txt", streaming=streaming) == as_rows(TEXTS[:2])


def test_sources_of_all_kinds_follow_one_another(tmp_path: Path) -> None:
    files = [write(tmp_path / name, [f"{name} {text}" for text in TEXTS]) for name in WRITERS]
    expected = [f"{name} {text}" for name in WRITERS for text in TEXTS]
    assert read(*files) == as_rows(expected)


def test_streamed_sources_take_turns_until_all_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The library waits 5 s for its reading threads when it has read all.
    monkeypatch.setattr("datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN", 0, raising=False)
    long = write(tmp_path / "c.parquet", [f"long {i}" for i in range(5)])
    short = write(tmp_path / "c.txt", ["short 0", "short 1"])
    expected = ["long 0", "short 0", "long 1", "short 1", "long 2", "long 3", "long 4"]
    assert read(long, short, streaming=True) == as_rows(expected)


@pytest.mark.parametrize("streaming", [False, True])
def test_rows_are_joined_to_documents(streaming: bool, tmp_path: Path) -> None:
    file = write(tmp_path / "c.jsonl", ["a.", "b.", "", "c.", "d.", "e.", "f."], column="sentence")
    source = Source(str(file), text_column="sentence", join_rows=3)
    assert read(source, streaming=streaming) == as_rows(["a. b.", "c. d. e.", "f."])


@pytest.mark.parametrize("streaming", [False, True])
def test_a_missing_column_is_refused_and_the_nearest_named(streaming: bool, tmp_path: Path) -> None:
    file = write(tmp_path / "c.csv", TEXTS, column="texts")
    with pytest.raises(ValueError, match="no column 'text': its columns are id, texts") as refusal:
        read(file, streaming=streaming)
    assert "Did you mean 'texts'?" in str(refusal.value)


@pytest.mark.parametrize(
    "path", ["{}/c.jsonl", "./no/such/folder", "c.txt", "data/c.csv", "{}/c/*.txt", "~/none/here"]
)
def test_a_missing_file_is_not_taken_for_a_data_set(path: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(path.format(tmp_path))


def test_a_folder_without_documents_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("none")
    with pytest.raises(FileNotFoundError, match="holds no .txt, .jsonl"):
        read(tmp_path)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", WRITERS)
def test_an_empty_file_is_refused(name: str, streaming: bool, tmp_path: Path) -> None:
    file = tmp_path / name
    file.touch()
    with pytest.raises(ValueError, match="holds no documents: the corpus is empty"):
        read(file, streaming=streaming)


@pytest.mark.parametrize("streaming", [False, True])
def test_an_empty_file_among_others_is_passed_over(streaming: bool, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    write(tmp_path / "b.jsonl", TEXTS)
    assert read(tmp_path, streaming=streaming) == as_rows(TEXTS)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_table_without_rows_is_refused(streaming: bool, tmp_path: Path) -> None:
    file = write(tmp_path / "c.csv", [])
    with pytest.raises(ValueError, match="holds no documents|corresponds to no data"):
        read(file, streaming=streaming)


@pytest.mark.parametrize("streaming", [False, True])
def test_numbers_in_the_text_column_are_read_as_text(streaming: bool, tmp_path: Path) -> None:
    file = tmp_path / "c.csv"
    file.write_text("text\n1900\n2000\n")
    assert read(file, streaming=streaming) == as_rows(["1900", "2000"])


def test_files_of_several_kinds_in_one_folder_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", TEXTS)
    write(tmp_path / "b.txt", TEXTS)
    with pytest.raises(
        ValueError, match="files ending in .jsonl, .txt; expected files of one kind"
    ):
        read(tmp_path)


def test_a_file_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.docx").write_text("?")
    with pytest.raises(ValueError, match="files ending in .docx"):
        read(tmp_path / "c.docx")


def test_no_source_is_refused() -> None:
    with pytest.raises(ValueError, match="The corpus has no source"):
        load_documents([])


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", ["owner/name", "wikitext"])
def test_a_hub_name_is_loaded_with_its_configuration_split_and_revision(
    name: str, streaming: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def load(*args: Any, **kwargs: Any) -> Dataset | IterableDataset:
        calls.append((args, kwargs))
        rows = Dataset.from_dict({"title": ["a"] * 3, "body": TEXTS})
        return rows.to_iterable_dataset() if streaming else rows

    monkeypatch.setattr(corpus, "load_hub_dataset", load)
    source = Source(name, name="en", split="train[:1%]", revision="v2", text_column="body")
    assert read(source, streaming=streaming) == as_rows(TEXTS)
    expected = {"split": "train[:1%]", "revision": "v2", "streaming": streaming}
    assert calls == [((name, "en"), expected)]
