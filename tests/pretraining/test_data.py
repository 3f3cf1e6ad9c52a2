"""Corpora in every kind of file, and blocks against the reference's way of building them."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset, IterableDataset, load_from_disk

from modeling_condenser.pretraining import data
from modeling_condenser.pretraining.arguments import PretrainingRecipe
from modeling_condenser.pretraining.counter_random import random_keys, uniforms
from modeling_condenser.pretraining.data import (
    BlockBuilder,
    Source,
    StreamedBlocks,
    build_blocks,
    fingerprint_blocks,
    load_documents,
    sentence_starts,
)

TEXTS = ["The poet left.", "In 1900, the café's museum cost $4.50; why?", 'She said: "no, thanks".']
FILES = ["c.txt", "c.jsonl", "c.v1.jsonl.gz", "c.csv", "c.parquet"]
ROOM = 30  # tokens of text in a block


def write(file: Path, texts: list[str], *, column: str = "text") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = pd.DataFrame({"id": range(len(texts)), column: texts})
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


def read(*sources: Source | Path | str, streaming: bool = False) -> list[str]:
    rows = load_documents(
        [s if isinstance(s, Source) else Source(str(s)) for s in sources], streaming=streaming
    )
    assert isinstance(rows, IterableDataset if streaming else Dataset)
    assert all(row.keys() == {"text"} for row in rows)
    return [row["text"] for row in rows]


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file_gives_its_documents(name, tmp_path):
    column = "text" if name == "c.txt" else "body"
    source = Source(str(write(tmp_path / name, TEXTS, column=column)), text_column=column)
    assert read(source) == read(source, streaming=True) == TEXTS
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match="holds no documents: the corpus is empty"):
        read(tmp_path / name)


def test_a_folder_or_a_pattern_is_read_in_order_of_name(tmp_path):
    write(tmp_path / "c" / "b.jsonl", TEXTS[1:2])
    write(tmp_path / "c" / "a.jsonl", TEXTS[:1])
    write(tmp_path / "c" / "later" / "a.jsonl", TEXTS[2:])
    (tmp_path / "c" / "empty.jsonl").touch()
    (tmp_path / "c" / "notes.md").write_text("not a document")
    assert read(tmp_path / "c") == TEXTS
    assert read(f"{tmp_path}/c/[ab].jsonl", streaming=True) == TEXTS[:2]


def test_sources_follow_one_another_and_take_turns_in_a_stream(tmp_path, monkeypatch):
    # The library waits 5 s for its reading threads when it has read all.
    monkeypatch.setattr("datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN", 0, raising=False)
    long = write(tmp_path / "c.parquet", [f"long {i}" for i in range(3)])
    short = write(tmp_path / "c.txt", ["short 0"])
    assert read(long, short) == ["long 0", "long 1", "long 2", "short 0"]
    assert read(long, short, streaming=True) == ["long 0", "short 0", "long 1", "long 2"]


def test_rows_are_joined_to_documents(tmp_path):
    file = write(tmp_path / "c.jsonl", ["a.", "b.", "", "c.", "d.", "e.", "f."], column="sentence")
    source = Source(str(file), text_column="sentence", join_rows=3)
    for streaming in (False, True):
        assert read(source, streaming=streaming) == ["a. b.", "c. d. e.", "f."]


def test_numbers_in_the_text_column_are_read_as_text(tmp_path):
    (tmp_path / "c.csv").write_text("text\n1900\n2000\n")
    assert read(tmp_path / "c.csv") == ["1900", "2000"]


@pytest.mark.parametrize("path", ["{}/c.jsonl", "./no/folder", "c.txt", "{}/*.txt", "{}"])
def test_a_missing_file_is_not_taken_for_a_data_set(path, tmp_path):
    with pytest.raises(FileNotFoundError, match="There are no documents at"):
        read(path.format(tmp_path))


def test_a_missing_column_and_files_of_several_kinds_are_refused(tmp_path):
    file = write(tmp_path / "c.csv", TEXTS, column="texts")
    with pytest.raises(ValueError, match=r"no column 'text': its columns are id, texts"):
        read(file)
    write(tmp_path / "c.txt", TEXTS)
    with pytest.raises(ValueError, match=r"means files ending in .csv, .txt; expected .* one kind"):
        read(tmp_path)


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


@pytest.fixture
def builder(wordpiece_tokenizer):
    return BlockBuilder(wordpiece_tokenizer, max_length=ROOM + 2, seed=3)


def sentences_of(text: str) -> list[str]:
    starts = sentence_starts(text)
    return [text[a:b] for a, b in itertools.pairwise([*starts, len(text)])]


def build_naively(sentences: list[list[int]], draws: list[float], share: float) -> list[list[int]]:
    """The reference's loop: two draws for each block, whether it is short, and its length."""
    draw = iter(draws)

    def next_length() -> int:
        is_short, length = next(draw) < share, next(draw)
        return 1 + int(length * ROOM) if is_short else ROOM

    blocks: list[list[int]] = []
    block: list[int] = []
    target = next_length()
    for sentence in sentences:
        if len(block) + len(sentence) > target and len(block) > 0:
            blocks.append(block)
            block = []
            target = next_length()
        block = block + sentence
    return [*blocks, block] if block else blocks


