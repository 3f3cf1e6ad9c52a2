"""Samples; attention entropy and geometry, naively."""

import math
import shutil
from statistics import fmean

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import AutoModel, set_seed

from modeling_condenser.analysis.readiness import (
    alignment,
    cls_entropies,
    measure_attention_entropy,
    uniformity,
)
from modeling_condenser.analysis.recipe import Measuring
from modeling_condenser.analysis.sample import Sample
from modeling_condenser.collection.load import load_collection
from tests.backbones.encoders import BACKBONES

SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("ALBERT", "MPNet", "RoBERTa")]


def entropy_of(*heads, mask):
    """The entropy of a text whose CLS row has these distributions; its other rows are even."""
    attention = torch.full((1, len(heads), len(mask), len(mask)), 1 / len(mask))
    attention[0, :, 0] = torch.tensor(heads)
    return cls_entropies(attention, torch.tensor([mask])).item()


def test_the_entropy_of_the_cls_row_is_averaged_over_heads_and_leaves_out_padding():
    assert entropy_of([0.2] * 5, mask=[1] * 5) == pytest.approx(math.log(5))
    # (1/2, 1/4, 1/4): 1/2 ln 2 + 2 * 1/4 ln 4 = 3/2 ln 2; (1, 0, 0): 0. Their mean: 3/4 ln 2.
    found = entropy_of([0.5, 0.25, 0.25], [1.0, 0.0, 0.0], mask=[1] * 3)
    assert found == pytest.approx(0.75 * math.log(2))
    # Without padding: (1/2, 1/4, 1/4).
    padded = entropy_of([0.4, 0.2, 0.2, 0.1, 0.1], mask=[1, 1, 1, 0, 0])
    assert padded == pytest.approx(1.5 * math.log(2))


def naive_entropies(encoder, batch):
    """One text at a time without padding, one head at a time, in plain Python."""
    by_text = []
    for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
        alone = ids[mask.bool()][None]
        everything = torch.ones_like(alone)
        with torch.no_grad():
            found = encoder(input_ids=alone, attention_mask=everything, output_attentions=True)
        rows = [[head[0].tolist() for head in layer[0]] for layer in found.attentions]
        by_text.append(
            [fmean(-sum(p * math.log(p) for p in row if p > 0) for row in heads) for heads in rows]
        )
    return np.mean(by_text, axis=0).tolist()


@pytest.mark.parametrize("name", ["BERT", "DeBERTa-v2", "DistilBERT", "ModernBERT", *SLOW])
def test_entropies_equal_a_naive_loop_for_any_batch_size(name):
    backbone = BACKBONES[name]
    set_seed(0)
    encoder = AutoModel.from_config(backbone.config()).eval()
    batch = {k: v for k, v in backbone.batch().items() if k != "labels"}
    before = encoder.config._attn_implementation
    layers, even = measure_attention_entropy(encoder, [batch])
    assert encoder.config._attn_implementation == before
    single = [{k: v[i : i + 1] for k, v in batch.items()} for i in range(len(batch["input_ids"]))]
    assert measure_attention_entropy(encoder, single)[0] == pytest.approx(layers, abs=1e-5)
    encoder.set_attn_implementation("eager")
    expected = naive_entropies(encoder, batch)
    assert len(expected) == 4 and min(expected) > 0.05
    assert layers == pytest.approx(expected, abs=1e-5)
    lengths = batch["attention_mask"].sum(1).tolist()
    assert even == pytest.approx(sum(map(math.log, lengths)) / len(lengths))


def test_alignment_and_uniformity_equal_brute_force():
    x, y = np.random.default_rng(0).normal(size=(2, 20, 6)).astype(np.float32)
    units = [[np.array(v) / math.hypot(*v) for v in vectors.tolist()] for vectors in (x, y)]
    squares = [sum((a - b) ** 2) for a, b in zip(*units, strict=True)]
    own = units[0]
    kernels = [math.exp(-2 * sum((own[i] - own[j]) ** 2)) for i in range(20) for j in range(i)]
    assert alignment(x, y) == pytest.approx(sum(squares) / 20, rel=1e-6)
    assert uniformity(x) == pytest.approx(math.log(sum(kernels) / len(kernels)), rel=1e-6)


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


def test_texts_are_different_and_have_two_words():
    rows = ["a b", "a b", "single", "", "c d", " a  b ", "e f"]
    documents = Dataset.from_dict({"text": rows})
    assert set(Sample.choose(Measuring(texts=6), documents).texts) == {"a b", "c d", "e f"}
    with pytest.raises(ValueError, match="There are 1 different texts of 2 words"):
        Sample.choose(Measuring(texts=6), documents.select(range(3)))


def test_a_text_of_a_script_without_spaces_is_halved_by_its_characters():
    documents = Dataset.from_dict({"text": ["東京は日本の首都。", "大学 図書館", "学"]})
    halves = Sample.choose(Measuring(texts=3), documents).matches
    assert {(row["query"], row["text"]) for row in halves} == {
        ("東京は日", "本の首都。"),
        ("大学", "図書館"),
    }


def test_a_small_collection_has_what_is_judged_for_its_queries_and_some_others(collection, texts):
    def choose(queries, passages, seed=1):
        sizes = {"texts": 4, "queries": queries, "passages": passages, "sample_seed": seed}
        measuring = Measuring(collection=str(collection), **sizes)
        return Sample.choose(measuring, Dataset.from_dict({"text": texts}))

    sample = choose(5, 20)
    assert sample.facts()["collection"]["split"] == "test"  # there is no dev
    found = sample.small
    assert len(found.queries) == len(found.qrels) == len(sample.matches) == 5
    for match in sample.matches:  # a query and its judged passage
        assert match["query"] == " ".join(match["text"].split()[:8])
    assert {p for grades in found.qrels.values() for p in grades} <= set(found.passages["_id"])
    assert len(found.passages) == 20
    assert choose(5, 20).small.queries == found.queries != choose(5, 20, seed=2).small.queries
    everything = choose(500, 500).small
    assert len(everything.queries) == 20 and len(everything.passages) == 60
    assert len(choose(5, 2).small.passages) == 10  # judged passages are never left out


def test_readiness_asks_the_dev_queries_where_there_are_any(collection, texts, tmp_path):
    place = shutil.copytree(collection, tmp_path / "c")
    shutil.copy(place / "qrels" / "train.tsv", place / "qrels" / "dev.tsv")
    documents = Dataset.from_dict({"text": texts})
    sample = Sample.choose(Measuring(collection=str(place), texts=4), documents)
    assert sample.facts()["collection"]["split"] == "dev"
    assert sample.small.queries.keys() <= load_collection(place, split="train").queries.keys()


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="texts is 1, expected at least 2"):
        Measuring(texts=1)
