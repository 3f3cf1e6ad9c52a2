"""Training on every backbone lowers both losses; the pre-training stage runs from end to end."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoTokenizer, set_seed

from modeling_condenser import CondenserForPreTraining, condenser_from_encoder
from modeling_condenser.pretraining.collator import CondenserDataCollator
from modeling_condenser.pretraining.examples import check_fit
from modeling_condenser.pretraining.positions import n_positions
from modeling_condenser.pretraining.pretrain import pretrain
from modeling_condenser.publishing.export import export_encoder
from tests.backbones.encoders import BACKBONES, POSITIONS, Backbone


def train(folder: Path, texts: list[str], n_steps: int) -> list[tuple[float, float]]:
    """Losses of the Condenser head and of the late output on a batch, before and after."""
    set_seed(0)
    model = condenser_from_encoder(str(folder), n_head_layers=1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    collator = CondenserDataCollator(tokenizer, max_length=64)
    blocks = tokenizer([text for text in texts if text][:16], add_special_tokens=False)
    batch = collator([{"input_ids": ids, "mask_key": 1} for ids in blocks["input_ids"]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(n_steps + 1):
        output = model(**batch)
        if step in (0, n_steps):
            losses.append((output.head_loss.item(), output.late_loss.item()))
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses


@pytest.mark.slow
def test_two_hundred_steps_halve_both_losses(folder: Path, texts: list[str]) -> None:
    (head_before, late_before), (head_after, late_after) = train(folder, texts, 200)
    assert head_after < head_before / 2
    assert late_after < late_before / 2


def test_twenty_steps_lower_both_losses(folder: Path, texts: list[str]) -> None:
    (head_before, late_before), (head_after, late_after) = train(folder, texts, 20)
    assert head_after < 0.9 * head_before
    assert late_after < 0.9 * late_before


def test_as_many_tokens_fit_as_the_encoder_has_positions_for(backbone: Backbone) -> None:
    encoder = AutoModel.from_config(backbone.config()).eval()
    assert n_positions(encoder) == POSITIONS
    assert torch.isfinite(encoder(torch.full((1, POSITIONS), 7)).last_hidden_state).all()
    if backbone.title not in ("DeBERTa-v2", "DeBERTa-v3", "ModernBERT"):  # they know distances only
        with pytest.raises((IndexError, RuntimeError)):
            encoder(torch.full((1, POSITIONS + 1), 7))


def test_a_tokenizer_of_another_convention_is_refused(folder: Path, texts: list[str]) -> None:
    """RoBERTa and its kin pad with 1 and count positions from behind it; BERT's pads with 0."""
    model = condenser_from_encoder(str(folder))
    own = AutoTokenizer.from_pretrained(folder)
    check_fit(own, model, 64)
    with pytest.raises(ValueError, match="max_length is 65, but the encoder has positions for 64"):
        check_fit(own, model, 65)
    other = BACKBONES["BERT" if own.pad_token_id else "RoBERTa"].tokenizer(texts)
    model.resize_token_embeddings(1000)
    with pytest.raises(ValueError, match=r"pads with token \d, the model with \d: they do not"):
        check_fit(other, model, 64)


def run_stage(folder: Path, corpus_file: Path, out: Path) -> None:
    settings = {
        "encoder": str(folder),
        "corpus": str(corpus_file),
        "output_dir": str(out),
        "max_length": 64,
        "max_steps": 2,
        "per_device_train_batch_size": 4,
        "use_cpu": True,
        "logging_steps": 1,
        "save_strategy": "no",
    }
    trained = pretrain(settings)
    exported = export_encoder(trained, out / "encoder")
    batch = AutoTokenizer.from_pretrained(exported)(["a river"], return_tensors="pt")
    late = CondenserForPreTraining.from_pretrained(trained).eval().encode(**batch)[0]
    assert torch.equal(AutoModel.from_pretrained(exported).eval()(**batch).last_hidden_state, late)


@pytest.mark.slow
def test_the_pretraining_stage_runs_on_every_backbone(
    folder: Path, corpus_file: Path, tmp_path: Path
) -> None:
    run_stage(folder, corpus_file, tmp_path / "run")


def test_the_pretraining_stage_runs_on_modernbert(
    texts: list[str], corpus_file: Path, tmp_path: Path
) -> None:
    folder = BACKBONES["ModernBERT"].save(tmp_path / "encoder", texts)
    run_stage(folder, corpus_file, tmp_path / "run")