def build(builder: BlockBuilder, texts: list[Any], numbers: Any) -> list[list[int]]:
    return [block.tolist() for block in builder.rows(texts, numbers)["input_ids"]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Dr. Smith left. It rained.", ["Dr. Smith left. ", "It rained."]),
        ("Why? No! It is 4.50 today.", ["Why? ", "No! ", "It is 4.50 today."]),
        ("See e.g. Fig. 2 of it. Then go.", ["See e.g. Fig. 2 of it. ", "Then go."]),
        (" \n ", []),
    ],
)
def test_a_text_is_cut_at_its_sentences(text, expected):
    assert sentences_of(text) == expected


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_blocks_are_those_of_the_reference(share, wordpiece_tokenizer, texts):
    texts, numbers = texts[::3], range(0, 7 * len(texts[::3]), 7)
    builder = BlockBuilder(
        wordpiece_tokenizer, max_length=ROOM + 2, short_block_probability=share, seed=11
    )
    expected = []
    for text, number in zip(texts, numbers, strict=True):
        encoded = wordpiece_tokenizer(sentences_of(text), add_special_tokens=False)
        sentences = encoded["input_ids"]
        draws = uniforms(random_keys(11, number), 2 * len(sentences) + 2)[0].tolist()
        expected += build_naively(sentences, draws, share)
    assert build(builder, texts, numbers) == expected
    assert len(expected) > 2 * len(texts)
    # The place of a document in the corpus decides, not its neighbours or blank documents.
    alone = build(builder, ["", texts[-1], None, " \n"], [0, numbers[-1], 1, 2])
    assert alone == expected[-len(alone) :]


@pytest.mark.parametrize("name", ["wordpiece", "byte_level", "sentencepiece"])
def test_the_blocks_of_a_document_are_its_tokens_cut_between_sentences(name, texts, request):
    tokenizer = request.getfixturevalue(f"{name}_tokenizer")
    builder = BlockBuilder(tokenizer, max_length=ROOM + 2)
    n_blocks = 0
    for number, text in enumerate(texts[::3]):
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        blocks = build(builder, [text], [number])
        assert list(itertools.chain(*blocks)) == encoded["input_ids"]
        starts = set(sentence_starts(text))
        for end in np.cumsum([len(block) for block in blocks])[:-1]:
            # The token behind a cut is a sentence's first, or the blank before it.
            first = encoded["offset_mapping"][end][0]
            assert first in starts or (text[first] == " " and first + 1 in starts)
        n_blocks += len(blocks)
    assert n_blocks > 2 * len(texts[::3])


