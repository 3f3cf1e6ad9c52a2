"""What the head takes from the dense vector, against a naive implementation."""

import pytest
import torch
from transformers import AutoTokenizer

from modeling_condenser import CondenserForPreTraining
from modeling_condenser.analysis.condensing import mask_texts, measure_condensing
from modeling_condenser.pretraining.probe import probe


@pytest.fixture(scope="module")
def model(bert_run):
    """With weights so large that every vector matters."""
    model = CondenserForPreTraining.from_pretrained(bert_run / "model").eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in (*model.head.parameters(), *model.condenser.parameters()):
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.fixture(scope="module")
def tokenizer(bert_run):
    return AutoTokenizer.from_pretrained(bert_run / "model")


def cut(batch, size):
    n = len(batch["input_ids"])
    return [{k: v[i : i + size] for k, v in batch.items()} for i in range(0, n, size)]


def naive(model, batch):
    """One text at a time: its loss with its own vector, with zeros, and with the last text's."""
    texts = cut(batch, 1)
    with torch.no_grad():
        lates = [model.encode(t["input_ids"], t["attention_mask"])[0][:, :1] for t in texts]
        sums, n = [0.0, 0.0, 0.0], 0
        for i, text in enumerate(texts):
            _, early, output = model.encode(text["input_ids"], text["attention_mask"])
            for k, cls in enumerate((lates[i], 0 * lates[i], lates[i - 1])):
                hidden = torch.cat([cls, early[:, 1:]], dim=1)
                for layer in model.head:
                    hidden = output.layer_call.repeat(layer, hidden)
                log_p = model.lm_head(model.head_norm(hidden)).log_softmax(-1)[0]
                for place, target in enumerate(text["labels"][0].tolist()):
                    if target != -100:
                        sums[k] -= log_p[place, target].item()
            n += int((text["labels"] != -100).sum())
    return sums[0] / n, (sums[1] - sums[0]) / n, (sums[2] - sums[0]) / n


def test_it_equals_a_naive_implementation_whatever_the_batch(model, tokenizer, texts):
    batches = mask_texts(texts[:9], tokenizer, max_length=64, seed=3)
    [batch] = batches
    expected = naive(model, batch)
    assert abs(expected[1]) > 1e-2 and abs(expected[2]) > 1e-2
    for size in (9, 4, 1):
        found = measure_condensing(model, cut(batch, size))
        got = (found.head_loss, found.zero_cost, found.swap_cost)
        assert got == pytest.approx(expected, rel=1e-4, abs=1e-4), size


def test_the_swap_cost_is_the_probes_where_the_sample_is_one_batch(model, tokenizer, texts):
    [batch] = mask_texts(texts[:6], tokenizer, max_length=32, seed=0)
    assert measure_condensing(model, [batch]).swap_cost == pytest.approx(
        probe(model, batch)["swap_cost"], abs=1e-5
    )


class PassingLayer(torch.nn.Module):
    def forward(self, hidden, *args, **kwargs):
        return hidden


def test_a_head_that_ignores_the_vector_loses_nothing_without_it(bert_run, tokenizer, texts):
    model = CondenserForPreTraining.from_pretrained(bert_run / "model").eval()
    batches = mask_texts(texts[:6], tokenizer, max_length=32, seed=0)
    # Each token is then predicted from itself alone.
    model.head = torch.nn.ModuleList([PassingLayer()])
    found = measure_condensing(model, batches)
    assert (found.zero_cost, found.swap_cost) == pytest.approx((0, 0), abs=1e-6)


def test_masks_follow_from_the_seed_and_the_place_alone(tokenizer, texts):
    first, again = (mask_texts(texts[:8], tokenizer, max_length=32, seed=1) for _ in range(2))
    fewer = mask_texts(texts[:3], tokenizer, max_length=32, seed=1)
    other = mask_texts(texts[:8], tokenizer, max_length=32, seed=2)
    assert torch.equal(first[0]["input_ids"], again[0]["input_ids"])
    assert torch.equal(first[0]["labels"][:3], fewer[0]["labels"])
    assert not torch.equal(first[0]["labels"], other[0]["labels"])
    share = (first[0]["labels"] != -100).sum() / first[0]["attention_mask"].sum()
    assert 0.08 < share < 0.2


def test_one_text_has_no_other_to_swap_with(model, tokenizer, texts):
    with pytest.raises(ValueError, match="One text came"):
        measure_condensing(model, mask_texts(texts[:1], tokenizer, max_length=32, seed=0))
