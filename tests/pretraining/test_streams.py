"""Streams: the batches of any number of processes and workers, and their state."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from datasets import Dataset, IterableDataset, load_dataset
from torch.utils.data import DataLoader

from modeling_condenser import CondenserDataCollator
from modeling_condenser.pretraining.data import BlockBuilder, build_blocks
from modeling_condenser.pretraining.objectives import draw_spans
from modeling_condenser.pretraining.streams import PLACES, BlockStream, StreamCollator

BATCH = 8  # over all processes and accumulated batches
N_TOKENS = 2048  # the same of a token budget
SPLITS = [(1, 1), (2, 1), (8, 1), (1, 4), (2, 4)]  # processes, accumulated batches


def arguments(**changes: Any) -> Any:
    """What a stream reads of the trainer's arguments."""
    defaults = {"process_index": 0, "tokens_per_batch": None, "torch_compile": False}
    return SimpleNamespace(**defaults | {"dataloader_num_workers": 0, "order_seed": 5} | changes)


@pytest.fixture
def files(tmp_path, texts):
    """Three JSON files of 16, 17 and 18 documents."""
    starts = (0, 16, 33, 51)
    for i, (start, end) in enumerate(pairwise(starts)):
        lines = (json.dumps({"id": n, "text": texts[n]}) for n in range(start, end))
        (tmp_path / f"{i}.jsonl").write_text("\n".join(lines))
    return [str(file) for file in sorted(tmp_path.glob("*.jsonl"))]


@pytest.fixture
def collator(tokenizer):
    return CondenserDataCollator(tokenizer, max_length=32, head_mlm_probability=0.5, packed=True)


