"""Pairs of texts: how documents are cut, and that draws depend on seed, epoch and document only."""

import logging
from itertools import chain, pairwise

import numpy as np
import pytest
from datasets import Dataset

from modeling_condenser import CondenserDataCollator
from modeling_condenser.pretraining.data import BlockBuilder, sentence_starts
from modeling_condenser.pretraining.pairs import ClozePairs, SpanPairs, TextCutter, cut_documents

MAX_LENGTH = 24
DOCUMENT = "The river left. Why? Dr. Ng repairs an engine. It paints the museum near Oslo."


def cutter(tokenizer, kind, *, short=0.0, max_length=MAX_LENGTH) -> TextCutter:
    blocks = BlockBuilder(tokenizer, max_length=max_length, short_block_probability=short)
    return TextCutter(blocks, kind)


def cut(tokenizer, texts, kind, **options):
    documents = Dataset.from_dict({"text": list(texts)})
    return cut_documents(documents, cutter(tokenizer, kind, **options))


def parts_of(text) -> list[list[int]]:
    return [text.part(i).tolist() for i in range(len(text.starts))]


def sentences_of(tokenizer, text: str) -> list[list[int]]:
    bounds = [*sentence_starts(text), len(text)]
    return [
        tokenizer(text[a:b], add_special_tokens=False)["input_ids"] for a, b in pairwise(bounds)
    ]


def test_spans_of_sentences_are_runs_of_whole_sentences_that_fit(tokenizer, texts):
    cut = cutter(tokenizer, "sentences").build(texts, range(len(texts)))
    assert len(cut) > 100
    for text in cut:
        sentences = sentences_of(tokenizer, texts[text.document])
        spans = parts_of(text)
        assert [*chain(*spans)] == [*chain(*sentences)]
        for span in spans:  # a prefix of the sentences that are left
            taken = [sentences.pop(0)]
            while sum(map(len, taken)) < len(span):
                taken.append(sentences.pop(0))
            assert span == [*chain(*taken)]
            assert len(span) <= MAX_LENGTH - 2 or len(taken) == 1


def test_windows_are_equal_and_as_few_as_fit(tokenizer, texts):
    for text in cutter(tokenizer, "windows").build(texts, range(len(texts))):
        lengths = [len(span) for span in parts_of(text)]
        assert sum(lengths) == len(text.input_ids)
        assert len(lengths) == -(-sum(lengths) // (MAX_LENGTH - 2))
        assert max(lengths) - min(lengths) <= 1


def test_passages_are_the_blocks_of_two_sentences_or_more_cut_at_their_sentences(tokenizer, texts):
    blocks = BlockBuilder(tokenizer, max_length=32, short_block_probability=0.0)
    expected = [b.tolist() for b in blocks.build(texts, range(len(texts)))]
    rows, facts = cut(tokenizer, texts, "passages", max_length=32)
    passages = rows["input_ids"][:]
    assert all(passage in expected for passage in passages)
    assert 100 < len(passages) == facts["n_passages"] < len(expected)
    rows, facts = cut(tokenizer, [DOCUMENT, "One sentence only."], "passages", max_length=64)
    parts = np.split(np.array(rows[0]["input_ids"]), rows[0]["starts"][1:])
    assert [part.tolist() for part in parts] == sentences_of(tokenizer, DOCUMENT)
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


@pytest.fixture
def rows(tokenizer, texts):
    return cut(tokenizer, texts, "sentences", max_length=12)[0]


def draw(rows, indices, *, seed=0, epoch=0):
    """The texts and the mask keys of pairs."""
    pairs = SpanPairs(rows, seed=seed)
    pairs.set_epoch(epoch)
    examples = pairs.__getitems__(indices)
    texts = [example["input_ids"].tolist() for example in examples]
    keys = [example["mask_key"] for example in examples]
    assert len(set(keys)) == len(keys) == 2 * len(indices)
    return [*zip(texts[::2], texts[1::2], strict=True)], [*zip(keys[::2], keys[1::2], strict=True)]


def test_a_draw_depends_on_seed_epoch_and_document_only(rows):
    texts, keys = draw(rows, [*range(50)])
    assert draw(rows, [7, 3]) == ([texts[7], texts[3]], [keys[7], keys[3]])
    for others, other_keys in (draw(rows, [*range(50)], epoch=1), draw(rows, [*range(50)], seed=1)):
        assert sum(a == b for a, b in zip(texts, others, strict=True)) < 25
        assert not set(chain(*keys)) & set(chain(*other_keys))


def test_siblings_are_different_spans_of_one_document_and_all_pairs_are_as_likely(rows):
    index = [len(starts) for starts in rows["starts"]].index(4)
    bounds = [*rows[index]["starts"], len(rows[index]["input_ids"])]
    spans = [rows[index]["input_ids"][a:b] for a, b in pairwise(bounds)]
    seen = np.zeros((4, 4))
    for epoch in range(1200):
        [(first, second)], _ = draw(rows, [index], epoch=epoch)
        seen[spans.index(first), spans.index(second)] += 1
    assert np.trace(seen) == 0
    others = seen[~np.eye(4, dtype=bool)]
    # 12 ordered pairs, 100 draws each; 40 is more than four standard deviations.
    assert abs(others - 100).max() < 40


def test_nine_queries_of_ten_are_removed_from_their_context(tokenizer):
    rows, _ = cut(tokenizer, [DOCUMENT], "passages", max_length=64)
    sentences = sentences_of(tokenizer, DOCUMENT)
    pairs = ClozePairs(rows, seed=0, query_room=62)
    chosen, removed = np.zeros(4), 0
    for epoch in range(2000):
        pairs.set_epoch(epoch)
        query, context = (example["input_ids"].tolist() for example in pairs.__getitems__([0]))
        number = sentences.index(query)
        chosen[number] += 1
        if context != [*chain(*sentences)]:
            assert context == [*chain(*sentences[:number], *sentences[number + 1 :])]
            removed += 1
    # Binomial: standard deviations of 13 and 19.
    assert removed == pytest.approx(1800, abs=60)
    assert abs(chosen - 500).max() < 90


def test_a_batch_of_queries_and_contexts_masks_nothing_and_cuts_queries(tokenizer, texts):
    rows, _ = cut(tokenizer, texts, "passages", max_length=64)
    collator = CondenserDataCollator(tokenizer, max_length=64, mlm_probability=None)
    pairs = ClozePairs(rows, seed=0, query_room=6, removal_probability=0.0)
    batch = collator(pairs.__getitems__([5, 6, 7]))
    assert batch["labels"].unique().tolist() == [-100]
    lengths = batch["attention_mask"].sum(1)
    assert lengths[1::2].tolist() == [len(rows[i]["input_ids"]) + 2 for i in (5, 6, 7)]
    assert lengths[::2].max() <= 8
    assert batch["input_ids"][1, : lengths[1]].tolist() == [
        tokenizer.cls_token_id, *rows[5]["input_ids"], tokenizer.sep_token_id
    ]  # fmt: skip
