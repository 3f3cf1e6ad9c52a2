"""Blocks against the reference's way of building them, sentence by sentence, written naively."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from datasets import Dataset, load_from_disk

from modeling_condenser.pretraining.counter_random import random_keys, uniforms
from modeling_condenser.pretraining.data import (
    BlockBuilder,
    StreamedBlocks,
    build_blocks,
    fingerprint_blocks,
    sentence_starts,
)

KINDS = ["wordpiece_tokenizer", "byte_level_tokenizer", "sentencepiece_tokenizer"]
ROOM = 30  # tokens of text in a block


@pytest.fixture(params=KINDS)
def tokenizer(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def builder(wordpiece_tokenizer):
    return BlockBuilder(wordpiece_tokenizer, max_length=ROOM + 2, seed=3)


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
        (" \n ", []),
    ],
)
def test_a_text_is_cut_at_its_sentences(text, expected):
    assert sentences_of(text) == expected


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_blocks_are_those_of_the_reference(share, wordpiece_tokenizer, texts):
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
    alone = builder.build(texts[-1:], numbers[-1:])
    assert as_lists(alone) == expected[-len(alone) :]
    assert {block.dtype for block in blocks} == {np.dtype(np.int32)}
    assert len(expected) > 2 * len(texts)


def test_the_blocks_of_a_document_are_its_tokens_cut_between_sentences(tokenizer, texts):
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


def test_blank_and_missing_documents_give_no_blocks_and_keep_their_number(builder, texts):
    with_blanks = builder.build(["", texts[0], None, " \n", texts[1]], [0, 5, 2, 3, 9])
    assert as_lists(with_blanks) == as_lists(builder.build(texts[:2], [5, 9]))


def test_blocks_on_disk_do_not_depend_on_processes_and_are_built_once(
    builder, texts, tmp_path, monkeypatch
):
    saved = []
    for folder in (tmp_path / "one", tmp_path / "two"):  # the library keeps its cache beside them
        Dataset.from_dict({"text": texts}).save_to_disk(folder)
        saved.append(load_from_disk(folder))
    documents = saved[0]
    one, two = build_blocks(documents, builder), build_blocks(saved[1], builder, num_proc=2)
    assert one.column_names == two.column_names == ["input_ids"]
    expected = as_lists(builder.build(texts, range(len(texts))))
    assert one["input_ids"][:] == two["input_ids"][:] == expected
    assert fingerprint_blocks(one) == fingerprint_blocks(two)
    assert fingerprint_blocks(one.select(range(9))) != fingerprint_blocks(one)
    other = BlockBuilder(builder.tokenizer, max_length=ROOM + 2, seed=4)
    assert build_blocks(documents, other)["input_ids"][:] != expected

    monkeypatch.setattr(BlockBuilder, "build", None)  # would fail if it were called
    again = BlockBuilder(builder.tokenizer, max_length=ROOM + 2, seed=3)
    assert build_blocks(documents, again)["input_ids"][:] == expected


def test_a_corpus_without_text_and_a_length_without_room_are_refused(builder):
    blank = Dataset.from_dict({"text": ["", "  ", "\n"]})
    with pytest.raises(ValueError, match="None of the 3 documents has any text"):
        build_blocks(blank, builder)
    with pytest.raises(ValueError, match="max_length is 2, which leaves no room"):
        BlockBuilder(builder.tokenizer, max_length=2)


def stream(builder: BlockBuilder, texts: list[str], *, epoch: int = 0, **options: Any) -> list:
    documents = Dataset.from_dict({"text": texts}).to_iterable_dataset()
    blocks = StreamedBlocks(documents, builder, **{"seed": 5, "buffer_size": 100, **options})
    blocks.set_epoch(epoch)
    return [(b["input_ids"].tolist(), b["mask_key"]) for b in blocks]


def test_a_stream_gives_all_blocks_once_in_an_order_of_seed_and_epoch(builder, texts):
    expected = as_lists(builder.build(texts, range(len(texts))))
    order = stream(builder, texts)
    assert stream(builder, texts) == stream(builder, texts, num_proc=2) == order
    place_of = {int(random_keys(5, 0, i)[0]): i for i in range(len(expected))}
    places = [place_of[key] for _, key in order]
    assert sorted(places) == list(range(len(expected)))
    assert [ids for ids, _ in order] == [expected[place] for place in places]
    # To give its n-th block, a stream may have read 100 more.
    assert all(place < n + 100 for n, place in enumerate(places, start=1))
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
