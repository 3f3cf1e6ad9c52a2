"""Blocks against the reference's way of building them, sentence by sentence, written naively."""

import copy
import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from datasets import Dataset, load_from_disk
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase

from modeling_condenser.pretraining.blocks import (
    BlockBuilder,
    StreamedBlocks,
    build_blocks,
    stream_blocks,
)
from modeling_condenser.pretraining.counter_random import random_keys, uniforms
from modeling_condenser.pretraining.sentences import sentence_starts

KINDS = ["wordpiece_tokenizer", "byte_level_tokenizer", "sentencepiece_tokenizer"]
ROOM = 30  # tokens of text in a block


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerBase:
    return request.getfixturevalue(request.param)


@pytest.fixture
def builder(wordpiece_tokenizer: PreTrainedTokenizerBase) -> BlockBuilder:
    return BlockBuilder(wordpiece_tokenizer, max_length=ROOM + 2, seed=3)


@pytest.fixture
def documents(texts: list[str], tmp_path: Path) -> Dataset:
    return documents_on_disk(texts, tmp_path / "documents")


def documents_on_disk(texts: list[str], folder: Path) -> Dataset:
    """Documents with files, beside which the library keeps its cache."""
    Dataset.from_dict({"text": texts}).save_to_disk(folder)
    return load_from_disk(folder)


def sentences_of(text: str) -> list[str]:
    starts = sentence_starts(text)
    return [text[a:b] for a, b in itertools.pairwise([*starts, len(text)])]


def build_naively(
    sentences: list[list[int]], *, room: int, draws: list[float], share: float = 0.1
) -> list[list[int]]:
    """The reference's loop: two draws for each block, whether it is short, and its length."""
    draw = iter(draws)

    def next_length() -> int:
        is_short, length = next(draw) < share, next(draw)
        return 1 + int(length * room) if is_short else room

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


