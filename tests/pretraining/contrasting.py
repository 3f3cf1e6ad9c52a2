"""One training step of a contrastive trainer, and the same step with every activation held."""

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainingArguments, set_seed

from modeling_condenser import CondenserDataCollator, condenser_from_encoder
from modeling_condenser.packing import use_packing
from modeling_condenser.pretraining.blocks import BlockBuilder
from modeling_condenser.pretraining.contrast import Contrast
from modeling_condenser.pretraining.contrastive_trainer import ContrastiveTrainer
from modeling_condenser.pretraining.gradient_cache import put_back, split_batch
from modeling_condenser.pretraining.spans import (
    SpanBuilder,
    SpanPairCollator,
    SpanPairs,
    build_cut_texts,
)

N_DOCUMENTS = 6
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def make_pairs(texts: list[str], folder: Path) -> SpanPairs:
    """Pairs of spans for the tokenizer of a folder."""
    blocks = BlockBuilder(AutoTokenizer.from_pretrained(folder), max_length=24)
    documents = Dataset.from_dict({"text": list(texts)})
    return SpanPairs(build_cut_texts(documents, SpanBuilder(blocks))[0], seed=0)


def make_trainer(
    folder: Path,
    encoder: Path,
    pairs: SpanPairs,
    *,
    dropout: bool = True,
    packed: bool = False,
    contrast: Contrast | None = None,
    **settings: Any,
) -> ContrastiveTrainer:
    """A trainer of a tiny encoder, with weights large enough that vectors differ."""
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    changes = None if dropout else NO_DROPOUT
    set_seed(1)
    model = condenser_from_encoder(str(encoder), config_changes=changes)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(0.2 * torch.randn_like(parameter))
    if packed:
        use_packing(model)
    chunk_size = settings.pop("cache_chunk_size", None)
    arguments = TrainingArguments(
        **{
            "output_dir": str(folder),
            "per_device_train_batch_size": N_DOCUMENTS,
            "dataloader_drop_last": True,
            "remove_unused_columns": False,
            "report_to": "none",
            "disable_tqdm": True,
            "use_cpu": True,
            **settings,
        }
    )
    return ContrastiveTrainer(
        model=model,
        args=arguments,
        train_dataset=pairs,
        data_collator=SpanPairCollator(
            CondenserDataCollator(tokenizer, max_length=32, packed=packed)
        ),
        processing_class=tokenizer,
        contrast=contrast or Contrast("cosine", 0.1),
        weight=0.7,
        cache_chunk_size=chunk_size,
    )


def one_batch(trainer: ContrastiveTrainer) -> dict[str, torch.Tensor]:
    return trainer.data_collator(trainer.train_dataset.__getitems__(list(range(N_DOCUMENTS))))


def step(
    trainer: ContrastiveTrainer, *, seed: int = 5
) -> tuple[float, dict[str, torch.Tensor], torch.Tensor]:
    """Loss, gradients, and the random state after a training step."""
    batch = one_batch(trainer)
    trainer.model.zero_grad()
    torch.manual_seed(seed)
    n_items = (batch["labels"] != -100).sum()
    loss = trainer.training_step(trainer.model, batch, n_items)
    return loss.item(), gradients(trainer.model), torch.get_rng_state()


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_same_gradients(
    found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], *, tolerance: float = 1e-5
) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=tolerance, atol=tolerance, msg=name)


def naive_step(
    trainer: ContrastiveTrainer, chunk_size: int, *, seed: int = 5
) -> tuple[float, dict[str, torch.Tensor], torch.Tensor]:
    """The same step with all activations held: every chunk's graph, one loss, one backward."""
    batch = trainer._prepare_inputs(one_batch(trainer))
    model = trainer.model
    model.zero_grad()
    model.train()
    torch.manual_seed(seed)
    chunks = split_batch(batch, chunk_size, seed=int(torch.randint(2**62, ())))
    n_items = (batch["labels"] != -100).sum()
    total, vectors = 0.0, []
    for chunk in chunks:
        with chunk.replaying():
            output = model(**chunk.inputs, num_items_in_batch=n_items)
        total = total + output.loss
        vectors.append(output.cls_late[: len(chunk.rows)])
    loss = total + trainer.weight * trainer.contrast(put_back(vectors, chunks)).loss
    loss.backward()
    return loss.item(), gradients(model), torch.get_rng_state()
