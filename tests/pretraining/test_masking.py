"""Random numbers, words and whole-word masking, against naive implementations of their sources."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from scipy import stats
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from modeling_condenser.pretraining.counter_random import random_keys, uniforms
from modeling_condenser.pretraining.masking import (
    ORDER_STREAM,
    choose_words,
    masking_budget,
    replace_tokens,
)
from modeling_condenser.pretraining.word_starts import WordStarts
from tests.backbones.encoders import BACKBONES

TOKENIZERS = {backbone.tokenizer for backbone in BACKBONES.values()}


def splitmix64(seed: int) -> Iterator[int]:
    """Steele, Lea & Flood 2014, figure 15, in plain integers."""
    while True:
        seed = z = (seed + 0x9E3779B97F4A7C15) % 2**64
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        yield z ^ (z >> 31)


def nth(seed: int, n: int) -> int:
    return next(itertools.islice(splitmix64(seed), n, None))


def test_random_numbers_are_those_of_splitmix64():
    # As printed by Vigna's splitmix64.c, whose first outputs many implementations quote.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [nth(1234567, n) for n in range(3)] == published
    for key, stream in ((0, 0), (1234567, 1), (2**63 - 1, 3)):
        seed = nth(key, stream)
        expected = [(nth(seed, n) >> 11) / 2**53 for n in range(20)]
        keys = np.array([5, key])
        assert uniforms(keys, 20, stream=stream)[1].tolist() == expected
        assert uniforms(keys, 7, stream=stream)[1].tolist() == expected[:7]


def test_random_keys_fold_their_parts_in_turn_and_broadcast():
    key = 0
    for part in (7, 0, 123456789):
        key = nth((key + nth(part, 0)) % 2**64, 0)
    assert random_keys(7, 0, np.array([3, 123456789]))[1] == key >> 1


def number_words(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[int]:
    row = np.array([ids])
    return WordStarts(tokenizer).number_words(row, np.ones_like(row, dtype=bool))[0].tolist()


def make_byte_level_tokenizer(*tokens: str) -> PreTrainedTokenizerBase:
    """All bytes, and tokens (written as bytes are) that are merged left to right."""
    vocabulary = ["<pad>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = []
    for token in tokens:
        for n in range(1, len(token)):
            merges.append((token[:n], token[n]))
            vocabulary.append(token[: n + 1])
    model = models.BPE(vocab={token: i for i, token in enumerate(vocabulary)}, merges=merges)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>")


def expected_words(offsets: list[tuple[int, int]], text: str) -> list[int]:
    """The word of each token by the characters that it spans, as BERT's own code splits them."""
    characters = [-1] * len(text)
    words = pre_tokenizers.BertPreTokenizer().pre_tokenize_str(text)
    for number, (_, (start, end)) in enumerate(words):
        characters[start:end] = [number] * (end - start)
    numbers, word, last = [], -1, -1
    for start, end in offsets:
        while characters[start] < 0:  # the blank before a word, which may be its own token
            start += 1
        word += characters[start] != last  # a token that spans several words joins them
        last = characters[max(end - 1, start)]
        numbers.append(word)
    return numbers


@pytest.mark.parametrize("make", sorted(TOKENIZERS, key=lambda make: make.__name__))
def test_a_word_begins_wherever_bert_would_begin_one(make, texts):
    tokenizer = make(texts)
    n_long = 0
    for text in texts[::2]:
        # Bytes of Chinese characters that a vocabulary has not merged tell no boundary.
        if any("一" <= character <= "鿿" for character in text):
            continue
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids = encoded["input_ids"]
        if tokenizer.unk_token_id in ids:
            continue
        expected = expected_words(encoded["offset_mapping"], text)
        assert number_words(tokenizer, ids) == expected, tokenizer.convert_ids_to_tokens(ids)
        n_long += max(expected) + 1 < len(ids)
    assert n_long > 50  # texts with words of several tokens


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a東京a", ["a", "東", "京", "a"]),  # bytes that are merged to characters
        ("naïf. naïf", ["naïf", ".", "naïf"]),  # and some that are not
        ("ab\nab\u00a0ab", ["ab", "", "ab", "", "ab"]),
    ],
)
def test_byte_level_words_are_those_of_their_text(text, expected):
    tokenizer = make_byte_level_tokenizer("æĿ±", "äº¬", "Âł")
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    spans: dict[int, list[int]] = {}
    words = number_words(tokenizer, encoded["input_ids"])
    for word, span in zip(words, encoded["offset_mapping"], strict=True):
        spans.setdefault(word, []).extend(span)
    assert [text[min(ends) : max(ends)].strip() for ends in spans.values()] == expected