def as_lists(blocks: Any) -> list[list[int]]:
    return [np.asarray(block).tolist() for block in blocks]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Dr. Smith left. It rained.", ["Dr. Smith left. ", "It rained."]),
        ("Why? No! It is 4.50 today.", ["Why? ", "No! ", "It is 4.50 today."]),
        ("See e.g. Fig. 2 of it. Then go.", ["See e.g. Fig. 2 of it. ", "Then go."]),
        ("no end and no capital", ["no end and no capital"]),
        ("  Blanks first. Then text.", ["  Blanks first. ", "Then text."]),
        ("", []),
        (" \n ", []),
    ],
)
def test_a_text_is_cut_at_its_sentences(text: str, expected: list[str]) -> None:
    assert sentences_of(text) == expected


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_blocks_are_those_of_the_reference(
    share: float, wordpiece_tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> None:
    builder = BlockBuilder(
        wordpiece_tokenizer, max_length=ROOM + 2, short_block_probability=share, seed=11
    )
    numbers = [7 * i for i in range(len(texts))]
    expected = []
    for text, number in zip(texts, numbers, strict=True):
        sentences = [
            wordpiece_tokenizer(sentence, add_special_tokens=False)["input_ids"]
            for sentence in sentences_of(text)
        ]
        draws = uniforms(random_keys(11, number), 2 * len(sentences) + 2)[0].tolist()
        expected += build_naively(sentences, room=ROOM, draws=draws, share=share)
    blocks = builder.build(texts, numbers)
    assert as_lists(blocks) == expected
    assert {block.dtype for block in blocks} == {np.dtype(np.int32)}
    assert len(expected) > 2 * len(texts)


def test_the_blocks_of_a_document_are_its_tokens_cut_between_sentences(
    tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> None:
    builder = BlockBuilder(tokenizer, max_length=ROOM + 2)
    n_blocks = 0
    for number, text in enumerate(texts):
        encoded = tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        blocks = builder.build([text], [number])
        assert list(itertools.chain(*as_lists(blocks))) == encoded["input_ids"]
        ends = np.cumsum([len(block) for block in blocks])[:-1]
        starts = set(sentence_starts(text))
        for end in ends:
            # The token behind a cut is a sentence's first, or the blank before it.
            first = encoded["offset_mapping"][end][0]
            assert first in starts or (text[first] == " " and first + 1 in starts)
        n_blocks += len(blocks)
    assert n_blocks > 2 * len(texts)


def test_documents_are_built_alike_alone_and_together(
    builder: BlockBuilder, texts: list[str]
) -> None:
    numbers = list(range(len(texts)))
    apart = [builder.build([text], [number]) for text, number in zip(texts, numbers, strict=True)]
    together = as_lists(builder.build(texts, numbers))
    # Had a block crossed documents, those built together would be others.
    assert together == [block for blocks in apart for block in as_lists(blocks)]


def test_no_block_exceeds_the_room_but_single_long_sentences(
    tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> None:
    builder = BlockBuilder(tokenizer, max_length=ROOM + 2)
    n_long = 0
    for number, text in enumerate(texts):
        lengths = {
            len(tokenizer(sentence.strip(), add_special_tokens=False)["input_ids"])
            for sentence in sentences_of(text)
        }
        for block in builder.build([text], [number]):
            if len(block) > ROOM:
                n_long += 1
                # A byte-level sentence has one token more or less without its blank.
                assert lengths & {len(block) - 1, len(block), len(block) + 1}
    assert n_long > 0


def test_one_block_in_ten_is_short(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    builder = BlockBuilder(wordpiece_tokenizer, max_length=22)  # room for 10 of "Why?"
    blocks = []
    for number in range(5):
        blocks += builder.build(["Why? " * 6000], [number])[:-1]
    lengths = np.array([len(block) for block in blocks])
    assert set(lengths) <= set(range(2, 21, 2))
    n = len(lengths)
    assert n > 3000
    # Lengths 1 to 19 of 20 make a block shorter; a drawn 20 does not show.
    expected = 0.1 * 19 / 20
    assert abs((lengths < 20).mean() - expected) < 4 * (expected / n) ** 0.5
    # Those drawn from 2 to 19 give 2 to 18 tokens twice each, and 1 gives 2 once more.
    counts = np.bincount(lengths[lengths < 20], minlength=20)[2::2]
    shares = np.array([3, 2, 2, 2, 2, 2, 2, 2, 2]) / 19
    assert (abs(counts / counts.sum() - shares) < 4.5 * (shares / counts.sum()) ** 0.5).all()


def test_blank_and_missing_documents_give_no_blocks_and_keep_their_number(
    builder: BlockBuilder, texts: list[str]
) -> None:
    with_blanks = builder.build(["", texts[0], None, " \n", texts[1]], [0, 5, 2, 3, 9])
    assert as_lists(with_blanks) == as_lists(builder.build(texts[:2], [5, 9]))


def test_another_seed_gives_other_cuts_of_the_same_tokens(
    wordpiece_tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> None:
    numbers = list(range(len(texts)))
    built = [
        as_lists(BlockBuilder(wordpiece_tokenizer, max_length=32, seed=seed).build(texts, numbers))
        for seed in (0, 0, 1)
    ]
    assert built[0] == built[1] and built[0] != built[2]
    assert list(itertools.chain(*built[0])) == list(itertools.chain(*built[2]))


def test_the_number_of_processes_does_not_change_the_blocks(
    builder: BlockBuilder, texts: list[str], tmp_path: Path
) -> None:
    one = build_blocks(documents_on_disk(texts, tmp_path / "one"), builder, num_proc=1)
    two = build_blocks(documents_on_disk(texts, tmp_path / "two"), builder, num_proc=2)
    assert one.column_names == two.column_names == ["input_ids"]
    assert one["input_ids"][:] == two["input_ids"][:]
    assert as_lists(builder.build(texts, list(range(len(texts))))) == one["input_ids"][:]


@pytest.mark.parametrize("num_proc", [None, 2])
def test_blocks_are_built_once(
    num_proc: int | None,
    builder: BlockBuilder,
    documents: Dataset,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = build_blocks(documents, builder, num_proc=num_proc)

    def refuse(*args: object) -> None:
        raise AssertionError("built again")

    monkeypatch.setattr(BlockBuilder, "build", refuse)
    # A setting of the tokenizer without a part in the blocks may change.
    tokenizer = copy.deepcopy(builder.tokenizer)
    tokenizer.model_max_length = 17
    again = BlockBuilder(tokenizer, max_length=ROOM + 2, seed=3)
    for same in (builder, again):
        second = build_blocks(documents, same, num_proc=num_proc)
        assert second._fingerprint == first._fingerprint
        assert second["input_ids"][:] == first["input_ids"][:]


def test_what_changes_the_blocks_changes_their_fingerprint(
    wordpiece_tokenizer: PreTrainedTokenizerBase,
    byte_level_tokenizer: PreTrainedTokenizerBase,
    texts: list[str],
    tmp_path: Path,
) -> None:
    def fingerprint(
        tokenizer: PreTrainedTokenizerBase = wordpiece_tokenizer, n: int = 40, **changes: Any
    ) -> str:
        documents = documents_on_disk(texts[:n], tmp_path / f"{n}")
        return build_blocks(
            documents, BlockBuilder(tokenizer, **{"max_length": 32, **changes})
        )._fingerprint

    first = fingerprint()
    assert fingerprint() != fingerprint(n=39)
    others = [
        fingerprint(byte_level_tokenizer),
        fingerprint(max_length=33),
        fingerprint(seed=1),
        fingerprint(short_block_probability=0.2),
    ]
    assert len({first, *others}) == 5


def test_the_fingerprint_does_not_depend_on_how_the_tokenizer_was_last_called(
    wordpiece_tokenizer: PreTrainedTokenizerBase,
) -> None:
    before = BlockBuilder(wordpiece_tokenizer, max_length=32).fingerprint
    try:
        wordpiece_tokenizer(["a b c", "d"], truncation=True, max_length=3, padding=True)
        assert BlockBuilder(wordpiece_tokenizer, max_length=32).fingerprint == before
    finally:
        wordpiece_tokenizer(["a b c", "d"])


@pytest.mark.parametrize("num_proc", [0, 2])
def test_streamed_blocks_are_those_built_on_disk(
    num_proc: int, builder: BlockBuilder, documents: Dataset
) -> None:
    expected = build_blocks(documents, builder)["input_ids"][:]
    streamed = stream_blocks(documents.to_iterable_dataset(), builder, num_proc=num_proc)
    assert as_lists(streamed) == expected


def test_an_empty_corpus_is_an_error(builder: BlockBuilder, tmp_path: Path) -> None:
    blank = documents_on_disk(["", "  ", "\n"], tmp_path / "blank")
    with pytest.raises(ValueError, match="None of the 3 documents has any text"):
        build_blocks(blank, builder)
    assert list(stream_blocks(iter([{"text": ""}, {"text": None}]), builder)) == []


def stream(builder: BlockBuilder, documents: Any, *, epoch: int = 0, **options: Any) -> list:
    blocks = StreamedBlocks(documents, builder, **{"seed": 5, "buffer_size": 100, **options})
    blocks.set_epoch(epoch)
    return [(tuple(b["input_ids"].tolist()), b["mask_key"]) for b in blocks]


def test_a_stream_gives_all_blocks_once_in_an_order_of_its_epoch_alone(
    builder: BlockBuilder, documents: Dataset
) -> None:
    expected = build_blocks(documents, builder)["input_ids"][:]
    order = stream(builder, documents)
    assert sorted(ids for ids, _ in order) == sorted(map(tuple, expected))
    assert [ids for ids, _ in order] != [tuple(ids) for ids in expected]
    assert stream(builder, documents) == order
    assert stream(builder, documents, num_proc=2) == order
    for other in (stream(builder, documents, epoch=1), stream(builder, documents, seed=6)):
        assert sorted(ids for ids, _ in other) == sorted(map(tuple, expected))
        assert [ids for ids, _ in other] != [ids for ids, _ in order]
        assert not {key for _, key in other} & {key for _, key in order}


def test_a_streamed_block_has_the_key_of_its_place_in_the_corpus(
    builder: BlockBuilder, documents: Dataset
) -> None:
    expected = build_blocks(documents, builder)["input_ids"][:]
    place_of = {int(random_keys(5, 2, i)[0]): i for i in range(len(expected))}
    for ids, key in stream(builder, documents, epoch=2):
        assert list(ids) == expected[place_of[key]]


def test_a_stream_holds_no_more_blocks_than_its_buffer(
    builder: BlockBuilder, documents: Dataset
) -> None:
    n_blocks = len(build_blocks(documents, builder))
    place_of = {int(random_keys(5, 0, i)[0]): i for i in range(n_blocks)}
    places = [place_of[key] for _, key in stream(builder, documents, buffer_size=50)]
    # To give its n-th block, a stream may have read 50 more.
    assert all(place < n + 50 for n, place in enumerate(places, start=1))
    assert max(n - place for n, place in enumerate(places)) > 50
    in_order = stream(builder, documents, buffer_size=1)
    assert [place_of[key] for _, key in in_order] == list(range(n_blocks))


@pytest.mark.parametrize(("num_proc", "n_read"), [(0, 512), (2, 6 * 256)])
def test_a_stream_reads_documents_as_it_needs_them(
    num_proc: int, n_read: int, builder: BlockBuilder
) -> None:
    read = 0

    def endless() -> Iterator[dict[str, str]]:
        nonlocal read
        for read in itertools.count(1):
            yield {"text": f"The poet has {read} museums. Why?"}

    blocks = StreamedBlocks(endless(), builder, seed=0, num_proc=num_proc, buffer_size=100)
    first = list(itertools.islice(blocks, 200))
    assert len(first) == 200
    assert 300 <= read <= n_read  # a block each, and what is tokenized together or ahead


def test_a_stream_refuses_several_workers_and_serves_one(
    builder: BlockBuilder, documents: Dataset
) -> None:
    blocks = StreamedBlocks(documents.to_iterable_dataset(), builder, seed=5, buffer_size=100)
    with pytest.raises(ValueError, match="2 data-loader workers.*dataloader_num_workers=0"):
        list(DataLoader(blocks, batch_size=None, num_workers=2))
    keys = [b["mask_key"] for b in DataLoader(blocks, batch_size=None, num_workers=1)]
    assert keys == [key for _, key in stream(builder, documents)]


def test_a_slow_tokenizer_is_refused() -> None:
    with pytest.raises(ValueError, match="is a slow tokenizer.*use_fast=True"):
        BlockBuilder(SimpleNamespace(is_fast=False), max_length=32)


def test_a_length_without_room_is_refused(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(ValueError, match="max_length is 2, which leaves no room"):
        BlockBuilder(wordpiece_tokenizer, max_length=2)
    tight = BlockBuilder(wordpiece_tokenizer, max_length=3)
    assert as_lists(tight.build(["Why? Why?"], [0])) == as_lists(tight.build(["Why?"], [0])) * 2
