"""TSDAE: deletion, the loss against plain transformers classes, and runs of it."""

import json
from itertools import chain

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from torch.nn.functional import log_softmax
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
)

from modeling_condenser import CondenserDataCollator, CondenserForMaskedLM
from modeling_condenser.hub.quiet_loading import quiet_loading
from modeling_condenser.pretraining import trainer as trainer_module
from modeling_condenser.pretraining.blocks import KeyedBlocks
from modeling_condenser.pretraining.pretrain import open_model, pretrain
from modeling_condenser.pretraining.recipe import PretrainingRecipe
from modeling_condenser.pretraining.tsdae import DenoisingCollator
from modeling_condenser.publishing.export import export_encoder
from tests.backbones.encoders import BACKBONES


@pytest.fixture
def tokenizer(bert_folder):
    return AutoTokenizer.from_pretrained(bert_folder)


@pytest.fixture
def settings(tmp_path, bert_folder, corpus_file) -> dict:
    return {
        "objective": "tsdae",
        "encoder": str(bert_folder),
        "corpus": str(corpus_file),
        "output_dir": str(tmp_path / "run"),
        "max_length": 32,
        "per_device_train_batch_size": 8,
        "max_steps": 4,
        "save_steps": 2,
        "logging_steps": 1,
        "learning_rate": 1e-3,
        "disable_tqdm": True,
        "use_cpu": True,
    }


def collate(tokenizer, texts, *, probability=0.6, max_length=64, seed=0, epoch=0):
    """A batch of the texts, each a block."""
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    blocks = KeyedBlocks(Dataset.from_dict({"input_ids": ids}), seed=seed)
    blocks.set_epoch(epoch)
    collator = DenoisingCollator(
        CondenserDataCollator(tokenizer, max_length=max_length), deletion_probability=probability
    )
    return collator(blocks.__getitems__(list(range(len(texts)))))


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


def test_deletion_depends_on_seed_epoch_and_block_alone(tokenizer, texts):
    texts = [text[:150] for text in texts[:20]]
    together = rows_of(collate(tokenizer, texts), "noisy_")
    assert rows_of(collate(tokenizer, texts[:3]), "noisy_") == together[:3]
    assert rows_of(collate(tokenizer, texts, epoch=1), "noisy_") != together
    assert rows_of(collate(tokenizer, texts, seed=1), "noisy_") != together
    assert rows_of(collate(tokenizer, texts, probability=0.0), "noisy_") == rows_of(
        collate(tokenizer, texts)
    )


def test_one_random_word_is_kept_of_a_block_that_would_lose_all(tokenizer):
    batch = collate(tokenizer, ["the old river"] * 300, probability=1.0)
    kept = [tokenizer.decode(row[1:-1]) for row in rows_of(batch, "noisy_")]
    counts = [kept.count(word) for word in ("the", "old", "river")]
    assert sum(counts) == 300 and min(counts) > 70


@pytest.mark.parametrize("title", ["BERT", "CamemBERT", "ELECTRA", "RoBERTa", "XLM-RoBERTa"])
def test_loss_and_gradients_are_those_of_plain_transformers_classes(title, tmp_path, texts):
    folder = BACKBONES[title].save(tmp_path / "encoder", texts)
    recipe = PretrainingRecipe(str(folder), "", objective="tsdae")
    model = open_model(recipe).double().eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    batch = collate(tokenizer, [text[:100] for text in texts[:6]], max_length=48)
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
    decoder.load_state_dict(crossing, strict=False)
    log_likelihoods = []
    for whole, left in zip(rows_of(batch), rows_of(batch, "noisy_"), strict=True):
        vector = encoder(torch.tensor([left])).last_hidden_state[:, :1]  # (1, 1, H)
        logits = decoder(torch.tensor([whole[:-1]]), encoder_hidden_states=vector).logits[0]
        log_likelihoods += log_softmax(logits, -1)[range(len(whole) - 1), whole[1:]]
    expected = -torch.stack(log_likelihoods).mean()
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-8)

    of_decoder = dict(decoder.base_model.named_parameters())
    for name, parameter in encoder.named_parameters():
        if not name.startswith("pooler."):
            summed = parameter.grad + of_decoder[name].grad
            own = model.condenser.encoder.get_parameter(name).grad
            assert torch.allclose(own, summed, rtol=0, atol=1e-8), name


