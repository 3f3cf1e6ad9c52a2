"""Spans: how documents are cut, what is drawn from them, and that nothing else has a part in it."""

import logging
from itertools import chain, pairwise

import numpy as np
import pytest
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import AutoTokenizer

from modeling_condenser import CondenserDataCollator
from modeling_condenser.pretraining.blocks import BlockBuilder
from modeling_condenser.pretraining.sentences import sentence_starts
from modeling_condenser.pretraining.spans import (
    SpanBuilder,
    SpanPairCollator,
    SpanPairs,
    build_cut_texts,
    count_parts,
)

MAX_LENGTH = 24


@pytest.fixture
def tokenizer(bert_folder):
    return AutoTokenizer.from_pretrained(bert_folder)


def builder(tokenizer, *, kind="sentences", short=0.0, max_length=MAX_LENGTH) -> SpanBuilder:
    blocks = BlockBuilder(tokenizer, max_length=max_length, short_block_probability=short)
    return SpanBuilder(blocks, kind=kind)


def spans_of(text) -> list[list[int]]:
    return [text.part(i).tolist() for i in range(len(text.starts))]


def test_spans_of_sentences_are_runs_of_whole_sentences_that_fit(tokenizer, texts):
    cut = builder(tokenizer).build(texts, range(len(texts)))
    assert len(cut) > 100
    for text in cut:
        document = texts[text.document]
        bounds = [*sentence_starts(document), len(document)]
        sentences = [
            tokenizer(document[a:b], add_special_tokens=False)["input_ids"]
            for a, b in pairwise(bounds)
        ]
        spans = spans_of(text)
        assert [*chain(*spans)] == [*chain(*sentences)]
        for span in spans:  # a prefix of the sentences that are left
            taken = [sentences.pop(0)]
            while sum(map(len, taken)) < len(span):
                taken.append(sentences.pop(0))
            assert span == [*chain(*taken)]
            assert len(span) <= MAX_LENGTH - 2 or len(taken) == 1


def test_windows_are_equal_and_as_few_as_do(tokenizer, texts):
    room = MAX_LENGTH - 2
    cut = builder(tokenizer, kind="windows").build(texts, range(len(texts)))
    for text in cut:
        lengths = [len(span) for span in spans_of(text)]
        assert sum(lengths) == len(text.input_ids)
        assert len(lengths) == -(-sum(lengths) // room)
        assert max(lengths) <= room
        assert max(lengths) - min(lengths) <= 1


def test_documents_of_fewer_than_two_spans_are_counted_and_left_out(tokenizer, caplog):
    sentence = "The old river near the harbour outlives the parliament and the museum."
    documents = Dataset.from_dict({"text": ["Why?", "", f"{sentence} {sentence}", "One.", None]})
    with caplog.at_level(logging.WARNING):
        rows, facts = build_cut_texts(documents, builder(tokenizer))
    assert rows["document"][:] == [2]
    assert count_parts(rows) == 2
    assert (facts["n_documents"], facts["n_documents_left_out"]) == (5, 4)
    assert "4 of 5 documents cannot be cut in two and are left out" in caplog.text


def test_a_corpus_of_one_span_documents_is_refused(tokenizer):
    documents = Dataset.from_dict({"text": ["Why?", "It left."]})
    with pytest.raises(ValueError, match="None of the 2 documents can be cut in two.*span_length"):
        build_cut_texts(documents, builder(tokenizer))


def test_what_a_corpus_is_cut_into_does_not_depend_on_the_processes(tokenizer, texts):
    documents = Dataset.from_dict({"text": list(texts)})
    one, facts = build_cut_texts(documents, builder(tokenizer, short=0.3))
    documents = Dataset.from_dict({"text": [*texts[:-1], texts[-1] + " "]})  # not the cached one
    two, other = build_cut_texts(documents, builder(tokenizer, short=0.3), num_proc=2)
    assert one["input_ids"][:] == two["input_ids"][:]
    assert one["starts"][:] == two["starts"][:]
    assert facts == other
    _, third = build_cut_texts(documents, builder(tokenizer, kind="windows"))
    assert third["pairs_sha256"] != facts["pairs_sha256"]


@pytest.fixture
def rows(tokenizer, texts):
    documents = Dataset.from_dict({"text": list(texts)})
    return build_cut_texts(documents, builder(tokenizer, max_length=12))[0]


def draw(rows, indices, *, seed=0, epoch=0):
    pairs = SpanPairs(rows, seed=seed)
    pairs.set_epoch(epoch)
    return [
        ([text.tolist() for text in example["texts"]], example["mask_keys"])
        for example in pairs.__getitems__(indices)
    ]


def test_a_draw_depends_on_seed_epoch_and_document_alone(rows):
    everything = draw(rows, list(range(len(rows))))
    assert draw(rows, [7, 3]) == [everything[7], everything[3]]
    again = draw(rows, list(range(len(rows))))
    assert again == everything
    for changed in (draw(rows, list(range(len(rows))), epoch=1), draw(rows, [*range(50)], seed=1)):
        same = sum(a[0] == b[0] for a, b in zip(everything, changed, strict=False))
        assert same < len(changed) / 2
        assert all(a[1] != b[1] for a, b in zip(everything, changed, strict=False))


def test_siblings_are_different_spans_of_one_document_and_all_pairs_are_as_likely(rows):
    counts = [len(starts) for starts in rows["starts"]]
    index = counts.index(4)
    row = rows[index]
    bounds = [*row["starts"], len(row["input_ids"])]
    spans = [row["input_ids"][a:b] for a, b in pairwise(bounds)]
    seen = np.zeros((4, 4))
    for epoch in range(1200):
        ((first, second), _) = draw(rows, [index], epoch=epoch)[0]
        seen[spans.index(first), spans.index(second)] += 1
    assert np.trace(seen) == 0
    others = seen[~np.eye(4, dtype=bool)]
    # 12 ordered pairs, 100 draws each; 40 is more than four standard deviations.
    assert abs(others - 100).max() < 40


def test_a_batch_holds_siblings_side_by_side_masked_as_blocks(rows, tokenizer):
    collator = CondenserDataCollator(tokenizer, max_length=32)
    examples = SpanPairs(rows, seed=0).__getitems__([4, 9, 2])
    batch = SpanPairCollator(collator)(examples)
    assert batch["input_ids"].shape[0] == 6
    original = batch["input_ids"].where(batch["labels"] == -100, batch["labels"])
    for i, example in enumerate(examples):
        for j, span in enumerate(example["texts"]):
            expected = [tokenizer.cls_token_id, *span, tokenizer.sep_token_id]
            row = original[2 * i + j]
            assert row[: len(expected)].tolist() == expected
            alone = collator([{"input_ids": span, "mask_key": example["mask_keys"][j]}])
            assert alone["input_ids"][0, : len(expected)].tolist() == (
                batch["input_ids"][2 * i + j, : len(expected)].tolist()
            )
    keys = [key for example in examples for key in example["mask_keys"]]
    assert len(set(keys)) == 6


def test_batches_do_not_depend_on_the_workers(rows, tokenizer):
    collator = SpanPairCollator(CondenserDataCollator(tokenizer, max_length=32))
    pairs = SpanPairs(rows, seed=3)
    alone = list(DataLoader(pairs, batch_size=16, collate_fn=collator))
    shared = list(DataLoader(pairs, batch_size=16, collate_fn=collator, num_workers=2))
    for a, b in zip(alone, shared, strict=True):
        assert all(a[name].equal(b[name]) for name in a)