def test_a_vocabulary_of_whole_words_is_refused():
    model = Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1}, unk_token="[UNK]"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, unk_token="[UNK]")
    with pytest.raises(ValueError, match="not mark words in a known way .WordLevel.*WordPiece"):
        WordStarts(tokenizer)


def make_words(rng: np.random.Generator, *, width: int, longest: int) -> np.ndarray:
    """A row of words of random lengths, with stretches that belong to none."""
    row: list[int] = []
    word = 0
    while len(row) < width:
        is_outside = rng.random() < 0.15
        row += [-1 if is_outside else word] * int(rng.integers(1, longest + 1))
        word += not is_outside
    return np.array(row[:width])


def choose_naively(words: list[int], budget: int, key: int) -> list[bool]:
    """The reference's loop: take a word if all of its tokens still fit, otherwise skip it.

    If none fits, the first is taken in part, where the reference takes nothing.
    """
    draws = uniforms(np.array([key]), max(words) + 1, stream=ORDER_STREAM)[0]
    order = sorted(range(len(draws)), key=lambda word: draws[word])
    chosen: set[int] = set()
    n_chosen = 0
    for word in order:
        if n_chosen >= budget:
            break
        if n_chosen + words.count(word) <= budget:
            chosen.add(word)
            n_chosen += words.count(word)
    if not chosen:
        places = [place for place, word in enumerate(words) if order and word == order[0]]
        return [place in places[:budget] for place in range(len(words))]
    return [word in chosen for word in words]


@pytest.mark.parametrize(("longest", "share"), [(1, 0.15), (3, 0.4), (12, 0.9), (12, 0.15)])
def test_the_choice_equals_the_reference_s_loop(longest, share):
    rng = np.random.default_rng(longest)
    n_skipped = 0
    for batch in range(40):
        width = int(rng.integers(1, 90))
        words = np.stack([make_words(rng, width=width, longest=longest) for _ in range(8)])
        keys = random_keys(batch, np.arange(8))
        budget = masking_budget((words >= 0).sum(axis=1), share)
        chosen = choose_words(words, budget, keys)
        for row, key, limit, got in zip(words.tolist(), keys, budget, chosen, strict=True):
            expected = choose_naively(row, limit, key)
            assert got.tolist() == expected
            n_skipped += sum(expected) < limit
    assert longest == 1 or n_skipped > 0  # the case in which words are skipped did come up


def test_the_budget_is_a_rounded_share_and_at_least_one():
    expected = [0] + [max(1, round(n * 0.15)) for n in range(1, 600)]
    assert masking_budget(np.arange(600), 0.15).tolist() == expected


def test_eighty_per_cent_are_masked_ten_replaced_and_ten_kept():
    ids = 1000 + np.arange(400_000).reshape(4000, 100)
    chosen = np.random.default_rng(0).random(ids.shape) < 0.5
    keys, ordinary = random_keys(0, np.arange(4000)), np.arange(100, 150)
    replaced = replace_tokens(ids, chosen, keys, mask_token_id=7, ordinary_ids=ordinary)
    assert (replaced[~chosen] == ids[~chosen]).all()
    became, original = replaced[chosen], ids[chosen]
    is_random = (became != 7) & (became < 1000)
    for is_so, expected in ((became == 7, 0.8), (is_random, 0.1), (became == original, 0.1)):
        deviation = (expected * (1 - expected) / len(became)) ** 0.5
        assert abs(is_so.mean() - expected) < 4 * deviation
    counts = np.bincount(became[is_random], minlength=150)[100:]
    assert 0.001 < stats.chisquare(counts).pvalue < 0.999
