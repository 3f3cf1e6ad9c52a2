"""Words of several scripts, split by hand, and the choice of stopwords."""

import pytest

from modeling_condenser.retrieval.bm25 import Bm25
from modeling_condenser.retrieval.words import LANGUAGES, PlainWords, Words, recognize_language
from tests.retrieval.test_bm25 import PASSAGES, make_passages

SPLIT = {
    "The cafe\u0301's 2nd CO-OP, a_b x": ["the", "café", "2nd", "co", "op", "a_b"],
    "ﬁsh, CO₂ and Ｗｅｂ": ["fish", "co2", "and", "web"],
    "企鹅生活。鱼": ["企鹅", "鹅生", "生活", "鱼"],
    "第3章：iPhoneを買う": ["第", "章", "iphone", "を買", "買う"],
    "ペンギン・ｶﾞｰﾃﾞﾝ": ["ペン", "ンギ", "ギン", "ガー", "ーデ", "デン"],
    "펭귄은 물": ["펭귄", "귄은", "물"],
    "Пчёлы в САДУ": ["пчёлы", "саду"],
    "كِتَاب؟ السمك": ["كِتَاب", "السمك"],
    "हिन्दी में\u0964 बड\u093cा न": ["हिन्दी", "में", "ब\u0921\u093cा"],  # न has one letter
    "กินปลา": ["กิน", "นป", "ปล", "ลา"],  # a vowel sign stays with its letter
    "ກິນປາ ត្រី ငါး": ["ກິນ", "ນປ", "ປາ", "ត្រី", "ငါး"],
}


@pytest.mark.parametrize("text", SPLIT)
def test_a_text_is_split_into_words_or_pairs_of_characters(text):
    assert PlainWords("none").split(text) == SPLIT[text]
    assert set(SPLIT[text]) <= set(Words("none").split(text))


@pytest.mark.parametrize("text", ["企鹅生活在南极，主要吃磷虾和鱼。", "", "Brot, Fisch"])
def test_a_language_that_is_not_recognised_is_none(text):
    assert recognize_language(make_passages({"a": ("", text)})) == "none"


@pytest.mark.parametrize(
    "text",
    [
        "Grad leži na rijeci, koji se ne mijenja. Od dvorca ima cestu za muzej, trgu je sajam.",
        "Mesto leží na rieke a má dlhú históriu. To je dobrý príklad, ako sa mestá menia.",
        "Місто розташоване на річці і має довгу історію. Це не єдиний приклад, що відомо.",
        "Градът е на река и има дълга история. Това не е пример, по който се вижда.",
    ],
)
def test_a_language_without_a_stemmer_is_not_taken_for_its_neighbour(text):
    assert recognize_language(make_passages({"a": ("", text)})) == "none"


def test_turkish_has_two_letters_i():
    assert Words("tr").split("ISPARTA'da IŞIK, İzmir") == ["ısparta", "da", "ışık", "izmir"]
    assert Words("none").split("ISPARTA, İzmir") == ["isparta", "izmir"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_has_a_stemmer(language):
    assert Words(language).terms("xyz") == ["xyz"]


TEXTS = {
    "english": ("The patients of the ward were treated with antibiotics.", "treating a patient"),
    "polish": ("Na rynku jest zamek, a do miasta nie jedzie się koleją.", "koleją"),
    "german": ("Die Häuser in den Dörfern sind von der Straße zu sehen.", "Haus im Dorf"),
    "french": ("Les enfants et les animaux sont dans la maison de l'école.", "enfant, animal"),
    "spanish": ("Los niños y las niñas que viven en la ciudad son felices.", "niño que vive"),
    "russian": ("Дети и собаки не играли на улицах, что с того.", "играть на улице"),
    "finnish": ("Lapset ja koirat ovat talossa, joka on suuri.", "lapsi talo suuret"),
    "turkish": ("Çocuklar ve köpekler bir evde çok mutlu.", "çocuk ev"),
}


@pytest.mark.parametrize("language", TEXTS)
def test_a_language_is_recognised_and_words_are_stemmed_in_it(language):
    text, query = TEXTS[language]
    passages = make_passages({"a": ("", text), "b": ("", "x")})
    assert recognize_language(passages) == language
    assert list(Bm25(passages).search({"q": query})["q"]) == ["a"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("parseHTMLFile", "parsehtmlfile parse html file"),
        ("snake_case CD4", "snake_case snake case cd4 cd 4"),
        ("C++ and C#, or v2.0.1.", "c++ c and c# c or v 2.0.1 2 0 1"),
        ("Windows 7", "windows windows 7"),
        ("python3.11 takes 12.5mg of CPUs", "python 3.11 3 11 takes 12.5 12 5 mg of cpus cpu"),
        ("I'm at l’eau, don't", "at eau don"),
        ("İstanbul co\u00adoperate", "istanbul istanbul cooperate"),
        ("東京都", "東京 京都"),
    ],
)
def test_what_a_word_is(text, expected):
    found = Words("none").split(text)
    assert list(dict.fromkeys(found)) == list(dict.fromkeys(expected.split()))


def test_the_presets_of_papers_have_words_of_two_characters_and_no_stems():
    assert PlainWords("en").terms("The cats of Windows 7, C++ and snake_case") == [
        *("cats", "windows", "snake_case"),
    ]
    assert type(Bm25(PASSAGES, preset="thesis").words) is PlainWords
