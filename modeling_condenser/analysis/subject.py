"""What is measured: a model's name or a model in memory in, its parts out."""

import copy
import dataclasses
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.hub.model_folder import CONFIG_FILE, MODULES_FILE, find_model_folder
from modeling_condenser.modeling_condenser import CondenserForMaskedLM, CondenserForPreTraining
from modeling_condenser.publishing.export import resolve_checkpoint, write_repository
from modeling_condenser.repository.contract import CONTRACT_FILE

from .vectors import LateVectors, Vectors, longest_text


@dataclass(frozen=True)
class Subject:
    """A model that is measured.

    Attributes:
        encoder: the plain encoder, whose attention is measured.
        tokenizer: its own.
        vectors: what makes its dense vectors.
        max_length: longest text in tokens.
        condenser: the whole model, where it has a head.
        folder: its files, where fine-tuning can start from them.
    """

    encoder: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    vectors: Vectors
    max_length: int
    condenser: CondenserForPreTraining | None = None
    folder: Path | None = None

    @classmethod
    def of_model(
        cls, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, max_length: int
    ) -> "Subject":
        """A `CondenserForPreTraining` or `CondenserForMaskedLM` in memory.

        Raises:
            ValueError: it is another model.
        """
        if not isinstance(model, CondenserForMaskedLM):
            raise ValueError(
                f"Came a {type(model).__name__}, expected a CondenserForPreTraining or a "
                "CondenserForMaskedLM, whose encoder is known."
            )
        encoder: Any = model.condenser.encoder
        longest = longest_text(encoder, tokenizer, max_length)
        return cls(
            encoder,
            tokenizer,
            LateVectors(encoder, tokenizer, max_length=longest),
            longest,
            model if isinstance(model, CondenserForPreTraining) else None,
        )

    def save_encoder(self, folder: Path) -> Path:
        """The folder of the encoder, for fine-tuning: its own, or an export to `folder`."""
        if self.folder is not None:
            return self.folder
        assert isinstance(self.vectors, LateVectors)
        folder.mkdir(parents=True)
        # Copies, because saving changes configuration and tokenizer.
        encoder, tokenizer = copy.deepcopy(self.encoder), copy.deepcopy(self.tokenizer)
        write_repository(folder, encoder, tokenizer, self.vectors.contract, [])
        return folder


def open_subject(name: str | Path, *, max_length: int) -> Subject:
    """Open a model to measure.

    Args:
        name: Hub name or folder of a checkpoint of ours, an export, a retriever, or any encoder,
            of which CLS is the vector where it does not say another.
        max_length: longest text in tokens; a model's own limit goes before it.

    Raises:
        FileNotFoundError: there is no such model.
        ValueError: it does not fit; the message says why.
    """
    folder = find_model_folder(resolve_checkpoint(name))
    config_file = folder / CONFIG_FILE
    if not config_file.is_file() and not (folder / MODULES_FILE).is_file():
        raise FileNotFoundError(
            f"{name} holds no model: expected a folder with {CONFIG_FILE} in it, or a run."
        )
    config = json.loads(config_file.read_text(encoding="utf-8")) if config_file.is_file() else {}
    if config.get("model_type") == "condenser":
        has_head = "CondenserForMaskedLM" not in (config.get("architectures") or ())
        opened: Any = CondenserForPreTraining if has_head else CondenserForMaskedLM
        model = opened.from_pretrained(folder).eval().to(_device())
        return Subject.of_model(model, AutoTokenizer.from_pretrained(folder), max_length=max_length)
    return _open_encoder(folder, max_length)


def _open_encoder(folder: Path, max_length: int) -> Subject:
    is_said = any((folder / file).is_file() for file in (CONTRACT_FILE, MODULES_FILE))
    retriever = Retriever(folder) if is_said else Retriever(folder, pooling="cls")
    first: Any = retriever.model[0]
    longest = longest_text(first.model, retriever.model.tokenizer, max_length)
    contract = retriever.contract
    retriever.contract = dataclasses.replace(
        contract,
        query_max_length=min(contract.query_max_length, longest),
        passage_max_length=min(contract.passage_max_length, longest),
    )
    return Subject(first.model, retriever.model.tokenizer, retriever, longest, folder=folder)


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@contextmanager
def undisturbed(model: torch.nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and leave it and all random states as they were."""
    modes = [(module, module.training) for module in model.modules()]
    with undisturbed_randomness():
        model.eval()
        try:
            yield
        finally:
            for module, was_training in modes:
                module.training = was_training


@contextmanager
def undisturbed_randomness() -> Iterator[None]:
    """Leave the global generators of Python, NumPy and torch as they were."""
    states = random.getstate(), np.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=list(devices)):
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
