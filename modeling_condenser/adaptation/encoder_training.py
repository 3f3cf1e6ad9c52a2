"""Train the last layers of an encoder to put its vectors where a map moves them.

The map is a function of the vector alone, so the encoder learns it from any of the collection's
texts, in about a minute, and needs no module of its own: what is saved has the form of the start.
The loss is sentence-transformers' `EmbedDistillLoss` (Kim et al. 2023, EmbedDistill, eq. 7).
"""

from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from datasets import Dataset, Features, List, Value
from sentence_transformers import (
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer import losses
from torch import nn
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from modeling_condenser.encoder_parts import find_layers
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.training.run import LossBar

from .recipe import AdaptationRecipe


class _EncoderTrainer(SentenceTransformerTrainer):
    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Add nothing: the library's card encodes examples, and is not used."""


def train_encoder(
    retriever: Retriever,
    queries: tuple[Sequence[str], np.ndarray],
    passages: tuple[Sequence[str], np.ndarray],
    recipe: AdaptationRecipe,
) -> None:
    """Train the retriever's encoder in place.

    Args:
        retriever: float32, of Transformer and Pooling alone.
        queries, passages: n texts as they are encoded, and the vectors (n, D) that they should get.
        recipe: steps, batch size, learning rate and layers.
    """
    model: Any = retriever.model
    chosen = find_layers(model[0].model)[-recipe.train_layers :]
    model.requires_grad_(False)
    for layer in chosen:
        layer.requires_grad_(True)
    for module in model.modules():  # noise would only blur the targets
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    columns = {"query": list(queries[0]), "passage": list(passages[0])}
    columns["label"] = np.stack([queries[1], passages[1]], axis=1)  # type: ignore[assignment]
    features = {"query": Value("string"), "passage": Value("string")}
    features["label"] = List(List(Value("float32")))  # type: ignore[assignment]
    with TemporaryDirectory() as scratch:
        arguments = SentenceTransformerTrainingArguments(
            scratch,
            max_steps=recipe.train_steps,
            per_device_train_batch_size=recipe.train_batch_size,
            learning_rate=recipe.train_learning_rate,
            warmup_steps=0.1,
            lr_scheduler_type="linear",
            weight_decay=0.0,
            seed=recipe.seed,
            save_strategy="no",
            report_to="none",
            logging_steps=10,
            dataloader_pin_memory=model.device.type == "cuda",
            use_cpu=model.device.type == "cpu",
        )
        trainer = _EncoderTrainer(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_dict(columns, features=Features(features)),
            loss=losses.EmbedDistillLoss(model, distance_metric="cosine"),
        )
        for callback in (ProgressCallback, PrinterCallback):
            trainer.remove_callback(callback)
        trainer.add_callback(LossBar)
        trainer.train()
    model.requires_grad_(True)
    model.eval()
