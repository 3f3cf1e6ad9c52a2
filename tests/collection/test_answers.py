"""DPR's answer matching."""

import random
import unicodedata
from collections.abc import Sequence

import pytest

from modeling_condenser.collection.answers import AnswerMatcher


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
    ("answer", "text", "is_in"),
    [
        ("art", "A party of artists", False),
        ("U.S.", "made in the u . s . today", True),
        ("U.S.", "made in the US today", False),
        ("café", "the cafe\u0301 was shut", True),
        ("\u200e", "any text", True),  # without a token, as in DPR
    ],
)
def test_an_answer_is_found_as_a_sequence_of_tokens(answer, text, is_in):
    assert AnswerMatcher([answer]).is_in(text) is is_in


def test_matching_agrees_with_the_naive_version_on_random_texts():
    rng = random.Random(0)
    alphabet = "aAbBéÉe\u0301 .,-'\"ΣσςΑIİı1²५東\u00a0\u200b\u2028\nK\U0001f600ﬁ½"
    n_found = 0
    for _ in range(4000):
        text = "".join(rng.choices(alphabet, k=rng.randint(0, 40)))
        answers = ["".join(rng.choices(alphabet, k=rng.randint(1, 3))) for _ in range(3)]
        if text and rng.random() < 0.5:
            start = rng.randrange(len(text))
            answers.append(text[start : start + rng.randint(1, 6)].swapcase())
        expected = naive_is_in(answers, text)
        assert AnswerMatcher(answers).is_in(text) is expected, (answers, text)
        n_found += expected
    assert 500 < n_found < 3500
