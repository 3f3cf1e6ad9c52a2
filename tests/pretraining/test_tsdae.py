"""TSDAE: deletion, the loss against plain transformers classes, and runs of it."""

from itertools import chain

import numpy as np
import pytest
import torch
from torch.nn.functional import log_softmax
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer

from modeling_condenser import (
    CondenserDataCollator,
    CondenserTrainer,
    CondenserTrainingArguments,
    masked_lm_from_encoder,
)
from modeling_condenser.files.models import quiet_loading
from modeling_condenser.pretraining.counter_random import random_keys
from modeling_condenser.pretraining.data import with_keys
from modeling_condenser.pretraining.examples import make_collator
from modeling_condenser.pretraining.tsdae import (
    ENCODERS_WITH_DECODER,
    DenoisingCollator,
    add_decoder,
)
from tests.backbones.encoders import BACKBONES
from tests.pretraining.short_runs import SETTINGS


def collate(tokenizer, texts, *, probability=0.6, max_length=64, seed=0, prompt=""):
    """A batch of the texts, each a block."""
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    examples = with_keys(ids, random_keys(seed, np.arange(len(texts))))
    collator = CondenserDataCollator(tokenizer, max_length=max_length, prompts=[prompt])
    return DenoisingCollator(collator, deletion_probability=probability)(examples)


def rows_of(batch, prefix=""):
    """The rows of a batch without padding."""
    ids, mask = batch[f"{prefix}input_ids"], batch[f"{prefix}attention_mask"].bool()
    return [row[is_token].tolist() for row, is_token in zip(ids, mask, strict=True)]


def test_a_batch_holds_whole_blocks_and_some_of_their_words(tokenizer):
    text = "The museum describes naïveté, 1234 outlives Reykjavík; [UNK] [UNK] paints Gdańsk."
    words = "the museum describes naïveté , 1234 outlives reykjavík ; [UNK] [UNK] paints gdańsk ."
    pieces = [tokenizer(word, add_special_tokens=False)["input_ids"] for word in words.split()]
    assert max(map(len, pieces)) > 1
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    batch = collate(tokenizer, [text] * 500)
    whole = [cls, *chain(*pieces), sep]
    assert rows_of(batch) == [whole] * 500
    labels = batch["labels"]
    assert (labels[:, 0] == -100).all() and labels[0, 1 : len(whole)].tolist() == whole[1:]
    assert (labels[:, len(whole) :] == -100).all()

    n_kept = 0
    for row in rows_of(batch, "noisy_"):
        assert (row[0], row[-1]) == (cls, sep) and len(row) > 2
        left, place = row[1:-1], 0
        for piece in pieces:  # greedy, since no word is the beginning of the one behind it
            if left[place : place + len(piece)] == piece:
                place += len(piece)
                n_kept += 1
        assert place == len(left)
    # Binomial: a standard deviation of 41.
    assert n_kept == pytest.approx(0.4 * 500 * len(pieces), abs=125)


def test_deletion_depends_on_the_block_and_its_key_alone(tokenizer, texts):
    texts = [text[:150] for text in texts[:20]]
    together = rows_of(collate(tokenizer, texts), "noisy_")
    assert rows_of(collate(tokenizer, texts[:3]), "noisy_") == together[:3]
    assert rows_of(collate(tokenizer, texts, seed=1), "noisy_") != together
    assert rows_of(collate(tokenizer, texts, probability=0.0), "noisy_") == rows_of(
        collate(tokenizer, texts)
    )


def test_one_random_word_is_kept_of_a_block_that_would_lose_all(tokenizer):
    batch = collate(tokenizer, ["the old river"] * 300, probability=1.0)
    kept = [tokenizer.decode(row[1:-1]) for row in rows_of(batch, "noisy_")]
    counts = [kept.count(word) for word in ("the", "old", "river")]
    assert sum(counts) == 300 and min(counts) > 70


def with_decoder(folder, pooling="cls"):
    model = masked_lm_from_encoder(str(folder), pooling=pooling)
    add_decoder(model)
    return model.double().eval()


WITH_DECODER = [b.title for b in BACKBONES.values() if b.model_type in ENCODERS_WITH_DECODER]
OTHERS = [title for title in WITH_DECODER if title != "BERT"]


