"""Pairs of texts: how documents are cut, and that draws depend on seed, epoch and document only."""

import logging
from functools import partial
from itertools import chain, pairwise

import numpy as np
import pytest
from datasets import Dataset

from modeling_condenser import CondenserDataCollator
from modeling_condenser.pretraining.counter_random import random_keys, uniforms
from modeling_condenser.pretraining.data import BlockBuilder, sentence_starts
from modeling_condenser.pretraining.pairs import (
    TextCutter,
    TextPairs,
    cut_documents,
    draw_query,
    draw_spans,
)

MAX_LENGTH = 24
DOCUMENT = "The river left. Why? Dr. Ng repairs an engine. It paints the museum near Oslo."


def cut(tokenizer, texts, kind, *, max_length=MAX_LENGTH):
    blocks = BlockBuilder(tokenizer, max_length=max_length, short_block_probability=0.0)
    return cut_documents(Dataset.from_dict({"text": list(texts)}), TextCutter(blocks, kind))


def parts_of(row) -> list[list[int]]:
    bounds = [*row["starts"], len(row["input_ids"])]
    return [row["input_ids"][a:b] for a, b in pairwise(bounds)]


def sentences_of(tokenizer, text: str) -> list[list[int]]:
    bounds = [*sentence_starts(text), len(text)]
    return [
        tokenizer(text[a:b], add_special_tokens=False)["input_ids"] for a, b in pairwise(bounds)
    ]


def test_spans_of_sentences_are_runs_of_whole_sentences_that_fit(tokenizer, texts):
    rows, _ = cut(tokenizer, texts[:150], "sentences")
    assert len(rows) > 100
    for row in rows:
        sentences = sentences_of(tokenizer, texts[row["document"]])
        assert row["input_ids"] == [*chain(*sentences)]
        for span in parts_of(row):  # a prefix of the sentences that are left
            taken = [sentences.pop(0)]
            while sum(map(len, taken)) < len(span):
                taken.append(sentences.pop(0))
            assert span == [*chain(*taken)]
            assert len(span) <= MAX_LENGTH - 2 or len(taken) == 1


def test_windows_are_equal_and_as_few_as_fit(tokenizer, texts):
    for row in cut(tokenizer, texts[:100], "windows")[0]:
        lengths = [len(span) for span in parts_of(row)]
        assert sum(lengths) == len(row["input_ids"])
        assert len(lengths) == -(-sum(lengths) // (MAX_LENGTH - 2))
        assert max(lengths) - min(lengths) <= 1


def test_passages_are_the_blocks_of_two_sentences_or_more_cut_at_their_sentences(tokenizer, texts):
    blocks = BlockBuilder(tokenizer, max_length=32, short_block_probability=0.0)
    expected = [b.tolist() for b in blocks.rows(texts[:150], range(150))["input_ids"]]
    rows, facts = cut(tokenizer, texts[:150], "passages", max_length=32)
    passages = rows["input_ids"][:]
    assert all(passage in expected for passage in passages)
    assert 100 < len(passages) == facts["n_passages"] < len(expected)
    rows, facts = cut(tokenizer, [DOCUMENT, "One sentence only."], "passages", max_length=64)
    assert parts_of(rows[0]) == sentences_of(tokenizer, DOCUMENT)
    assert (facts["n_documents"], facts["n_documents_left_out"]) == (2, 1)


def test_documents_of_fewer_than_two_spans_are_counted_and_left_out(tokenizer, caplog):
    sentence = "The old river near the harbour outlives the parliament and the museum."
    texts = ["Why?", "", f"{sentence} {sentence}", "One.", None]
    with caplog.at_level(logging.WARNING):
        rows, facts = cut(tokenizer, texts, "sentences")
    assert rows["document"][:] == [2]
    assert facts == {"n_documents": 5, "n_documents_left_out": 4, "n_spans": 2}
    assert "4 of 5 documents cannot be cut in two and are left out" in caplog.text
    with pytest.raises(ValueError, match="None of the 2 documents can be cut in two.*span_length"):
        cut(tokenizer, ["Why?", "It left."], "sentences")


def test_a_pair_depends_on_seed_epoch_and_document_only(tokenizer, texts):
    rows, _ = cut(tokenizer, texts[:100], "sentences", max_length=12)

    def pairs_of(indices, *, seed=0, epoch=0):
        pairs = TextPairs(rows, seed=seed, draw=draw_spans)
        pairs.set_epoch(epoch)
        examples = [(e["input_ids"].tolist(), e["mask_key"]) for e in pairs.__getitems__(indices)]
        assert len({key for _, key in examples}) == 2 * len(indices)
        return [*zip(examples[::2], examples[1::2], strict=True)]

    drawn = pairs_of([*range(50)])
    assert pairs_of([7, 3]) == [drawn[7], drawn[3]]
    for index, ((first, _), (second, _)) in enumerate(drawn):
        assert {tuple(first), tuple(second)} <= set(map(tuple, parts_of(rows[index])))
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
        drawn = draw_query(parts, draws, query_room=2, removal_probability=0.9)
        query, context = (ids.tolist() for ids in drawn)
        [number] = [i for i, ids in enumerate(sentences) if ids[:2] == query]
        chosen[number] += 1
        if context != [*chain(*sentences)]:
            assert context == [*chain(*sentences[:number], *sentences[number + 1 :])]
            n_removed += 1
    # Binomial: standard deviations of 13 and 19.
    assert n_removed == pytest.approx(1800, abs=60)
    assert abs(chosen - 500).max() < 90


def test_a_batch_of_queries_and_contexts_masks_nothing_and_cuts_queries(tokenizer, texts):
    rows, _ = cut(tokenizer, texts[:20], "passages", max_length=64)
    collator = CondenserDataCollator(tokenizer, max_length=64, mlm_probability=None)
    draw = partial(draw_query, query_room=6, removal_probability=0.0)
    batch = collator(TextPairs(rows, seed=0, draw=draw).__getitems__([5, 6, 7]))
    assert batch["labels"].unique().tolist() == [-100]
    lengths = batch["attention_mask"].sum(1)
    assert lengths[1::2].tolist() == [len(rows[i]["input_ids"]) + 2 for i in (5, 6, 7)]
    assert lengths[::2].max() <= 8
    expected = [tokenizer.cls_token_id, *rows[5]["input_ids"], tokenizer.sep_token_id]
    assert batch["input_ids"][1, : lengths[1]].tolist() == expected