def test_micro_batches_add_up_to_the_loss_of_their_batch(tokenizer, texts, bert_folder):
    model = open_model(PretrainingRecipe(str(bert_folder), "", objective="tsdae")).double().eval()
    batch = collate(tokenizer, [texts[0][:40], texts[1][:150], texts[2][:90]])
    n_items = (batch["labels"] != -100).sum()
    parts = [{name: part[rows] for name, part in batch.items()} for rows in ([0], [1, 2])]
    summed = sum(model(**part, num_items_in_batch=n_items)["loss"].item() for part in parts)
    assert summed == pytest.approx(model(**batch)["loss"].item(), abs=1e-12)


def test_a_run_learns_to_reconstruct_and_its_encoder_opens_anywhere(
    settings, tmp_path, bert_folder
):
    model = pretrain({**settings, "max_steps": 30, "save_strategy": "no", "learning_rate": 5e-3})
    run = tmp_path / "run"
    losses = [e["loss"] for e in json.loads((run / "log.json").read_text()) if "loss" in e]
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.3

    assert not any(name.startswith("head.") for name in load_file(model / "model.safetensors"))
    trained = CondenserForMaskedLM.from_pretrained(model)
    start = AutoModelForMaskedLM.from_pretrained(bert_folder).state_dict()
    name = "predictions.transform.dense.weight"
    assert torch.equal(trained.lm_head.state_dict()[name], start[f"cls.{name}"])
    name = "embeddings.word_embeddings.weight"
    assert not torch.equal(trained.condenser.encoder.state_dict()[name], start[f"bert.{name}"])
    exported = AutoModel.from_pretrained(export_encoder(run, tmp_path / "encoder")).state_dict()
    assert all(
        torch.equal(exported[name], value)
        for name, value in trained.condenser.encoder.state_dict().items()
        if not name.startswith("pooler.")
    )
    # The next stage starts from it, with its LM head.
    again = open_model(PretrainingRecipe(str(model), "", objective="tsdae"))
    head = again.head.state_dict()["cls.predictions.transform.dense.weight"]
    assert torch.equal(head, start["cls.predictions.transform.dense.weight"])


def test_a_run_sees_the_blocks_and_tokens_of_other_objectives(settings, tmp_path):
    facts = []
    for objective in ("tsdae", "mlm"):
        out = tmp_path / objective
        pretrain({**settings, "objective": objective, "output_dir": str(out)})
        facts.append(json.loads((out / "run.json").read_text()))
    own, others = facts
    assert own["objective"] == "tsdae" and own["train_seconds"] > 0
    assert own["blocks_sha256"] == others["blocks_sha256"]
    assert own["tokens_seen"] == others["tokens_seen"] > 0


class Interruption(Exception):
    pass


def test_an_interrupted_run_ends_bit_equal(settings, tmp_path, monkeypatch):
    whole = pretrain({**settings, "output_dir": str(tmp_path / "whole")})
    step = trainer_module.CondenserTrainer.training_step

    def interrupted_step(self, *args, **kwargs):
        if self.state.global_step == 3:
            raise Interruption
        return step(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(trainer_module.CondenserTrainer, "training_step", interrupted_step)
        with pytest.raises(Interruption):
            pretrain(settings)
    # A checkpoint holds what of the decoder is not tied, and opens as masked LM all the same.
    checkpoint = tmp_path / "run" / "checkpoint-2"
    of_decoder = [n for n in load_file(checkpoint / "model.safetensors") if n.startswith("head.")]
    assert of_decoder and all("crossattention" in n or ".cls." in n for n in of_decoder)
    CondenserForMaskedLM.from_pretrained(checkpoint)

    resumed = pretrain(settings)
    first, second = (load_file(model / "model.safetensors") for model in (whole, resumed))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mlm_probability": 0.15}, "mlm_probability has no effect on objective tsdae"),
        ({"late_mlm": False}, "late_mlm has no effect on objective tsdae"),
        ({"packed": True}, "packed has no effect on objective tsdae"),
        ({"cache_chunk_size": 4}, "cache_chunk_size is only for objective cocondenser and ict"),
        ({"deletion_probability": 1.5}, "deletion_probability is 1.5, but must lie between 0"),
        ({"objective": "mlm", "deletion_probability": 0.5}, "only for objective tsdae"),
        ({"encoder": "DISTILBERT"}, "model_type 'distilbert'.*bert, camembert, electra, roberta"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(
    settings, tmp_path, texts, change, message
):
    if change.get("encoder"):
        change = {"encoder": str(BACKBONES["DistilBERT"].save(tmp_path / "encoder", texts))}
    with pytest.raises(ValueError, match=message):
        pretrain({**settings, **change})
    assert not (tmp_path / "run").exists()
