"""The fixed sample: texts, matching texts and a small collection."""

import pytest
from datasets import Dataset

from modeling_condenser.analysis.callback import read_readiness
from modeling_condenser.analysis.sample import Measuring, Sample, load_small


def test_a_sample_depends_on_settings_and_texts_only(texts):
    documents = Dataset.from_dict({"text": texts})
    first, again, other = (
        Sample.choose(Measuring(texts=10, sample_seed=seed), documents) for seed in (4, 4, 5)
    )
    assert first.texts == again.texts != other.texts and len(set(first.texts)) == 10
    assert first.matches.to_list() == again.matches.to_list()
    for text, match in zip(first.texts, first.matches, strict=True):
        left, right = match["query"], match["text"]
        assert f"{left} {right}" == text and abs(left.count(" ") - right.count(" ")) <= 1


def test_texts_are_different_and_have_two_words_and_the_first_ones_of_a_stream_are_taken():
    rows = ["a b", "a b", "single", "", "c d", " a  b ", "e f"]
    documents = Dataset.from_dict({"text": rows})
    assert set(Sample.choose(Measuring(texts=6), documents).texts) == {"a b", "c d", "e f"}
    stream = documents.to_iterable_dataset()
    assert Sample.choose(Measuring(texts=2), stream).texts == ["a b", "c d"]
    with pytest.raises(ValueError, match="There are 1 different texts of 2 words"):
        Sample.choose(Measuring(texts=6), documents.select(range(3)))


def test_queries_are_matched_with_their_judged_passage(collection, texts):
    measuring = Measuring(texts=4, queries=7, collection=str(collection))
    matches = Sample.choose(measuring, Dataset.from_dict({"text": texts})).matches
    assert len(matches) == 7
    for match in matches:
        assert match["query"] == " ".join(match["text"].split()[:8])


def test_a_small_collection_has_what_is_judged_for_its_queries_and_some_others(collection):
    def small(queries, passages, seed=1):
        settings = {"queries": queries, "passages": passages, "sample_seed": seed}
        return load_small(Measuring(collection=str(collection), **settings))

    found = small(5, 20)
    assert len(found.queries) == len(found.qrels) == 5 and len(found.passages) == 20
    assert {p for grades in found.qrels.values() for p in grades} <= set(found.passages["_id"])
    assert small(5, 20).queries == found.queries != small(5, 20, seed=2).queries
    everything = small(500, 500)
    assert len(everything.queries) == 20 and len(everything.passages) == 60
    assert len(small(5, 2).passages) == 10  # judged passages are never left out


@pytest.mark.parametrize(
    ("readiness", "message"),
    [
        ({"every": 0}, "every is 0, expected at least 1"),
        ({"labels": 5}, "labels is 5, but there is no collection"),
        (500, "readiness is 500, expected a mapping"),
    ],
)
def test_wrong_settings_are_refused(readiness, message):
    with pytest.raises(ValueError, match=message):
        read_readiness(readiness)
