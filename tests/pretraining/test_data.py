"""Blocks as the reference builds them, and pairs."""

from dataclasses import replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
from datasets import Dataset

from modeling_condenser.collection.sentences import sentence_starts
from modeling_condenser.pretraining import data
from modeling_condenser.pretraining.counter_random import random_keys, uniforms
from modeling_condenser.pretraining.data import (
    BlockBuilder,
    KeyedBlocks,
    build_blocks,
)
from modeling_condenser.pretraining.objectives import draw_query, draw_spans

ROOM = 60  # tokens of text in a block


@pytest.fixture
def builder(wordpiece_tokenizer):
    return BlockBuilder(wordpiece_tokenizer, max_length=ROOM + 2, seed=11)


def sentences_of(text: str) -> list[str]:
    starts = sentence_starts(text)
    return [text[a:b] for a, b in pairwise([*starts, len(text)])]


@pytest.fixture
def short(builder, texts):
    """Texts whose sentences all fit a block."""
    tokenize = builder.tokenizer
    return [
        text
        for text in texts[::3]
        if max(map(len, tokenize(sentences_of(text), add_special_tokens=False)["input_ids"]))
        <= ROOM
    ]


def build_naively(
    tokenizer: Any, text: str, number: int, share: float, n_least: int = 1
) -> list[list[list[int]]]:
    """The reference's loop: blocks as lists of sentences.

    Two draws for each block: whether it is short, and its length. A block has `n_least` sentences
    or more: the last one takes a sentence of the block before it, or is added to that block.
    """
    sentences = tokenizer(sentences_of(text), add_special_tokens=False)["input_ids"]
    draw = iter(uniforms(random_keys(11, number), 2 * len(sentences) + 2)[0].tolist())

    def next_length() -> int:
        is_short, length = next(draw) < share, next(draw)
        return 1 + int(length * ROOM) if is_short else ROOM

    blocks: list[list[list[int]]] = []
    block: list[list[int]] = []
    target = next_length()
    for sentence in sentences:
        if sum(map(len, block)) + len(sentence) > target and len(block) >= n_least:
            blocks.append(block)
            block = []
            target = next_length()
        block = [*block, sentence]
    if blocks and len(block) < n_least:
        taken = 1 if len(blocks[-1]) > n_least else len(blocks[-1])
        block = [*blocks[-1][-taken:], *block]
        blocks[-1] = blocks[-1][:-taken]
    return [block for block in [*blocks, block] if block]


def build(builder: BlockBuilder, texts: list[Any], numbers: Any) -> list[list[int]]:
    return [block.tolist() for block in builder.cut({"text": texts}, numbers)["input_ids"]]


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_blocks_are_those_of_the_reference(share, builder, short):
    texts, numbers = short, range(0, 7 * len(short), 7)
    builder = replace(builder, short_block_probability=share)
    expected = [
        [*chain(*block)]
        for text, number in zip(texts, numbers, strict=True)
        for block in build_naively(builder.tokenizer, text, number, share)
    ]
    assert build(builder, texts, numbers) == expected
    assert len(expected) > 2 * len(texts)
    # The place of a document in the corpus decides, not its neighbours or blank documents.
    alone = build(builder, ["", texts[-1], None, " \n"], [0, numbers[-1], 1, 2])
    assert alone == expected[-len(alone) :]


def parts_of(texts: Dataset) -> list[list[list[int]]]:
    return [
        [row["input_ids"][a:b] for a, b in pairwise([*row["part_starts"], len(row["input_ids"])])]
        for row in texts
    ]


def test_parts_are_the_blocks_of_a_document_or_the_sentences_of_a_block(builder, short):
    texts = [*short, "Why?"]
    documents = Dataset.from_dict({"text": [*texts, None]})
    naive = [build_naively(builder.tokenizer, text, i, 0.1) for i, text in enumerate(texts)]
    numbers = [i for i, blocks in enumerate(naive) if len(blocks) > 1]
    spans = build_blocks(documents, replace(builder, kind="spans"))
    assert parts_of(spans) == [[[*chain(*block)] for block in naive[i]] for i in numbers]
    assert spans["document"][:] == numbers and len(numbers) < len(texts)


def test_passages_have_two_sentences_or_more_of_all_documents_that_have_them(builder, short):
    naive = [build_naively(builder.tokenizer, text, i, 0.1, 2) for i, text in enumerate(short)]
    expected = [block for blocks in naive for block in blocks if len(block) > 1]
    passages = build_blocks(Dataset.from_dict({"text": short}), replace(builder, kind="passages"))
    assert parts_of(passages) == expected
    alone = [block for blocks in naive for block in blocks if len(block) == 1]
    assert alone == [blocks[0] for blocks in naive if len(blocks) == len(blocks[0]) == 1]
    # Of the reference's blocks, many have one sentence.
    reference = [build_naively(builder.tokenizer, text, i, 0.1) for i, text in enumerate(short)]
    assert 5 * len(alone) < sum(len(block) == 1 for blocks in reference for block in blocks)
    documents = Dataset.from_dict({"text": ["of rivers and museums " * 100]})
    for block in parts_of(build_blocks(documents, replace(builder, kind="passages"))):
        assert len(block) >= 2 and sum(map(len, block)) <= ROOM


