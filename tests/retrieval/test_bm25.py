"""BM25 against the formula, written out."""

import math
import random
import subprocess
import sys
from collections import Counter

import pytest
from datasets import Dataset

from modeling_condenser.retrieval.bm25 import Bm25
from modeling_condenser.retrieval.runs import rank_passages

Passages = dict[str, tuple[str, str]]


def make_passages(passages: Passages) -> Dataset:
    rows = [{"_id": i, "title": title, "text": text} for i, (title, text) in passages.items()]
    return Dataset.from_list(rows)


PASSAGES = make_passages(
    {
        "p1": ("cats", "grey cats chase grey mice"),
        "p2": ("", "dogs chase cats"),
        "p3": ("Ärger", "naïve 東京 cats"),
    }
)


def lucene_bm25(passages: Passages, query: str, *, k1: float, b: float) -> dict[str, float]:
    """Score passages by Lucene's BM25 (Kamphuis et al. 2020, "Lucene (accurate)")."""
    words = {i: f"{title} {text}".split() for i, (title, text) in passages.items()}
    mean_length = sum(map(len, words.values())) / len(words)
    scores = dict.fromkeys(words, 0.0)
    for term in query.split():
        frequency = sum(term in document for document in words.values())
        idf = math.log(1 + (len(words) - frequency + 0.5) / (frequency + 0.5))
        for i, document in words.items():
            count = Counter(document)[term]
            if count:
                norm = k1 * (1 - b + b * len(document) / mean_length)
                scores[i] += idf * count / (count + norm)
    return {i: score for i, score in scores.items() if score > 0}


@pytest.mark.parametrize(("preset", "k1", "b"), [("default", 1.2, 0.75), ("dpr", 0.9, 0.4)])
def test_scores_are_those_of_the_formula(preset, k1, b):
    rng = random.Random(preset)
    vocabulary = [f"word{a}{b}" for a in "abcde" for b in "fghijklm"]

    def draw(longest: int) -> str:
        return " ".join(rng.choices(vocabulary, k=rng.randint(0, longest)))

    passages = {f"p{i:03d}": (draw(3), draw(60)) for i in range(120)} | {"empty": ("", "")}
    queries = {f"q{i}": " ".join(rng.choices(vocabulary, k=4)) for i in range(20)}
    run = Bm25(make_passages(passages), preset=preset).search(queries, depth=1000)
    for query_id, query in queries.items():
        expected = lucene_bm25(passages, query, k1=k1, b=b)
        assert run[query_id] == pytest.approx(expected, rel=1e-5) != {}
        assert list(run[query_id].items()) == rank_passages(run[query_id])


def test_a_stored_index_is_opened_and_built_again_if_anything_differs(tmp_path, monkeypatch):
    queries = {"q1": "grey cats", "q2": "東京", "q3": "unknown"}
    folder = tmp_path / "indexes" / "bm25"
    expected = Bm25(PASSAGES, preset="thesis").search(queries)
    assert Bm25(PASSAGES, preset="thesis", folder=folder).search(queries) == expected
    assert [file.name for file in folder.parent.glob("[!.]*")] == ["bm25"]
    monkeypatch.setattr(Bm25, "_make_index", None)  # from here on none is made
    assert Bm25(PASSAGES, preset="thesis", folder=folder).search(queries) == expected
    monkeypatch.undo()
    for passages, settings in (
        (PASSAGES, {}),
        (PASSAGES, {"language": "german"}),
        (PASSAGES.select(range(2)), {"language": "german"}),
    ):
        stored = Bm25(passages, folder=folder, **settings)
        assert stored.search(queries) == Bm25(passages, **settings).search(queries)


def test_only_what_is_stemmed_is_said_to_be(caplog):
    caplog.set_level("INFO")
    english = make_passages({"a": ("", "the cats of the sea and the dogs that are in it")})
    for preset, said in (("default", True), ("dpr", False)):
        Bm25(english, preset=preset)
        assert ("stemmed" in caplog.text) == said
        caplog.clear()


