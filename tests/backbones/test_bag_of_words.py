"""Bag-of-words prediction and heads that read a second masking, against naive float64 loops."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from modeling_condenser import CondenserForMaskedLM, CondenserForPreTraining
from modeling_condenser.packing import use_packing, why_not_packed
from modeling_condenser.pretraining.packed_batches import pack
from tests.backbones.by_hand import CondenserByHand, hidden_states
from tests.backbones.encoders import BACKBONES, VOCABULARY, Backbone
from tests.backbones.test_equations import gradients, make_model

SPECIAL = (0, 1, 2)  # what stands for special tokens in these batches of random numbers
WEIGHT = 0.3


def original_blocks(batch: dict[str, torch.Tensor]) -> list[list[int]]:
    """The tokens of each block before masking."""
    ids = batch["input_ids"].where(batch["labels"] == -100, batch["labels"])
    rows = zip(ids.tolist(), batch["attention_mask"].tolist(), strict=True)
    return [[token for token, is_token in zip(*row, strict=True) if is_token] for row in rows]


def make_batch(backbone: Backbone, *, twice_masked: bool = False) -> dict[str, torch.Tensor]:
    """Five blocks, one of special tokens alone; `bow_targets` in the order of a set."""
    batch = backbone.batch()
    kept = batch["attention_mask"][1] == 1
    batch["input_ids"][1, kept] = 2
    batch["labels"][1] = -100
    targets = torch.full_like(batch["labels"], -100)
    for row, block in enumerate(original_blocks(batch)):
        bag = sorted(set(block) - set(SPECIAL), reverse=True)
        targets[row, : len(bag)] = torch.tensor(bag, dtype=torch.long)
    batch["bow_targets"] = targets
    if twice_masked:
        generator = torch.Generator().manual_seed(9)
        ids = batch["input_ids"].where(batch["labels"] == -100, batch["labels"])
        chosen = torch.rand(ids.shape, generator=generator) < 0.5
        chosen &= batch["attention_mask"] == 1
        chosen[:, 0] = False
        batch["head_targets"] = ids.where(chosen, -100)
        batch["head_input_ids"] = ids.where(~chosen, 4)
    return batch


class ByHand(CondenserByHand):
    """The Condenser by hand, with a bag of words and a head that may read a second masking."""

    def losses(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        encoder = getattr(self.masked_lm, self.masked_lm.base_model_prefix)
        mask = batch["attention_mask"]
        late = self.states(encoder, batch["input_ids"], mask)[-1]
        mlm = {"late_loss": self.mlm(late, batch["labels"])}
        if len(self.head):
            steps = self.kind.take_apart(encoder, batch["input_ids"], mask)
            read = self.states(encoder, batch.get("head_input_ids", batch["input_ids"]), mask)
            cd = torch.cat([late[:, :1], read[self.config.skip_from][:, 1:]], dim=1)
            for layer in self.head:
                cd = steps.head_call(layer, cd)
            labels = batch.get("head_targets", batch["labels"])
            mlm["head_loss"] = self.mlm(self.head_norm(cd), labels)
        terms = []
        for vector, block in zip(late[:, 0], original_blocks(batch), strict=True):
            scores = self.kind.predict(self.masked_lm, vector[None, None])[0, 0]
            log_p = scores - torch.log(sum(torch.exp(score) for score in scores))
            bag = set(block) - set(SPECIAL)
            if bag:
                terms.append(-sum(log_p[token] for token in bag) / len(bag))
        bow_loss = sum(terms) / len(terms)
        return {**mlm, "bow_loss": bow_loss, "loss": sum(mlm.values()) + WEIGHT * bow_loss}

    def states(self, encoder: Any, ids: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        return list(hidden_states(self.kind.take_apart(encoder, ids, mask)))

    def mlm(self, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.kind.predict(self.masked_lm, hidden)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def compare(model: Any, batch: dict[str, Any], by_hand: ByHand, padded: dict[str, Any]) -> None:
    model.zero_grad()
    by_hand.zero_grad()
    output = model(**batch, bow_weight=WEIGHT)
    output.loss.backward()
    expected = by_hand.losses(padded)
    expected["loss"].backward()
    for name, value in expected.items():
        torch.testing.assert_close(output[name], value, rtol=0, atol=1e-8, msg=name)
    found, gradient = gradients(model), by_hand.gradients()
    assert found.keys() == gradient.keys()
    for name in gradient:
        torch.testing.assert_close(found[name], gradient[name], rtol=0, atol=1e-8, msg=name)


@pytest.mark.parametrize("head_mlm_probability", [None, 0.5])
def test_losses_and_gradients_are_those_of_naive_loops_padded_and_packed(
    backbone: Backbone, head_mlm_probability: float | None
) -> None:
    settings = {"skip_from": 1} if head_mlm_probability is None else {}
    model = make_model(
        backbone, n_head_layers=1, head_mlm_probability=head_mlm_probability, **settings
    )
    by_hand = ByHand(model.state_dict(), model.config)
    padded = make_batch(backbone, twice_masked=head_mlm_probability is not None)
    compare(model, padded, by_hand, padded)
    if why_not_packed(model.condenser.encoder) is None:
        use_packing(model)
        compare(model, pack(padded, pad_token_id=backbone.padding), by_hand, padded)


@pytest.mark.parametrize("name", ["BERT", "DistilBERT", "ModernBERT"])
def test_plain_mlm_with_a_bag_of_words_is_that_of_naive_loops(name: str) -> None:
    backbone = BACKBONES[name]
    whole = make_model(backbone)
    model = CondenserForMaskedLM(whole.config).double().train()
    model.load_state_dict(whole.state_dict(), strict=False)
    by_hand = ByHand(whole.state_dict(), whole.config)
    by_hand.head = torch.nn.ModuleList()
    by_hand.head_norm = torch.nn.Identity()
    padded = make_batch(backbone)
    compare(model, padded, by_hand, padded)
    use_packing(model)
    compare(model, pack(padded, pad_token_id=backbone.padding), by_hand, padded)


def test_a_batch_of_special_tokens_alone_has_a_bag_of_words_loss_of_zero() -> None:
    model = make_model(BACKBONES["BERT"])
    batch = make_batch(BACKBONES["BERT"])
    batch["bow_targets"].fill_(-100)
    assert model(**batch).bow_loss.item() == 0.0


def test_micro_batches_add_up_to_the_whole_batch_where_counts_are_given() -> None:
    model = make_model(BACKBONES["BERT"], n_head_layers=1, head_mlm_probability=0.5)
    batch = make_batch(BACKBONES["BERT"], twice_masked=True)
    n_bags = int((batch["bow_targets"] != -100).any(1).sum())
    assert n_bags == 4
    model(**batch, bow_weight=WEIGHT).loss.backward()
    whole = gradients(model)
    model.zero_grad()
    for rows in (slice(0, 2), slice(2, 5)):  # 1 and 3 bags
        model(
            **{name: column[rows] for name, column in batch.items()},
            bow_weight=WEIGHT,
            num_items_in_batch=(batch["labels"] != -100).sum(),
            num_head_items_in_batch=(batch["head_targets"] != -100).sum(),
            num_bags_in_batch=n_bags,
        ).loss.backward()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, whole[name], rtol=0, atol=1e-10, msg=name)


def test_without_counts_the_share_of_masked_tokens_scales_the_other_losses() -> None:
    """As in a plain Trainer, which counts labels only."""
    model = make_model(BACKBONES["BERT"], n_head_layers=1, head_mlm_probability=0.5)
    batch = make_batch(BACKBONES["BERT"], twice_masked=True)
    n_items = (batch["labels"] != -100).sum()
    alone = model(**batch)
    part = model(**batch, num_items_in_batch=4 * n_items)
    for name in ("bow_loss", "head_loss", "late_loss"):
        assert part[name].item() == pytest.approx(alone[name].item() / 4, rel=1e-12), name


def test_gradient_checkpointing_reaches_the_embeddings_of_the_second_masking() -> None:
    model = make_model(BACKBONES["BERT"], n_head_layers=1, head_mlm_probability=0.5)
    batch = make_batch(BACKBONES["BERT"], twice_masked=True)
    model(**batch).loss.backward()
    expected = gradients(model)
    for reentrant in (True, False):
        model.zero_grad()
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model(**batch).loss.backward()
        for name, gradient in gradients(model).items():
            torch.testing.assert_close(gradient, expected[name], rtol=0, atol=1e-12, msg=name)


def test_a_missing_or_unwanted_second_masking_is_refused() -> None:
    once, twice = (make_batch(BACKBONES["BERT"], twice_masked=flag) for flag in (False, True))
    with pytest.raises(ValueError, match=r"no head_input_ids.*\(head_mlm_probability=0.5\)"):
        make_model(BACKBONES["BERT"], head_mlm_probability=0.5)(**once)
    with pytest.raises(ValueError, match="head_input_ids and head_targets came"):
        make_model(BACKBONES["BERT"])(**twice)


def test_without_labels_the_head_reads_the_block_itself() -> None:
    model: CondenserForPreTraining = make_model(BACKBONES["BERT"], head_mlm_probability=0.5)
    ids = torch.randint(5, VOCABULARY, (2, 7))
    late, early, _ = model.encode(ids)
    assert torch.equal(early, model.condenser.embed(input_ids=ids))
    assert model(input_ids=ids).head_logits.shape == (2, 7, VOCABULARY)
    assert not torch.equal(early, late)
