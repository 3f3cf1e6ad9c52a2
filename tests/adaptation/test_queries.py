"""Queries that are made from passages, or read from a file."""

import json
from random import Random

import pytest

from modeling_condenser.adaptation.queries import PassageParts, Query, make_queries, read_queries

TITLES = ["Penguins", "", "Volcanoes"]
TEXTS = [
    "# What penguins eat\nPenguins eat krill and small fish. They hunt in groups at sea.",
    "Bread rises because yeast makes gas. The gas stretches the dough slowly. "
    "<h2>Flour <b>types</b></h2> Strong flour holds more gas.",
    "Magma rises.",
]


def test_queries_are_parts_of_their_passages():
    parts, random = PassageParts(TITLES, TEXTS), Random(0)
    assert [parts.title(row, random) for row in range(3)] == ["Penguins", None, "Volcanoes"]
    assert parts.heading(0, random) == "What penguins eat"
    assert parts.heading(1, random) == "Flour types"
    assert parts.heading(2, random) is None
    assert parts.sentence(1, random) in TEXTS[1]
    assert parts.sentence(2, random) is None  # a single sentence, of two words
    words = parts.span(1, random).split()
    assert 4 <= len(words) <= 10
    assert " ".join(words) in " ".join(TEXTS[1].split())


def test_text_without_blanks_has_sentences_and_spans_too():
    text = (
        "企鹅生活在南极。它们吃磷虾和小鱼，在海里成群捕猎！为什么企鹅不怕冷？因为它们有厚厚的脂肪。"
    )
    parts, random = PassageParts([""], [text]), Random(0)
    sentences = [
        "它们吃磷虾和小鱼，在海里成群捕猎！",
        "为什么企鹅不怕冷？",
        "因为它们有厚厚的脂肪。",
    ]
    assert {parts.sentence(0, random) for _ in range(50)} == {"企鹅生活在南极。", *sentences}
    spans = {parts.span(0, random) for _ in range(50)}
    assert all(span in text and 4 <= len(span) <= 20 for span in spans) and len(spans) > 20


def test_keywords_are_the_words_that_tell_a_passage_from_others():
    texts = [f"the common word: red{i} green{i} blue{i} gold{i} pink{i % 2}" for i in range(20)]
    texts += [text.replace("common", "usual") for text in texts]  # each rare word in two passages
    drawn = PassageParts([""] * 40, texts).keywords(3, Random(0)).split()
    assert 3 <= len(drawn) <= 6
    # Other words are in more than a tenth of the passages.
    assert set(drawn) <= {"red3", "green3", "blue3", "gold3"}
    assert drawn == [word for word in texts[3].replace(":", "").split() if word in drawn]


def test_queries_of_one_seed_are_the_same_and_of_different_passages():
    settings = {"kinds": ("title", "sentence"), "n": 2, "seed": 1}
    made = make_queries(TITLES, TEXTS, **settings)
    assert made == make_queries(TITLES, TEXTS, **settings)
    assert sorted((q.kind, q.passage) for q in made) == [
        *(("sentence", 0), ("sentence", 1)),
        *(("title", 0), ("title", 2)),
    ]


def write(file, *lines):
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    file.write_text(text, encoding="utf-8")
    return file


def test_a_file_names_passages_by_their_ids(tmp_path):
    file = write(
        tmp_path / "q.jsonl",
        {"query": "what do penguins eat", "passage_id": "p0"},
        {"query": "why\u2028now", "passage_id": 7},  # a line separator, which JSON allows
    )
    assert read_queries(file, ["p0", "p1", "7"]) == [
        Query("what do penguins eat", 0, "file"),
        Query("why\u2028now", 2, "file"),
    ]


@pytest.mark.parametrize("line", [{"query": "a", "passage_id": "p9"}, {"query": " "}])
def test_a_wrong_line_of_a_file_is_named(tmp_path, line):
    file = write(tmp_path / "q.jsonl", {"query": "fine", "passage_id": "p1"}, line)
    with pytest.raises(ValueError, match="line 2: query is "):
        read_queries(file, ["p0", "p1", "p2"])