# Passages a and b begin alike, and the last words of the query are in b only.
LANGUAGES = {
    "chinese": ("企鹅吃磷虾。", "企鹅吃鱼。", "蜜蜂采蜜。", "企鹅吃鱼吗？"),
    "japanese": (
        "ペンギンはオキアミを食べる。",
        "ペンギンは魚を食べる。",
        "ミツバチは蜜を集める。",
        "ペンギンは魚を食べますか",
    ),
    "thai": ("นกเพนกวินกินเคย", "นกเพนกวินกินปลา", "ผึ้งเก็บน้ำหวาน", "เพนกวินกินปลาไหม"),
    "german": (
        "Die Pinguine fressen Krill.",
        "Die Pinguine fressen große Fische.",
        "Bienen sammeln Nektar.",
        "fressen PINGUINE GROßE Fische?",
    ),
    # दिन and दान differ in a vowel sign; ड\u093c and \u095c are the same letter.
    "hindi": ("यह दिन बड\u093cा है।", "यह दान बड\u093cा है।", "मधुमक्खी रस लेती", "ब\u095cा दान"),
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_question_finds_its_passage_in_any_script(language):
    *texts, query = LANGUAGES[language]
    bm25 = Bm25(make_passages({i: ("", text) for i, text in zip("abc", texts, strict=True)}))
    assert list(bm25.search({"q": query})["q"]) == ["b", "a"]


def test_stopwords_and_case_do_not_count():
    english = {"a": ("", "the dogs and the cats of a"), "b": ("", "such is the life of birds")}
    bm25 = Bm25(make_passages(english))
    run = bm25.search({"plain": "dogs cats", "dressed": "The DOGS and the Cats", "only": "the and"})
    assert bm25.words.language == "english" and run["dressed"] == run["plain"]
    assert run["only"] == {} == bm25.search({"q": "quantum zebra"})["q"]
    kept = Bm25(make_passages(english), language="none").search({"q": "the and"}, depth=5)
    assert list(kept["q"]) == ["a", "b"]


def test_what_single_characters_tell_apart_is_found():
    texts = ["Windows 7 guide", "Windows 8 guide", "Learn R fast", "Learn C++ fast", "Learn C fast"]
    bm25 = Bm25(make_passages({str(i): ("", text) for i, text in enumerate(texts)}))
    queries = {"1": "windows 8", "2": "R", "3": "c++", "0": "Windows 7"}
    run = bm25.search(queries, depth=1)
    assert {query: next(iter(found)) for query, found in run.items()} == {q: q for q in queries}


def test_passages_without_a_word_are_refused():
    stopwords = make_passages({"a": ("", "To be or not to be."), "b": ("", "is it that of the")})
    with pytest.raises(ValueError, match="BM25 finds no word in the passages.*language=english"):
        Bm25(stopwords)
    assert list(Bm25(stopwords, language="none").search({"q": "not"})["q"]) == ["a"]


def test_ties_at_the_cut_off_go_to_the_lower_id():
    passages = dict.fromkeys("dbac", ("", "same words here")) | {"e": ("", "other")}
    run = Bm25(make_passages(passages)).search({"q": "words"}, depth=2)
    assert list(run["q"]) == ["a", "b"]


def test_wrong_parameters_are_refused():
    with pytest.raises(ValueError, match="k1 is -1.0 and b is 0.75: expected k1 from 0, and b"):
        Bm25(PASSAGES, k1=-1.0)


def test_jax_is_neither_imported_nor_hidden(tmp_path):
    package = tmp_path / "jax"
    package.mkdir()
    (package / "__init__.py").write_text("print('imported')\n")
    (package / "lax.py").write_text("def top_k(values, k):\n    print('called')\n")
    code = "import modeling_condenser.retrieval.bm25; print('then'); import jax.lax"
    path = f"import sys; sys.path.insert(0, {str(tmp_path)!r})"
    run = subprocess.run(
        [sys.executable, "-c", f"{path}; {code}"], capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["then", "imported"]
