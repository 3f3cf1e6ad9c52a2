"""One training step of a contrastive trainer, and the same step with every activation held."""

from pathlib import Path
from typing import Any

import torch

from modeling_condenser import (
    CondenserTrainingArguments,
    ContrastiveTrainer,
    condenser_from_encoder,
)
from modeling_condenser.pretraining.contrastive_trainer import put_back, split_batch
from tests.models import gradients

N_DOCUMENTS = 6


def build_trainer(
    folder: Path, encoder: Path, texts: list[str], *, dropout: float = 0.1, **settings: Any
) -> ContrastiveTrainer:
    """A trainer of an encoder with large weights."""
    torch.manual_seed(1)
    model = condenser_from_encoder(str(encoder))
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = dropout
    defaults = {
        "objective": "cocondenser",
        "max_length": 32,
        "span_length": 24,
        "contrastive_weight": 0.7,
        "similarity": "cosine",
        "temperature": 0.1,
        "per_device_train_batch_size": N_DOCUMENTS,
        "use_cpu": True,
    }
    arguments = CondenserTrainingArguments(str(folder), **{**defaults, **settings})
    documents = [{"text": text} for text in texts[:40]]
    return ContrastiveTrainer(model, arguments, train_dataset=documents)


def one_batch(trainer: ContrastiveTrainer) -> dict[str, torch.Tensor]:
    return trainer.data_collator(trainer.train_dataset.__getitems__(list(range(N_DOCUMENTS))))


def step(trainer: ContrastiveTrainer, *, seed: int = 5) -> tuple[dict, torch.Tensor]:
    """Loss and gradients by name, and the random state after a training step."""
    batch = one_batch(trainer)
    trainer.model.zero_grad()
    torch.manual_seed(seed)
    n_items = (batch["labels"] != -100).sum()
    loss = trainer.training_step(trainer.model, batch, n_items)
    return {"loss": loss, **gradients(trainer.model)}, random_state(trainer)


def naive_step(trainer: ContrastiveTrainer, chunk_size: int) -> tuple[dict, torch.Tensor]:
    """The same step with all activations held: every chunk's graph, one loss, one backward."""
    batch = trainer._prepare_inputs(one_batch(trainer))
    model = trainer.model
    model.zero_grad()
    model.train()
    torch.manual_seed(5)
    seed = int(torch.randint(2**62, ()))
    chunks = split_batch(batch, chunk_size, seed=seed, packed=trainer.is_packing)
    n_items = (batch["labels"] != -100).sum()
    total, vectors = 0.0, []
    for chunk in chunks:
        with chunk.replaying():
            output = model(**chunk.inputs, num_items_in_batch=n_items)
        total = total + output.loss
        vectors.append(output.cls_late[: len(chunk.rows)])
    loss = total + trainer._contrast_all(put_back(vectors, chunks))
    loss.backward()
    return {"loss": loss.detach(), **gradients(model)}, random_state(trainer)


def random_state(trainer: ContrastiveTrainer) -> torch.Tensor:
    is_on_gpu = trainer.args.device.type == "cuda"
    return torch.cuda.get_rng_state() if is_on_gpu else torch.get_rng_state()
