"""Words of several scripts, split by hand, and the choice of stopwords."""

import pytest
from datasets import Dataset

from modeling_condenser.retrieval.bm25 import choose_language, split_words

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
    assert split_words(text) == SPLIT[text]


@pytest.mark.parametrize(
    ("texts", "language"),
    [
        (["The penguins eat krill and fish.", "Bread rises.", "Yeast makes the gas."], "english"),
        (["Wat ze eten is vis of krill in de winter.", "Dat was in de stad.", "Brood"], "none"),
        (["Er will an Land in das Haus, was schwer war.", "Brot"], "none"),
        (["企鹅生活在南极，主要吃磷虾和鱼。"], "none"),
        (["", "!"], "none"),
    ],
)
def test_english_stopwords_are_chosen_for_text_that_looks_english(texts, language, caplog):
    caplog.set_level("INFO")
    rows = [{"_id": str(i), "title": "", "text": text} for i, text in enumerate(texts)]
    assert choose_language(Dataset.from_list(rows)) == language
    left_out = {"english": "English stopwords are left out", "none": "no stopwords are left out"}
    assert left_out[language] in caplog.text
