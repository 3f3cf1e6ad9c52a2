"""DPR's answer matching, against a naive version written from its description."""

import random
import unicodedata
from collections.abc import Sequence

import pytest

from modeling_condenser.collection.answers import AnswerMatcher, has_answer


def naive_tokens(text: str) -> list[str]:
    """Runs of L, N and M; single other characters but for Z and C; each in lower case."""
    tokens: list[str] = []
    run = ""
    for character in unicodedata.normalize("NFD", text):
        kind = unicodedata.category(character)[0]
        if kind in "LNM":
            run += character
            continue
        tokens += [run] if run else []
        run = ""
        tokens += [character] if kind not in "ZC" else []
    return [token.lower() for token in [*tokens, *([run] if run else [])]]


def naive_has_answer(answers: Sequence[str], text: str) -> bool:
    words = naive_tokens(text)
    for answer in map(naive_tokens, answers):
        n = len(answer)
        if any(words[i : i + n] == answer for i in range(len(words) - n + 1)):
            return True
    return False


@pytest.mark.parametrize(
    ("answer", "text", "found"),
    [
        ("Oslo", "He lived in OSLO.", True),
        ("art", "A party of artists", False),
        ("U.S.", "made in the u . s . today", True),
        ("U.S.", "made in the US today", False),
        ("14 December 1972", "on 14  December\n1972, they", True),
        ("14 December 1972", "on 14 December, 1972", False),
        ("café", "the cafe\u0301 was shut", True),
        ("café", "the cafe was shut", False),
        ("cafe", "the café was shut", False),
        ("ΟΔΟΣ", "η οδος", True),
        ("Straße", "in der STRASSE", False),
        ("it's", "but it ' s so", True),
        ("rock n roll", "rock 'n' roll", False),
        ("东京", "在东京", False),
        ("", "", True),
        ("\u200e", "any text", True),  # without a token it is found everywhere, as in DPR
    ],
)
def test_an_answer_is_found_as_a_sequence_of_tokens(answer: str, text: str, found: bool) -> None:
    assert has_answer([answer], text) is found
    assert naive_has_answer([answer], text) is found


def test_it_agrees_with_the_naive_version_on_random_texts() -> None:
    rng = random.Random(0)
    alphabet = "aAbBéÉe\u0301 .,-'\"ΣσςΑIİı1²५東\u00a0\u200b\u2028\nK\U0001f600ﬁ½"
    found = 0
    for _ in range(4000):
        text = "".join(rng.choices(alphabet, k=rng.randint(0, 40)))
        answers = ["".join(rng.choices(alphabet, k=rng.randint(1, 3))) for _ in range(3)]
        if text and rng.random() < 0.5:
            start = rng.randrange(len(text))
            answers.append(text[start : start + rng.randint(1, 6)].swapcase())
        expected = naive_has_answer(answers, text)
        assert has_answer(answers, text) is expected, (answers, text)
        found += expected
    assert 500 < found < 3500


def test_one_of_several_answers_is_enough_and_none_is_not() -> None:
    matcher = AnswerMatcher(["Ann Lee", "Ann"])
    assert [matcher.is_in(text) for text in ("Ann said", "Lee Ann", "Anna Lee")] == [
        True,
        True,
        False,
    ]
    assert not has_answer([], "any text")


def test_regular_expressions_are_searched_for_in_any_case_and_broken_ones_find_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert has_answer([r"19\d\d"], "in 1984", match="regex")
    assert has_answer([r"^the end\.?$"], "first\nThe End.\nlast", match="regex")
    assert has_answer(["café"], "cafe\u0301", match="regex")
    assert not has_answer([r"19\d\d"], "in 2084", match="regex")
    assert not has_answer(["(open"], "(open", match="regex")
    assert "'(open' is no regular expression" in caplog.text
    assert not has_answer([], "any text", match="regex")


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ValueError, match='expected "string" or "regex"'):
        has_answer(["a"], "a", match="exact")  # type: ignore[arg-type]
