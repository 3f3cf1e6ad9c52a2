"""Corpora: every kind of file gives the same documents, and a wrong source says what is wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from datasets import Dataset, IterableDataset

from modeling_condenser.pretraining import data
from modeling_condenser.pretraining.arguments import PretrainingRecipe
from modeling_condenser.pretraining.data import Source, load_documents

TEXTS = ["The poet left.", "In 1900, the café's museum cost $4.50; why?", 'She said: "no, thanks".']


WRITERS: dict[str, Callable[[pd.DataFrame, Path], None]] = {
    ".jsonl": lambda rows, file: rows.to_json(file, orient="records", lines=True),
    ".v1.jsonl.gz": lambda rows, file: rows.to_json(file, orient="records", lines=True),
    ".csv": lambda rows, file: rows.to_csv(file, index=False),
    ".parquet": lambda rows, file: rows.to_parquet(file),
}


FILES = ["c.txt", *(f"c{ending}" for ending in WRITERS)]


def write(file: Path, texts: list[str], *, column: str = "text") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".txt":
        file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    else:
        rows = pd.DataFrame({"id": range(len(texts)), column: texts})
        WRITERS["".join(file.suffixes)](rows, file)
    return file


def read(*sources: Source | Path | str, streaming: bool = False) -> list[str]:
    rows = load_documents(
        [s if isinstance(s, Source) else Source(str(s)) for s in sources], streaming=streaming
    )
    assert isinstance(rows, IterableDataset if streaming else Dataset)
    assert all(row.keys() == {"text"} for row in rows)
    return [row["text"] for row in rows]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file_gives_its_documents(name, streaming, tmp_path):
    column = "text" if name == "c.txt" else "body"
    source = Source(str(write(tmp_path / name, TEXTS, column=column)), text_column=column)
    assert read(source, streaming=streaming) == TEXTS


def test_a_folder_or_a_pattern_is_read_in_order_of_name(tmp_path):
    write(tmp_path / "c" / "b.jsonl", TEXTS[1:2])
    write(tmp_path / "c" / "a.jsonl", TEXTS[:1])
    write(tmp_path / "c" / "later" / "a.jsonl", TEXTS[2:])
    (tmp_path / "c" / "empty.jsonl").touch()
    (tmp_path / "c" / "notes.md").write_text("not a document")
    assert read(tmp_path / "c") == TEXTS
    assert read(f"{tmp_path}/c/[ab].jsonl", streaming=True) == TEXTS[:2]


def test_sources_of_all_kinds_follow_one_another(tmp_path):
    files = [write(tmp_path / name, [f"{name} {text}" for text in TEXTS]) for name in FILES]
    assert read(*files) == [f"{name} {text}" for name in FILES for text in TEXTS]


def test_streamed_sources_take_turns_until_all_are_read(tmp_path, monkeypatch):
    # The library waits 5 s for its reading threads when it has read all.
    monkeypatch.setattr("datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN", 0, raising=False)
    long = write(tmp_path / "c.parquet", [f"long {i}" for i in range(4)])
    short = write(tmp_path / "c.txt", ["short 0"])
    assert read(long, short, streaming=True) == ["long 0", "short 0", "long 1", "long 2", "long 3"]


def test_rows_are_joined_to_documents(tmp_path):
    file = write(tmp_path / "c.jsonl", ["a.", "b.", "", "c.", "d.", "e.", "f."], column="sentence")
    source = Source(str(file), text_column="sentence", join_rows=3)
    for streaming in (False, True):
        assert read(source, streaming=streaming) == ["a. b.", "c. d. e.", "f."]


def test_a_missing_column_is_refused_and_the_nearest_named(tmp_path):
    file = write(tmp_path / "c.csv", TEXTS, column="texts")
    with pytest.raises(ValueError, match=r"no column 'text'.*id, texts. Did you mean 'texts'?"):
        read(file)


@pytest.mark.parametrize("path", ["{}/c.jsonl", "./no/folder", "c.txt", "{}/*.txt", "{}"])
def test_a_missing_file_is_not_taken_for_a_data_set(path, tmp_path):
    with pytest.raises(FileNotFoundError, match="There are no documents at"):
        read(path.format(tmp_path))


@pytest.mark.parametrize("name", FILES)
def test_a_corpus_without_documents_is_refused(name, tmp_path):
    (tmp_path / name).touch()
    with pytest.raises(ValueError, match="holds no documents: the corpus is empty"):
        read(tmp_path / name)


def test_numbers_in_the_text_column_are_read_as_text(tmp_path):
    file = tmp_path / "c.csv"
    file.write_text("text\n1900\n2000\n")
    assert read(file) == read(file, streaming=True) == ["1900", "2000"]


@pytest.mark.parametrize("name", ["owner/name", "wikitext"])
def test_a_hub_name_is_loaded_with_its_configuration_split_and_revision(name, monkeypatch):
    calls = []

    def load(*args: Any, **kwargs: Any) -> Dataset:
        calls.append((args, kwargs))
        return Dataset.from_dict({"title": ["a"] * 3, "body": TEXTS})

    monkeypatch.setattr(data, "load_dataset", load)
    source = Source(name, name="en", split="train[:1%]", revision="v2", text_column="body")
    assert read(source) == TEXTS
    expected = {"split": "train[:1%]", "revision": "v2", "streaming": False}
    assert calls == [((name, "en"), expected)]


def test_a_recipe_names_one_source_or_several():
    def sources(corpus: Any) -> list[Source]:
        return PretrainingRecipe(encoder="e", corpus=corpus).sources

    assert sources("a.txt") == [Source("a.txt")]
    parts = ["a.txt", {"path": "b", "join_rows": 20}]
    assert sources(parts) == [Source("a.txt"), Source("b", join_rows=20)]
    with pytest.raises(ValueError, match="no field 'text_colum'. Did you mean 'text_column'?"):
        sources({"path": "a", "text_colum": "b"})