@pytest.mark.parametrize(
    ("title", "pooling", "prompt"),
    [("BERT", "cls", ""), ("BERT", "mean", "the river: ")]
    + [pytest.param(title, "cls", "", marks=pytest.mark.slow) for title in OTHERS],
)
def test_loss_and_gradients_are_those_of_plain_transformers_classes(
    title, pooling, prompt, tmp_path, texts
):
    folder = BACKBONES[title].save(tmp_path / "encoder", texts)
    model = with_decoder(folder, pooling)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    start = tokenizer(prompt)["input_ids"][:-1]  # of what the encoder reads, not of what is decoded
    batch = collate(tokenizer, [text[:100] for text in texts[:6]], max_length=48, prompt=prompt)
    loss = model(**batch)["loss"]
    loss.backward()

    with quiet_loading():
        encoder = AutoModel.from_pretrained(folder).double().eval()
        config = AutoConfig.from_pretrained(folder, is_decoder=True, add_cross_attention=True)
        decoder = AutoModelForCausalLM.from_pretrained(folder, config=config).double().eval()
    crossing = {
        name: value for name, value in model.head.state_dict().items() if "crossattention" in name
    }
    assert len(crossing) == 10 * config.num_hidden_layers
    decoder.base_model.load_state_dict(crossing, strict=False)
    log_likelihoods = []
    for whole, left in zip(rows_of(batch), rows_of(batch, "noisy_"), strict=True):
        assert left[: len(start)] == start and (not prompt or whole[1 : len(start)] != start[1:])
        late = encoder(torch.tensor([left])).last_hidden_state
        vector = late[:, :1] if pooling == "cls" else late.mean(1, keepdim=True)  # (1, 1, H)
        logits = decoder(torch.tensor([whole[:-1]]), encoder_hidden_states=vector).logits[0]
        log_likelihoods += log_softmax(logits, -1)[range(len(whole) - 1), whole[1:]]
    expected = -torch.stack(log_likelihoods).mean()
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-8)

    of_decoder = dict(decoder.base_model.named_parameters())
    for name, parameter in encoder.named_parameters():
        if parameter.grad is not None:  # the pooler has none
            summed = parameter.grad + of_decoder[name].grad
            own = model.condenser.encoder.get_parameter(name).grad
            assert torch.allclose(own, summed, rtol=0, atol=1e-8), name

    n_items = (batch["labels"] != -100).sum()
    parts = [{name: part[rows] for name, part in batch.items()} for rows in ([0], [1, 2, 3, 4, 5])]
    added = sum(model(**part, num_items_in_batch=n_items)["loss"].item() for part in parts)
    assert added == pytest.approx(loss.item(), abs=1e-12)


def test_the_seed_fixes_the_decoder_and_no_other_random_number(texts, tmp_path, bert_folder):
    def decoder_of(seed: int) -> torch.Tensor:
        torch.rand(seed + 3)  # whatever was drawn before
        settings = {**SETTINGS, "objective": "tsdae", "seed": seed}
        model, before = masked_lm_from_encoder(str(bert_folder)), torch.get_rng_state()
        make_collator(model, tokenizer, CondenserTrainingArguments(str(tmp_path), **settings))
        assert torch.equal(torch.get_rng_state(), before)
        drawn = [p for n, p in model.head.named_parameters() if "crossattention" in n]
        return torch.cat([parameter.flatten() for parameter in drawn])

    tokenizer = AutoTokenizer.from_pretrained(bert_folder)
    first = decoder_of(1)
    assert torch.equal(decoder_of(1), first) and not torch.equal(decoder_of(2), first)


def test_an_evaluation_after_the_training_is_refused(texts, tmp_path, bert_folder):
    arguments = CondenserTrainingArguments(str(tmp_path), **SETTINGS, objective="tsdae")
    model = masked_lm_from_encoder(str(bert_folder))
    trainer = CondenserTrainer(model, arguments, train_dataset=texts, eval_dataset=texts[:9])
    assert trainer.evaluate()["eval_loss"] > 1
    trainer.train()
    with pytest.raises(ValueError, match="removed when the training ended: make a new trainer"):
        trainer.evaluate()


def test_an_encoder_without_a_decoder_is_refused(tmp_path, texts):
    folder = BACKBONES["DistilBERT"].save(tmp_path / "encoder", texts)
    with pytest.raises(
        ValueError, match="model_type 'distilbert'.*bert, camembert, electra, ernie, rob"
    ):
        with_decoder(folder)