def test_blocks_on_disk_do_not_depend_on_processes_and_are_built_once(
    builder, texts, tmp_path, monkeypatch
):
    texts = texts[::4]
    saved = []
    for folder in (tmp_path / "one", tmp_path / "two"):  # the library keeps its cache beside them
        Dataset.from_dict({"text": texts}).save_to_disk(folder)
        saved.append(load_from_disk(folder))
    one, two = build_blocks(saved[0], builder), build_blocks(saved[1], builder, num_proc=2)
    assert one.column_names == two.column_names == ["input_ids"]
    expected = build(builder, texts, range(len(texts)))
    assert one["input_ids"][:] == two["input_ids"][:] == expected
    assert fingerprint_blocks(one) == fingerprint_blocks(two)
    assert fingerprint_blocks(one.select(range(9))) != fingerprint_blocks(one)
    other = BlockBuilder(builder.tokenizer, max_length=ROOM + 2, seed=4)
    assert build_blocks(saved[0], other)["input_ids"][:] != expected

    monkeypatch.setattr(BlockBuilder, "rows", None)  # would fail if it were called
    again = BlockBuilder(builder.tokenizer, max_length=ROOM + 2, seed=3)
    assert build_blocks(saved[0], again)["input_ids"][:] == expected


def test_a_corpus_without_text_and_a_length_without_room_are_refused(builder):
    blank = Dataset.from_dict({"text": ["", "  ", "\n"]})
    with pytest.raises(ValueError, match="None of the 3 documents has any text"):
        build_blocks(blank, builder)
    with pytest.raises(ValueError, match="max_length is 2, which leaves no room"):
        BlockBuilder(builder.tokenizer, max_length=2)
    with pytest.raises(ValueError, match="None of the documents has any text"):
        next(iter(StreamedBlocks(blank, builder, seed=0)))


def stream(builder: BlockBuilder, texts: list[str], *, epoch: int = 0, **options: Any) -> list:
    documents = Dataset.from_dict({"text": texts}).to_iterable_dataset()
    blocks = StreamedBlocks(documents, builder, **{"seed": 5, "buffer_size": 50, **options})
    length = sum(1 for _ in blocks.read_epoch(0))
    read = itertools.islice(blocks, epoch * length, (epoch + 1) * length)
    return [(b["input_ids"].tolist(), b["mask_key"]) for b in read]


def test_a_stream_gives_all_blocks_once_in_an_order_of_seed_and_epoch(builder, texts):
    texts = texts[::5]
    expected = build(builder, texts, range(len(texts)))
    order = stream(builder, texts)
    assert stream(builder, texts, num_proc=2) == order
    place_of = {int(random_keys(5, 0, i)[0]): i for i in range(len(expected))}
    places = [place_of[key] for _, key in order]
    assert sorted(places) == list(range(len(expected)))
    assert [ids for ids, _ in order] == [expected[place] for place in places]
    # To give its n-th block, a stream may have read 50 more.
    assert all(place < n + 50 for n, place in enumerate(places, start=1))
    for other in (stream(builder, texts, epoch=1), stream(builder, texts, seed=6)):
        assert sorted(ids for ids, _ in other) == sorted(expected)
        assert [ids for ids, _ in other] != [ids for ids, _ in order]
        assert not {key for _, key in other} & {key for _, key in order}


@pytest.mark.parametrize(("num_proc", "n_read"), [(0, 512), (2, 6 * 256)])
def test_a_stream_reads_documents_as_it_needs_them(num_proc, n_read, builder):
    read = 0

    def endless() -> Iterator[dict[str, str]]:
        nonlocal read
        for read in itertools.count(1):
            yield {"text": f"The poet has {read} museums. Why?"}

    blocks = StreamedBlocks(endless(), builder, seed=0, num_proc=num_proc, buffer_size=100)
    assert len(list(itertools.islice(blocks, 200))) == 200
    assert 300 <= read <= n_read  # a block each, and what is tokenized together or ahead