@pytest.mark.parametrize("text", ["of rivers and museums " * 60, "นกเพนกวินกินปลา" * 60])
def test_a_long_sentence_is_cut_into_blocks_of_all_of_it_between_words(text, any_tokenizer):
    builder = BlockBuilder(any_tokenizer, max_length=ROOM + 2, short_block_probability=0.0)
    encoded = any_tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    blocks = build(builder, [text], [0])
    assert [*chain(*blocks)] == encoded["input_ids"]
    assert max(map(len, blocks)) <= ROOM
    assert len(blocks) <= 1 + 1.2 * len(encoded["input_ids"]) / ROOM
    for place in np.cumsum([len(block) for block in blocks])[:-1] if " " in text else []:
        start = encoded["offset_mapping"][place][0]
        assert " " in text[start - 1 : start + 1]


def test_documents_of_any_length_are_tokenized_a_million_characters_at_a_time(
    builder, texts, monkeypatch
):
    expected = build(builder, texts[:40], range(40))
    sizes, tokenizer = [], builder.tokenizer

    def tokenize(parts: list[str], **options: Any) -> Any:
        sizes.append(sum(map(len, parts)))
        return tokenizer(parts, **options)

    builder.tokenizer = tokenize
    monkeypatch.setattr(data, "_CHUNK_CHARACTERS", 1000)
    assert build(builder, texts[:40], range(40)) == expected
    long = " ".join(texts)
    blocks = build(builder, [long], [0])
    assert [*chain(*blocks)] == tokenizer(long, add_special_tokens=False)["input_ids"]
    assert len(sizes) > 40 and max(sizes) < 2000


def test_the_blocks_of_a_document_are_its_tokens_cut_between_sentences(any_tokenizer, texts):
    builder = BlockBuilder(any_tokenizer, max_length=2 * ROOM)
    n_blocks = 0
    for number, text in enumerate(texts[:270:3]):
        encoded = any_tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        blocks = build(builder, [text], [number])
        assert [*chain(*blocks)] == encoded["input_ids"]
        starts = set(sentence_starts(text))
        for end in np.cumsum([len(block) for block in blocks])[:-1]:
            # The token behind a cut is a sentence's first, or the blank before it.
            first = encoded["offset_mapping"][end][0]
            assert first in starts or (text[first] == " " and first + 1 in starts)
        n_blocks += len(blocks)
    assert n_blocks > len(texts[:270:3])


def test_a_corpus_without_text_and_a_length_without_room_are_refused(builder):
    blank = Dataset.from_dict({"text": ["", "  ", "\n"]})
    with pytest.raises(ValueError, match="None of the 3 documents has any text"):
        build_blocks(blank, builder)
    single = Dataset.from_dict({"text": ["Why?", ""]})
    with pytest.raises(ValueError, match="None of the 2 documents can be cut in two"):
        build_blocks(single, replace(builder, kind="passages"))
    with pytest.raises(ValueError, match="max_length is 2, which leaves no room"):
        replace(builder, max_length=2)


def test_a_pair_depends_on_seed_epoch_and_document_only(builder, texts):
    documents = Dataset.from_dict({"text": texts[:100]})
    rows = build_blocks(documents, replace(builder, kind="spans", max_length=12))
    spans = [set(map(tuple, parts)) for parts in parts_of(rows)]

    def pairs_of(indices, *, seed=0, epoch=0):
        pairs = KeyedBlocks(rows, seed=seed, make_pair=draw_spans)
        pairs.set_epoch(epoch)
        examples = [(e["input_ids"].tolist(), e["mask_key"]) for e in pairs.__getitems__(indices)]
        assert len({key for _, key in examples}) == 2 * len(indices)
        return [*zip(examples[::2], examples[1::2], strict=True)]

    drawn = pairs_of([*range(50)])
    assert pairs_of([7, 3]) == [drawn[7], drawn[3]]
    of_last = KeyedBlocks(rows, seed=0, make_pair=draw_spans)[-1]
    assert [e["mask_key"] for e in of_last] == [key for _, key in pairs_of([len(rows) - 1])[0]]
    assert KeyedBlocks(rows, seed=0)[3]["input_ids"].tolist() == rows[3]["input_ids"]
    for index, ((first, _), (second, _)) in enumerate(drawn):
        assert {tuple(first), tuple(second)} <= spans[index]
    for others in (pairs_of([*range(50)], epoch=1), pairs_of([*range(50)], seed=1)):
        n_same = 0
        for (a, b), (c, d) in zip(drawn, others, strict=True):
            n_same += (a[0], b[0]) == (c[0], d[0])
            assert not {a[1], b[1]} & {c[1], d[1]}
        assert n_same < 25


def test_siblings_are_different_spans_and_all_pairs_are_as_likely():
    seen = np.zeros((4, 4))
    for draws in uniforms(random_keys(0, np.arange(1200)), 2):
        first, second = draw_spans([np.array([i]) for i in range(4)], draws)
        seen[first[0], second[0]] += 1
    assert np.trace(seen) == 0
    # 12 ordered pairs, 100 draws each; 40 is more than four standard deviations.
    assert abs(seen[~np.eye(4, dtype=bool)] - 100).max() < 40


def test_nine_queries_of_ten_are_removed_from_their_context():
    sentences = [[1, 2], [3], [4, 5, 6], [7]]
    chosen, n_removed = np.zeros(4), 0
    for draws in uniforms(random_keys(0, np.arange(2000)), 2):
        parts = [np.array(ids) for ids in sentences]
        drawn = draw_query(parts, draws, query_length=2, removal_probability=0.9)
        query, context = (ids.tolist() for ids in drawn)
        [number] = [i for i, ids in enumerate(sentences) if ids[:2] == query]
        chosen[number] += 1
        if context != [*chain(*sentences)]:
            assert context == [*chain(*sentences[:number], *sentences[number + 1 :])]
            n_removed += 1
    # Binomial: standard deviations of 13 and 19.
    assert n_removed == pytest.approx(1800, abs=60)
    assert abs(chosen - 500).max() < 90