@pytest.fixture
def make(tokenizer, files):
    """Makes the stream of a process; of the files by default."""

    def make_stream(
        documents: Any = None, *, split=(1, 1), kind="blocks", by_tokens=False, **changes: Any
    ):
        if documents is None:
            documents = load_dataset("json", data_files=files, streaming=True, split="train")
        n_processes, n_accumulated = split
        make_pair = draw_spans if kind == "spans" else None
        builder = BlockBuilder(tokenizer, max_length=32, kind=kind, make_pair=make_pair)
        n_shares = n_processes * n_accumulated
        size = {"train_batch_size": BATCH // n_shares}
        if by_tokens:
            size = {"tokens_per_batch": N_TOKENS // n_shares}
        shares = {"world_size": n_processes, "gradient_accumulation_steps": n_accumulated}
        options = {"stream_lanes": 8, "stream_buffer": 64, **size, **shares, **changes}
        return BlockStream(documents, builder, arguments(**options))

    return make_stream


def content(examples: Any) -> list[tuple]:
    return [(tuple(example["input_ids"].tolist()), example["mask_key"]) for example in examples]


def steps_of(make: Any, n_steps: int, **options: Any) -> list[list[tuple]]:
    """The examples of each step over all processes."""
    n_processes, n_accumulated = options.get("split", (1, 1))
    steps: list[list[tuple]] = [[] for _ in range(n_steps)]
    for rank in range(n_processes):
        batches = islice(make(process_index=rank, **options), n_steps * n_accumulated)
        for number, batch in enumerate(batches):
            steps[number // n_accumulated] += content(batch)
    return [sorted(step) for step in steps]


@pytest.mark.parametrize("kind", ["blocks", "spans", "tokens"])
def test_the_batches_of_a_step_are_the_same_for_any_number_of_processes(make, kind):
    options: dict[str, Any] = {"by_tokens": True}
    if kind != "tokens":
        options = {"kind": kind}
    expected = steps_of(make, 12, **options)
    if kind != "tokens":
        assert {len(step) for step in expected} == {BATCH if kind == "blocks" else 2 * BATCH}
    for split in SPLITS[1:]:
        assert steps_of(make, 12, split=split, **options) == expected, split
    assert steps_of(make, 12, **{**options, "order_seed": 6}) != expected


def test_the_first_epoch_holds_each_block_of_the_documents_once_in_another_order(
    make, files, caplog
):
    stream = make(stream_lanes=1)
    blocks = build_blocks(load_dataset("json", data_files=files, split="train"), stream.builder)
    expected = [tuple(ids) for ids in blocks["input_ids"]]
    batches = iter(stream)
    read = []
    for _ in range((len(blocks) - 1) // BATCH):
        read += [ids for ids, _ in content(next(batches))]
    assert "again until max_steps" not in caplog.text
    read += [ids for ids, _ in content(next(batches))]
    assert Counter(read[: len(blocks)]) == Counter(expected) and read != expected
    assert caplog.text.count("again until max_steps") == 1


def test_batches_of_a_token_budget_are_nearly_full_and_fit_one_shape(make, collator):
    stream = make(by_tokens=True, tokens_per_batch=1000, torch_compile=True)
    assert stream.n_lanes == 2  # of 8, so that each can be filled well
    shape = stream.shape(collator.masked_shares)
    filled, shapes = [], set()
    for batch in islice(stream, 30):
        filled.append(sum(len(example["input_ids"]) + 2 for example in batch))
        packed = collator(batch, shape)
        shapes.add(tuple((n, getattr(v, "shape", v)) for n, v in sorted(packed.items())))
    assert max(filled) <= 1000 and sum(filled) > 0.95 * 1000 * 30
    [sizes] = shapes
    assert dict(sizes)["input_ids"] == (1, 1024)
    assert make(by_tokens=True).shape(collator.masked_shares) is None
    few = make(by_tokens=True, tokens_per_batch=48, stream_lanes=1)
    assert {len(batch) for batch in islice(few, 30)} <= {1, 2, 3, 4}
    with pytest.raises(
        ValueError, match="1 lanes of a batch has 31 tokens, but a block may have 32"
    ):
        make(by_tokens=True, tokens_per_batch=31, stream_lanes=1)


def test_batches_of_very_short_documents_are_full_unless_they_have_one_shape(tokenizer):
    builder = BlockBuilder(tokenizer, max_length=128)
    rows = IterableDataset.from_generator(lambda: ({"text": "The."} for _ in range(4000)))
    for of_one_shape, n_blocks in ((False, 2048 // 4), (True, 2048 // 16)):
        size = {"tokens_per_batch": 2048, "torch_compile": of_one_shape, "stream_lanes": 1}
        shares = {"world_size": 1, "gradient_accumulation_steps": 1, "stream_buffer": 8192}
        stream = BlockStream(rows, builder, arguments(**size, **shares))
        assert len(next(iter(stream))) == n_blocks


def test_a_stream_that_the_tokenizer_does_not_know_is_named(make, texts, caplog):
    for foreign, n_warnings in (("", 0), (" 한국어" * 40, 1)):
        rows = [{"text": text + foreign} for text in texts]
        documents = IterableDataset.from_generator(lambda rows=rows: iter(rows))
        list(islice(make(documents, stream_lanes=1)._open(0), 40))
        assert caplog.text.count("of the tokens (texts: ") == n_warnings


@pytest.mark.parametrize("n_lanes", [4, 8])  # of 16 files, which are else dealt to the lanes
def test_documents_that_a_stream_skips_or_does_not_take_are_not_trained(
    make, tmp_path, n_lanes, caplog
):
    rows = [{"text": f"river {i} museum {n}"} for i in range(16) for n in range(10)]
    for i in range(16):
        Dataset.from_list(rows[10 * i :][:10]).to_json(tmp_path / f"{i:02}.part")
    files = [str(file) for file in sorted(tmp_path.glob("*.part"))]
    whole = load_dataset("json", data_files=files, streaming=True, split="train")
    for documents, kept in ((whole.skip(25), rows[25:]), (whole.take(120), rows[:120])):
        stream = make(documents.map(dict), stream_lanes=n_lanes)
        batches = islice(stream, 2 * len(kept) // BATCH)
        expected = build_blocks(Dataset.from_list(kept), stream.builder)["input_ids"]
        read = {ids for batch in batches for ids, _ in content(batch)}
        assert read == {tuple(ids) for ids in expected}
        assert f"Each of {n_lanes} lanes reads the whole stream" in caplog.text
        caplog.clear()


def loaded(stream: BlockStream, n_batches: int) -> list[list[tuple]]:
    """The batches that a data loader with the stream's workers gives."""
    loader = DataLoader(
        stream,
        batch_size=None,
        num_workers=stream.n_workers,
        collate_fn=StreamCollator(lambda examples: {"examples": content(examples)}),
    )
    return [batch["examples"] for batch in islice(loader, n_batches)]


def test_workers_of_several_processes_give_the_batches_of_one_process_with_as_many(make):
    one = loaded(make(dataloader_num_workers=2), 6)
    two = [
        loaded(make(dataloader_num_workers=2, split=(2, 1), process_index=rank), 6)
        for rank in (0, 1)
    ]
    assert [sorted(a + b) for a, b in zip(*two, strict=True)] == [sorted(batch) for batch in one]
    assert len({example for batch in one for example in batch}) == 6 * BATCH


def rows_of(texts: list[str]) -> Iterator[dict[str, str]]:
    for text in texts:
        yield {"text": text}


def resumed(make: Any, documents: Any, folder: Path, n_steps: int, **how: Any) -> Iterator[Any]:
    """The batches after a checkpoint."""
    stream = make(documents(), **how)
    stream.load(folder, n_steps)
    return (batch for batch in stream if batch is not None)


@pytest.mark.parametrize(
    ("source", "splits"),
    [
        ("files by tokens", ((1, 1), (1, 1))),
        ("files by tokens", ((2, 1), (1, 4))),
        ("files", ((1, 1), (1, 1))),
        ("files", ((1, 1), (4, 1))),
        ("generator", ((2, 1), (1, 2))),
        ("shuffled", ((1, 1), (1, 1))),
        ("skipped", ((2, 1), (1, 1))),
    ],
)
def test_a_stream_is_continued_exactly_also_by_another_number_of_processes(
    make, source, splits, texts, tmp_path
):
    def documents() -> IterableDataset | None:
        if source == "generator":
            return IterableDataset.from_generator(rows_of, gen_kwargs={"texts": texts[:50]})
        if source == "skipped":
            return Dataset.from_dict({"text": texts[:58]}).to_iterable_dataset(16).skip(8)
        if source == "shuffled":
            rows = Dataset.from_dict({"text": texts[:50]}).to_iterable_dataset(num_shards=4)
            return rows.shuffle(seed=3, buffer_size=10)
        return None

    before, after = splits
    make = partial(make, by_tokens="tokens" in source)
    expected = steps_of(lambda **how: make(documents(), **how), 60)
    for n_steps in (7, 50):
        folder = tmp_path / str(n_steps)
        folder.mkdir()
        for rank in range(before[0]):
            stream = make(documents(), split=before, process_index=rank)
            for batch in islice(stream, n_steps * before[1]):
                stream.places |= dict(e[PLACES] for e in batch if PLACES in e)
            stream.save(folder)

        resume = partial(resumed, make, documents, folder, n_steps)
        assert steps_of(resume, 10, split=after) == expected[n_steps : n_steps + 10]
    places = json.loads((folder / "stream-0.json").read_text())["places"].values()
    assert any(epoch > 0 for epoch, *_ in places)


def test_a_stream_that_is_resumed_twice_continues_at_the_second_place_and_reads_little(
    make, texts, tmp_path
):
    """Each process also knows the first places of the other's lanes."""
    reads = []

    def documents(shards: list[int]) -> Iterator[dict[str, str]]:
        for shard in shards:
            for text in texts[:8]:
                reads.append(shard)
                yield {"text": text}

    def train(rank: int, folder: Path | None, first: int, last: int, saved: Path) -> None:
        rows = IterableDataset.from_generator(documents, gen_kwargs={"shards": [*range(64)]})
        stream = make(rows, split=(2, 1), process_index=rank, stream_buffer=8)
        stream.load(folder, first)
        for batch in islice(stream, last):
            stream.places |= dict(e[PLACES] for e in batch or () if PLACES in e)
        saved.mkdir(exist_ok=True)
        stream.save(saved)

    for rank in (1, 0):
        train(rank, None, 0, 20, tmp_path / "1")
    for rank in (1, 0):
        reads.clear()
        train(rank, tmp_path / "1", 20, 150, tmp_path / "2")
    n_before, n_read = len(reads), []
    for rank in (0, 1):
        reads.clear()
        train(rank, tmp_path / "2", 150, 151, tmp_path / "3")
        n_read.append(len(reads))
    assert max(n_read) < min(1.5 * min(n_read), 0.7 * n_before)


def test_other_lanes_and_processes_that_do_not_divide_them_are_refused(make, tmp_path):
    with pytest.raises(ValueError, match="set stream_lanes to a multiple of 8"):
        make(split=(8, 1), stream_lanes=4)
    stream = make()
    next(iter(stream))
    stream.save(tmp_path)
    for changes, message in (
        ({"dataloader_num_workers": 2}, "stream with 8 lanes, .*now it has 16 lanes"),
        (
            {"stream_buffer": 128},
            "8 blocks that are shuffled together, .* 16 blocks that are shuffled",
        ),
        (
            {"split": (1, 2), "train_batch_size": BATCH},
            "1 blocks of a lane in a step, .* 2 blocks of",
        ),
        ({"order_seed": 6}, "5 as the seed, .* 6 as the seed"),
    ):
        with pytest.raises(ValueError, match=message):
            make(**changes).load(tmp_path, 1)


@pytest.mark.parametrize("n_files", [8, 11])
def test_documents_of_many_files_are_read_equally_often(make, tmp_path, n_files, caplog):
    (tmp_path / "n").mkdir()
    for i in range(n_files):
        lines = [json.dumps({"text": f"river {i} museum {n}"}) for n in range(20)]
        (tmp_path / f"n/{i}.jsonl").write_text("\n".join(lines))
    files = str(tmp_path / "n/*.jsonl")
    stream = make(load_dataset("json", data_files=files, streaming=True, split="train"))
    batches = islice(stream, 2 * 20 * n_files // BATCH)
    n_read = Counter(ids for batch in batches for ids, _ in content(batch))
    assert set(n_read.values()) <= {1, 2, 3} and len(n_read) == 20 * n_files
    is_split = "and keeps its share" not in caplog.text
    assert is_split == (n_files == 8)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "The river left."}], "Lane 2 of 8 has read 0 documents, and none has text"),
        ([{"text": " "}] * 50, "Lane 1 of 8 has read 7 documents, and none has text"),
        ([{"text": ["a", "b"]}] * 50, "expected one string a row"),
    ],
)
def test_documents_without_text_are_refused_at_the_first_step(make, rows, message):
    stream = make(IterableDataset.from_generator(lambda: iter(rows)))
    with pytest.raises(ValueError, match=message):
        next(iter(stream))


def test_a_stream_that_ends_and_cannot_be_read_again_is_refused(make, texts):
    once = iter([{"text": text} for text in texts[:20]])
    stream = make(IterableDataset.from_generator(lambda: once), stream_lanes=1)
    with pytest.raises(ValueError, match="0 documents, .* a function that can be called again"):
        list(islice(stream, 100))


def test_a_worker_that_dies_ends_the_training_with_an_error(make):
    def rows() -> Iterator[dict[str, str]]:
        yield from ({"text": "The river left."} for _ in range(200))
        os._exit(1)

    with pytest.raises(RuntimeError, match="DataLoader worker .* exited unexpectedly"):
        loaded(
            make(IterableDataset.from_generator(rows), dataloader_num_workers=1, stream_buffer=8),
            100,
        )
