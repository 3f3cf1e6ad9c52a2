"""Sentences of several scripts, of lists and logs, and of prose that is wrapped."""

import textwrap
from itertools import pairwise

import pytest

from modeling_condenser.collection.sentences import sentence_starts


def sentences_of(text: str) -> list[str]:
    starts = sentence_starts(text)
    return [text[a:b] for a, b in pairwise([*starts, len(text)])]


@pytest.mark.parametrize(
    "sentences",
    [
        ["Why? ", "No! ", "It is 4.50 today. ", "See e.g. Fig. 2 of Dr. Ng. ", "Then go."],
        ["Obst, z.B. Äpfel, u.a. von Dr. Ng, kostet ca. 3 Euro. ", "Es ist süß."],
        [
            "企鹅生活在南极。",
            "它们吃磷虾和鱼！",
            "「为什么？」",
            "价格是３．５元！？",
            "好!",
            "是吗?",
            "是",
        ],
        ["「好」、「いいえ」と言った。", "終わり"],
        ["पेंगुइन मछली खाते हैं। ", "वे तैरते हैं॥ ", "क्यों"],
        ["ماذا يأكل البطريق؟ ", "السمك۔ ", "نعم."],
    ],
)
def test_a_text_is_cut_at_its_sentences_in_every_script(sentences):
    assert sentences_of("".join(sentences)) == sentences


@pytest.mark.parametrize(
    "lines",
    [
        [f"- part {i} costs {i} dollars" for i in range(90)],
        [f"2024-01-01 12:00:{i:02} INFO request {i:02} was answered in 12 ms" for i in range(60)],
        ["Berlin | 3,700,000 | Germany and its surroundings", "Bern | 134,000 | Switzerland today"],
        ["milk", "eggs", "bread and butter", "tea"],
        ["Shopping\r", "\r", "first the milk from the shop around the corner\r", "Then eggs"],
    ],
)
def test_each_line_of_a_list_a_log_or_a_table_is_a_sentence(lines):
    sentences = sentences_of("\n".join(lines))
    assert [sentence.strip() for sentence in sentences] == [
        line.strip() for line in lines if line.strip()
    ]


@pytest.mark.parametrize("prefix", ["", "    ", "> "])
def test_wrapped_prose_is_cut_at_its_sentences_and_paragraphs(prefix):
    paragraph = (
        "The river begins in the mountains of Norway, where the snow of a long winter melts in May "
        "and June and fills the lakes. It then flows to the sea, past towns that were rich once."
    )
    wrapped = textwrap.fill(paragraph, 60, initial_indent=prefix, subsequent_indent=prefix)
    text = f"Dear Mary,\n{wrapped}\n\n{wrapped}"
    first, second = wrapped.split("It then")
    first = first.removeprefix(prefix) if prefix.isspace() else first
    expected = [first.strip(), f"It then{second}".strip()]
    assert [sentence.strip() for sentence in sentences_of(text)] == ["Dear Mary,", *expected * 2]


def test_a_long_text_is_cut_however_long_it_takes(monkeypatch):
    redos = pytest.importorskip("nltk.redos")

    def give_up(*_):
        raise TimeoutError  # as after five seconds

    monkeypatch.setattr(redos.TimedPattern, "finditer", give_up)
    assert sentence_starts("It rained. It snowed.") == [0, 11]
