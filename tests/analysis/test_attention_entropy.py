"""Entropy of the CLS token's attention: by hand, by a naive loop, and whatever the batch."""

import math

import pytest
import torch
from transformers import AutoModel, BertConfig, BertModel, set_seed

from modeling_condenser.analysis.attention_entropy import (
    cls_entropies,
    eager_attention,
    measure_attention_entropy,
)
from tests.backbones.encoders import BACKBONES

CHOSEN = ("ALBERT", "BERT", "DeBERTa-v2", "DistilBERT", "ModernBERT", "MPNet", "RoBERTa")


def attention_of(*heads: list[float]) -> torch.Tensor:
    """(1, heads, T, T) attention whose CLS rows are given, and whose other rows are even."""
    n = len(heads[0])
    attention = torch.full((1, len(heads), n, n), 1 / n)
    attention[0, :, 0] = torch.tensor(heads)
    return attention


def test_even_attention_to_n_tokens_has_the_natural_logarithm_of_n() -> None:
    found = cls_entropies(attention_of([0.2] * 5), torch.ones(1, 5, dtype=torch.long))
    assert found.item() == pytest.approx(1.6094379)  # ln 5


def test_two_heads_are_averaged() -> None:
    # (1/2, 1/4, 1/4): 1/2 ln 2 + 2 * 1/4 ln 4 = 3/2 ln 2; (1, 0, 0): 0. Their mean: 3/4 ln 2.
    attention = attention_of([0.5, 0.25, 0.25], [1.0, 0.0, 0.0])
    found = cls_entropies(attention, torch.ones(1, 3, dtype=torch.long))
    assert found.item() == pytest.approx(0.75 * 0.69314718)


def test_only_the_cls_row_counts() -> None:
    attention = attention_of([1.0, 0.0, 0.0, 0.0])  # the other rows are even
    assert cls_entropies(attention, torch.ones(1, 4, dtype=torch.long)).item() == 0.0


def test_padding_has_no_part_wherever_it_stands() -> None:
    row = [0.4, 0.2, 0.2]  # of what is left beside padding: 1/2, 1/4, 1/4
    right = attention_of([*row, 0.1, 0.1])
    left = torch.full((1, 1, 5, 5), 0.2)
    left[0, 0, 2] = torch.tensor([0.1, 0.1, *row])  # CLS is the third token then
    for attention, mask in ((right, [1, 1, 1, 0, 0]), (left, [0, 0, 1, 1, 1])):
        found = cls_entropies(attention, torch.tensor([mask]))
        assert found.item() == pytest.approx(1.5 * math.log(2))


def naive_entropies(encoder: torch.nn.Module, batch: dict[str, torch.Tensor]) -> list[float]:
    """One text at a time without padding, one head at a time, in plain Python."""
    by_layer: list[list[float]] = []
    for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
        alone = ids[mask.bool()][None]
        with torch.no_grad():
            attentions = encoder(
                input_ids=alone, attention_mask=torch.ones_like(alone), output_attentions=True
            ).attentions
        by_layer.append([])
        for layer in attentions:
            heads = []
            for head in layer[0]:
                probabilities = head[0].tolist()
                heads.append(-sum(p * math.log(p) for p in probabilities if p > 0))
            by_layer[-1].append(sum(heads) / len(heads))
    return [sum(text[k] for text in by_layer) / len(by_layer) for k in range(len(by_layer[0]))]


@pytest.mark.parametrize("name", CHOSEN)
def test_it_equals_a_naive_loop_whatever_the_batch(name: str) -> None:
    backbone = BACKBONES[name]
    set_seed(0)
    encoder = AutoModel.from_config(backbone.config()).eval()
    batch = {k: v for k, v in backbone.batch().items() if k != "labels"}
    before = encoder.config._attn_implementation
    whole = measure_attention_entropy(encoder, [batch])
    assert encoder.config._attn_implementation == before
    single = [{k: v[i : i + 1] for k, v in batch.items()} for i in range(len(batch["input_ids"]))]
    with eager_attention(encoder):
        expected = naive_entropies(encoder, batch)
    assert len(expected) == 4 and min(expected) > 0.05
    assert whole.layers == pytest.approx(expected, abs=1e-5)
    assert measure_attention_entropy(encoder, single).layers == pytest.approx(expected, abs=1e-5)
    lengths = batch["attention_mask"].sum(1).tolist()
    assert whole.even == pytest.approx(sum(map(math.log, lengths)) / len(lengths))
    assert whole.mean == pytest.approx(sum(expected) / 4)


def test_it_is_the_softmax_of_queries_and_keys_in_a_bert() -> None:
    config = BertConfig(
        vocab_size=50,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        initializer_range=1.0,
    )
    set_seed(0)
    encoder = BertModel(config).eval()
    ids = torch.tensor([[2, 7, 9, 30, 3]])
    attention = encoder.encoder.layer[0].attention.self
    with torch.no_grad():
        hidden = encoder.embeddings(ids)[0]  # (5, 8)
        query, key = attention.query(hidden)[0], attention.key(hidden)
    heads = []
    for head in (slice(0, 4), slice(4, 8)):
        scores = [sum((query[head] * k[head]).tolist()) / math.sqrt(4) for k in key]
        weights = [math.exp(score) for score in scores]
        shares = [weight / sum(weights) for weight in weights]
        heads.append(-sum(p * math.log(p) for p in shares))
    found = measure_attention_entropy(
        encoder, [{"input_ids": ids, "attention_mask": torch.ones_like(ids)}]
    )
    assert found.layers == pytest.approx([sum(heads) / 2], abs=1e-5)


def test_dropout_is_refused_because_its_rows_are_no_distribution() -> None:
    set_seed(0)
    config = BACKBONES["BERT"].config(attention_probs_dropout_prob=0.5)
    encoder = AutoModel.from_config(config).train()
    batch = {k: v for k, v in BACKBONES["BERT"].batch().items() if k != "labels"}
    with pytest.raises(ValueError, match="evaluation mode"):
        measure_attention_entropy(encoder, [batch])
    assert encoder.config._attn_implementation == "sdpa"


def test_an_encoder_that_gives_no_attention_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = AutoModel.from_config(BACKBONES["BERT"].config()).eval()
    batch = {k: v for k, v in BACKBONES["BERT"].batch().items() if k != "labels"}
    # As a model whose layers know no other back-end than sdpa: asking for attention gives none.
    monkeypatch.setattr(type(encoder), "set_attn_implementation", lambda self, name: None)
    with pytest.raises(ValueError, match="does not give the attention of its layers"):
        measure_attention_entropy(encoder, [batch])

    def refuse(self: object, name: str) -> None:
        raise ValueError(f"no back-end {name}")

    monkeypatch.setattr(type(encoder), "set_attn_implementation", refuse)
    with pytest.raises(ValueError, match=r"expected one that has .*'eager'.*\(no back-end eager\)"):
        measure_attention_entropy(encoder, [batch])
