"""DPR's passages and questions, quoted as its CSV writer does, and its answer matching."""

import csv
import random
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import pytest

from modeling_condenser.collection.dpr import AnswerMatcher
from modeling_condenser.collection.load import load_collection, load_passages

from .conftest import write_lines

# The first two lines are those of psgs_w100.tsv; the third has quotes around its title only.
PASSAGES = [
    "id\ttext\ttitle",
    '1\t"Aaron Aaron ( or ; ""Ahärôn"") is a prophet"\tAaron',
    '2\tGod at Sinai granted Aaron the priesthood\t"""Heroes"" (album)"',
]
QUESTIONS = [
    "who got it first\t['Wilhelm Conrad Röntgen']",
    'what is it called\t"[\'the ""Stone""\', ""it\'s""]"',
    'who got it first\t["a list as JSON\'s"]',
]


def write_dpr(folder: Path, *, ending: str = "") -> Path:
    write_lines(folder / f"psgs_w100.tsv{ending}", PASSAGES)
    write_lines(folder / f"nq-test.qa.csv{ending}", QUESTIONS)
    return folder


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_questions_are_judged_by_their_answers(tmp_path: Path, ending: str) -> None:
    collection = load_collection(write_dpr(tmp_path / "dpr", ending=ending), split="nq-test")
    text = "God at Sinai granted Aaron the priesthood"
    assert collection.passages.to_list() == [
        {"_id": "1", "title": "Aaron", "text": 'Aaron Aaron ( or ; "Ahärôn") is a prophet'},
        {"_id": "2", "title": '"Heroes" (album)', "text": text},
    ]
    questions = ["who got it first", "what is it called", "who got it first"]
    assert collection.queries == dict(zip("012", questions, strict=True))
    assert collection.answers == {
        "0": ("Wilhelm Conrad Röntgen",),
        "1": ('the "Stone"', "it's"),
        "2": ("a list as JSON's",),
    }
    assert (collection.qrels, collection.name) == ({}, "dpr")


def test_whatever_the_csv_module_writes_is_read_back(tmp_path: Path) -> None:
    texts = ["plain", '"', '""', '"a" and "b"', 'a "b"', "tab\tin it", "line\nfeed", '"x', 'x"']
    with (tmp_path / "psgs_w100.tsv").open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t")
        writer.writerow(["id", "text", "title"])
        writer.writerows([i, text, text[::-1]] for i, text in enumerate(texts))
    passages = load_passages(tmp_path)
    assert passages["text"][:] == texts
    assert passages["title"][:] == [text[::-1] for text in texts]


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("psgs_w100.tsv", PASSAGES[1:], "psgs_w100.tsv: .* is no passage, expected id, title"),
        ("psgs_w100.tsv", [*PASSAGES, "3\ttext"], "psgs_w100.tsv: .* is no passage"),
        ("nq-test.qa.csv", ["who?\t__import__('os').abort()"], "the answers are .__im"),
        ("nq-test.qa.csv", ["who?"], "the answers are"),
        ("nq-dev.qa.csv", QUESTIONS, "no split 'nq-test'; its splits are nq-dev"),
    ],
)
def test_broken_files_are_refused(
    tmp_path: Path, name: str, lines: Sequence[str], message: str
) -> None:
    folder = write_dpr(tmp_path / "dpr")
    if name == "nq-dev.qa.csv":
        (folder / "nq-test.qa.csv").unlink()
    write_lines(folder / name, lines)
    with pytest.raises(ValueError, match=message):
        load_collection(folder, split="nq-test")


def naive_tokens(text: str) -> list[str]:
    """Runs of L, N and M; other single characters except Z and C; all in lower case."""
    tokens: list[str] = []
    run = ""
    for character in [*unicodedata.normalize("NFD", text), " "]:
        kind = unicodedata.category(character)[0]
        if kind in "LNM":
            run += character
            continue
        tokens += [run] if run else []
        run = ""
        tokens += [character] if kind not in "ZC" else []
    return [token.lower() for token in tokens]


def naive_is_in(answers: Sequence[str], text: str) -> bool:
    words = naive_tokens(text)
    starts = range(len(words) + 1)
    tokens = map(naive_tokens, answers)
    return any(words[i : i + len(answer)] == answer for answer in tokens for i in starts)


@pytest.mark.parametrize(
    ("answer", "text", "found"),
    [
        ("art", "A party of artists", False),
        ("U.S.", "made in the u . s . today", True),
        ("U.S.", "made in the US today", False),
        ("café", "the cafe\u0301 was shut", True),
        ("café", "the cafe was shut", False),
        ("ΟΔΟΣ", "η οδος", True),
        ("东京", "在东京", False),
        ("\u200e", "any text", True),  # without a token it is found everywhere, as in DPR
    ],
)
def test_an_answer_is_found_as_a_sequence_of_tokens(answer: str, text: str, found: bool) -> None:
    assert AnswerMatcher([answer]).is_in(text) is found
    assert naive_is_in([answer], text) is found


def test_matching_agrees_with_the_naive_version_on_random_texts() -> None:
    rng = random.Random(0)
    alphabet = "aAbBéÉe\u0301 .,-'\"ΣσςΑIİı1²५東\u00a0\u200b\u2028\nK\U0001f600ﬁ½"
    found = 0
    for _ in range(4000):
        text = "".join(rng.choices(alphabet, k=rng.randint(0, 40)))
        answers = ["".join(rng.choices(alphabet, k=rng.randint(1, 3))) for _ in range(3)]
        if text and rng.random() < 0.5:
            start = rng.randrange(len(text))
            answers.append(text[start : start + rng.randint(1, 6)].swapcase())
        expected = naive_is_in(answers, text)
        assert AnswerMatcher(answers).is_in(text) is expected, (answers, text)
        found += expected
    assert 500 < found < 3500


@pytest.mark.parametrize(
    ("answer", "text", "found"),
    [
        (r"19\d\d", "in 1984", True),
        (r"19\d\d", "in 2084", False),
        (r"^the end\.?$", "first\nThe End.\nlast", True),
        ("café", "cafe\u0301", True),
        ("(open", "(open", False),  # no regular expression
    ],
)
def test_a_regular_expression_is_found_in_any_case(answer: str, text: str, found: bool) -> None:
    assert AnswerMatcher([answer], match="regex").is_in(text) is found
