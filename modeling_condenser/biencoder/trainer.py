"""Train on the examples: token batches, batches without duplicates, and the trainer."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformerTrainer
from sentence_transformers.base.sampler import DefaultBatchSampler, NoDuplicatesBatchSampler
from sentence_transformers.sentence_transformer.training_args import BatchSamplers
from torch.utils.data import SequentialSampler
from transformers import (
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import TrainOutput

from modeling_condenser.hub.trainer import WholeTrainer
from modeling_condenser.repository.contract import EncodingContract

from .recipe import FinetuningRecipe
from .training_data import LABEL, DrawnNegatives


@dataclass
class LengthCollator:
    """Tokenizes a batch; queries and passages are truncated to their own maximum lengths.

    sentence-transformers has one length for all columns before version 6.2.

    Attributes:
        tokenizer: of the encoder.
        contract: gives the lengths, and whether segment ids are passed.
        valid_label_columns: the trainer asks a collator for it.
    """

    tokenizer: PreTrainedTokenizerBase
    contract: EncodingContract
    valid_label_columns: list[str] = field(default_factory=lambda: [LABEL])

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Make a batch.

        Args:
            examples: B rows of text columns and, for some objectives, `label` (numbers).

        Returns:
            For each text column `<column>_input_ids` and `<column>_attention_mask`, (B, T) int64,
            in the order of the columns; and `label`, (B,) or (B, n) float32.
        """
        batch: dict[str, torch.Tensor] = {}
        for column in examples[0]:
            values = [example[column] for example in examples]
            if column == LABEL:
                batch[LABEL] = torch.tensor(values, dtype=torch.float32)
                continue
            is_query = column == "query"
            contract = self.contract
            encoded = self.tokenizer(
                values,
                padding=True,
                truncation=True,
                max_length=contract.query_max_length if is_query else contract.passage_max_length,
                return_tensors="pt",
                return_attention_mask=True,
                return_token_type_ids=contract.token_type_ids,
            )
            batch |= {f"{column}_{name}": tensor for name, tensor in encoded.items()}
        return batch


class DistinctBatches(DefaultBatchSampler):
    """Batches that contain no text twice, also where several devices share their negatives.

    The library's `NoDuplicatesBatchSampler` does this for the batch of one device. Here it makes
    the batch of all devices, which is then split.

    Args:
        dataset: the training set.
        n_devices: number of devices that share their negatives; each takes every n-th batch.
        batch_size: of one device.
        **arguments: as for `NoDuplicatesBatchSampler`.
    """

    def __init__(self, dataset: Any, *, n_devices: int, batch_size: int, **arguments: Any):
        super().__init__(dataset, batch_size=batch_size, **arguments)
        self.n_devices = n_devices
        self._joint = NoDuplicatesBatchSampler(
            dataset, batch_size=n_devices * batch_size, **arguments
        )

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self._joint.set_epoch(epoch)

    def __iter__(self) -> Iterator[list[int]]:
        for rows in self._joint:
            for start in range(0, len(rows), self.batch_size):
                yield rows[start : start + self.batch_size]

    def __len__(self) -> int:
        return len(self._joint) * self.n_devices


def sequential_batches(dataset: Any, **arguments: Any) -> DefaultBatchSampler:
    """Batches in the order of the data."""
    return DefaultBatchSampler(SequentialSampler(dataset), **arguments)


def choose_batch_sampler(
    recipe: FinetuningRecipe, requested: BatchSamplers | None, *, seed: int, n_devices: int
) -> BatchSamplers | Callable[..., DefaultBatchSampler]:
    """The batch sampler for an objective, as the trainer's argument `batch_sampler`.

    Args:
        recipe: checked.
        requested: that argument in the recipe; None if the recipe does not set it.
        seed: decides the order of the examples.
        n_devices: number of processes that train together.

    Raises:
        ValueError: the requested sampler does not fit the objective or the order.
    """
    if recipe.objective == "contrastive":
        if requested not in (None, BatchSamplers.NO_DUPLICATES):
            raise ValueError(
                f"batch_sampler is {getattr(requested, 'value', requested)!r}, but objective "
                "contrastive needs 'no_duplicates': a text that is in a batch twice would be its "
                "own negative."
            )
        n_joint = n_devices if recipe.gather_across_devices else 1

        def distinct_batches(dataset: Any, **arguments: Any) -> DefaultBatchSampler:
            # The trainer of sentence-transformers 6.0 does not pass its seed.
            return DistinctBatches(dataset, n_devices=n_joint, **{**arguments, "seed": seed})

        return distinct_batches
    if recipe.order == "sequential":
        if requested is not None:
            raise ValueError("batch_sampler contradicts order: sequential; remove one of them.")
        return sequential_batches
    return requested or BatchSamplers.BATCH_SAMPLER


class RetrieverTrainer(WholeTrainer, SentenceTransformerTrainer):
    """sentence-transformers' trainer with `WholeTrainer`'s checkpoints, resume and pushes.

    Args:
        repository: writes the encoder's repository into a folder; gets the trainer's state and
            the repository's name on the Hub.
        drawn: draws the negatives of each epoch; None if there are none to draw.
        **arguments: as for `SentenceTransformerTrainer`.
    """

    def __init__(
        self,
        *,
        repository: Callable[[Path, TrainerState, str | None], None] | None = None,
        drawn: DrawnNegatives | None = None,
        **arguments: Any,
    ):
        self._repository = repository
        super().__init__(**arguments)
        if drawn is not None:
            self.add_callback(_SetEpoch(drawn))

    def train(  # type: ignore[override]
        self, resume_from_checkpoint: str | bool | None = None, **arguments: Any
    ) -> TrainOutput:
        """Train, from the last complete checkpoint of `output_dir` if there is one.

        Args:
            resume_from_checkpoint: a checkpoint folder; a Hub repository that was pushed with
                `hub_strategy="checkpoint"`; None or True for the last complete one of
                `output_dir`; False to start anew.
            **arguments: as for `Trainer.train`.
        """
        resume = self.find_resume(resume_from_checkpoint)
        if resume is not None:
            self.state = TrainerState.load_from_json(str(Path(resume, TRAINER_STATE_NAME)))
            if self.state.global_step >= self.state.max_steps:  # the library would train one more
                self._load_from_checkpoint(resume)
                return TrainOutput(self.state.global_step, 0.0, {})
        return super().train(resume_from_checkpoint=resume, **arguments)

    def write_repository(self, folder: Path, checkpoint: Path | None) -> None:
        """Fill a folder with what the `repository` argument writes.

        Raises:
            ValueError: there is no such argument, so nothing can be pushed.
        """
        if self._repository is None:
            raise ValueError(
                "RetrieverTrainer has no `repository`, so it cannot push: pass a function that "
                "writes the repository, as `finetune` does, or set push_to_hub=False."
            )
        if self.is_world_process_zero():
            self._repository(folder, self.state, self.hub_model_id)

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Add nothing: the library's card would read all of the data, and is not used."""

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save the modules without the library's model card."""
        self.model.save_pretrained(str(output_dir or self.args.output_dir), create_model_card=False)


class _SetEpoch(TrainerCallback):
    def __init__(self, drawn: DrawnNegatives):
        self.drawn = drawn

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.drawn.set_epoch(int(state.epoch or 0))
