"""The fixed sample: of texts, of pairs, of a small collection."""

import pytest
from datasets import Dataset, IterableDataset

from modeling_condenser.analysis.sample import HALVES, JUDGED, halve, make_sample
from modeling_condenser.analysis.settings import Measuring, read_wanted
from modeling_condenser.analysis.small_retrieval import make_small
from modeling_condenser.collection.load import load_collection


@pytest.fixture(scope="module")
def documents(texts):
    return Dataset.from_dict({"text": texts})


def test_a_text_is_halved_at_the_sentence_nearest_to_its_middle():
    assert halve("It rained. Nobody knew why, did she? So it goes on and on.")[:2] == (
        "It rained. Nobody knew why, did she?",
        "So it goes on and on.",
    )
    assert halve("one sentence of six words")[:2] == ("one sentence", "of six words")


def test_a_sample_follows_from_texts_and_seed_alone(documents):
    first, again = (make_sample(documents, 10, seed=4) for _ in range(2))
    assert first == again and first.fingerprint == again.fingerprint
    assert len(set(first.texts)) == 10 == len(first.pairs) and first.kind == HALVES
    for text, pair in zip(first.texts, first.pairs, strict=True):
        assert f"{pair.first} {pair.second}" == text
    other = make_sample(documents, 10, seed=5)
    assert other.texts != first.texts and other.fingerprint != first.fingerprint


def test_texts_are_different_from_each_other_and_have_two_words():
    rows = Dataset.from_dict({"text": ["a b", "a b", "single", "", "c d", " a  b "]})
    assert sorted(make_sample(rows, 6, seed=0).texts) == ["a b", "c d"]
    with pytest.raises(ValueError, match="at least 2 different texts .* but 1 came"):
        make_sample(rows.select([0, 1, 2]), 6, seed=0)


def test_of_a_stream_the_first_texts_are_taken(texts):
    stream = IterableDataset.from_generator(lambda: ({"text": text} for text in texts))
    found = make_sample(stream, 5, seed=0)
    assert found.texts == tuple(" ".join(text.split()) for text in texts if " " in text)[:5]


def test_a_collections_pairs_are_its_queries_with_their_best_judged_passage(
    documents, collection, texts
):
    loaded = load_collection(collection)
    sample = make_sample(documents, 4, seed=0, collection=loaded, n_pairs=7)
    assert sample.kind == JUDGED and len(sample.pairs) == 7
    for pair in sample.pairs:
        number = texts.index(pair.second)
        assert pair.first == " ".join(pair.second.split()[:8])
        assert pair.title == (f"Title {number}" if number % 3 == 0 else "")


def test_a_small_collection_has_what_is_judged_for_its_queries_and_some_others(collection):
    loaded = load_collection(collection)
    small = make_small(loaded, n_queries=5, n_passages=20, seed=1)
    assert len(small.queries) == len(small.qrels) == 5 and len(small.passages) == 20
    assert set(small.queries) <= set(loaded.queries)
    ids = set(small.passages["_id"])
    assert {p for grades in small.qrels.values() for p in grades} <= ids
    assert make_small(loaded, n_queries=5, n_passages=20, seed=1).queries == small.queries
    assert make_small(loaded, n_queries=5, n_passages=20, seed=2).queries != small.queries
    whole = make_small(loaded, n_queries=500, n_passages=500, seed=1)
    assert len(whole.queries) == 20 and len(whole.passages) == 60
    # Judged passages are never left out.
    assert len(make_small(loaded, n_queries=5, n_passages=2, seed=1).passages) == 10


def test_a_collection_that_judges_nothing_is_refused(documents, collection):
    loaded = load_collection(collection)
    unjudged = type(loaded)(loaded.passages, loaded.queries, {q: {} for q in loaded.queries})
    with pytest.raises(ValueError, match="judges no passage as relevant"):
        make_small(unjudged, n_queries=5, n_passages=5, seed=0)
    with pytest.raises(ValueError, match="judges no passage as relevant"):
        make_sample(documents, 4, seed=0, collection=unjudged)


@pytest.mark.parametrize(
    ("readiness", "message"),
    [
        ({"every": 0}, "every is 0, expected at least 1 step"),
        ({"texts": 1}, "texts is 1, expected at least 2"),
        ({"labels": 5}, "labels is 5, but there is no collection"),
        ({"finetuning": {"seed": 1}}, "finetuning is set, but labels is 0"),
        ({"evry": 5}, "no field 'evry'. Did you mean 'every'"),
        ({"texts": "many"}, "texts is 'many', of type str"),
        (500, "readiness is 500, expected a mapping"),
    ],
)
def test_wrong_settings_are_refused(readiness, message):
    with pytest.raises(ValueError, match=message):
        read_wanted(readiness)


def test_settings_are_read_from_a_mapping():
    measuring, rhythm = read_wanted({"every": 7, "texts": 9})
    assert (rhythm.every, measuring) == (7, Measuring(texts=9))
