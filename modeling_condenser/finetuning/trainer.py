"""Train on the examples: token batches, batches without duplicates, and the trainer."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.sampler import DefaultBatchSampler, NoDuplicatesBatchSampler
from torch.utils.data import RandomSampler, SequentialSampler
from transformers import PreTrainedTokenizerBase

from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.hub.contract import EncodingContract
from modeling_condenser.hub.export import write_repository
from modeling_condenser.hub.provenance import FINETUNING, read_provenance, read_stage
from modeling_condenser.hub.trainer import WholeTrainer

from .data import LABEL, TrainingData
from .objectives import make_loss
from .recipe import FinetuningRecipe


@dataclass
class LengthCollator:
    """Tokenizes a batch; queries and passages are truncated to their own maximum lengths.

    sentence-transformers has one length for all columns before version 6.2.
    """

    tokenizer: PreTrainedTokenizerBase
    contract: EncodingContract
    valid_label_columns: tuple[str, ...] = (LABEL,)  # the trainer asks a collator for it

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Make a batch of B rows of text columns and, for some objectives, `label` (numbers).

        Returns:
            For each text column `<column>_input_ids` and `<column>_attention_mask`, (B, T) int64,
            in the order of the columns; and `label`, (B,) or (B, n) float32.
        """
        contract = self.contract
        batch: dict[str, torch.Tensor] = {}
        for column in examples[0]:
            values = [example[column] for example in examples]
            if column == LABEL:
                batch[LABEL] = torch.tensor(values, dtype=torch.float32)
                continue
            is_query = column == "query"
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


def sample_batches(
    recipe: FinetuningRecipe, run_seed: int, dataset: Dataset, **options: Any
) -> DefaultBatchSampler:
    """Sample batches in the recipe's order; the options are those of `DefaultBatchSampler`.

    A text that is in a batch of contrast twice would be its own negative.
    """
    if recipe.objective == "contrastive":
        # sentence-transformers 6.0 passes 0 instead of its seed.
        return NoDuplicatesBatchSampler(dataset, **{**options, "seed": run_seed})
    shuffled = RandomSampler(dataset, generator=options["generator"])
    sampler = SequentialSampler(dataset) if recipe.order == "sequential" else shuffled
    return DefaultBatchSampler(sampler, **options)


class RetrieverTrainer(WholeTrainer, SentenceTransformerTrainer):
    """sentence-transformers' trainer with `WholeTrainer`'s checkpoints, resume and pushes."""

    def __init__(
        self,
        recipe: FinetuningRecipe,
        encoder: Retriever,
        data: TrainingData,
        arguments: SentenceTransformerTrainingArguments,
    ):
        self.encoder = encoder
        self.facts = {"objective": recipe.objective, **data.facts}
        arguments.batch_sampler = partial(sample_batches, recipe, arguments.seed)
        super().__init__(
            model=encoder.model,
            args=arguments,
            train_dataset=data.examples,
            loss=make_loss(recipe, encoder.model),
            data_collator=LengthCollator(encoder.model.tokenizer, encoder.contract),
        )
        self.drawn_anew = [data.drawn] if data.drawn else []

    def write_repository(self, folder: Path, checkpoint: Path | None) -> None:
        """Write the encoder's repository; the checkpoint is not needed."""
        if not self.is_world_process_zero():
            return
        own = read_stage(Path(str(self.args.output_dir)), FINETUNING)
        transformer: Any = self.encoder.model[0]
        write_repository(
            folder,
            transformer.model,
            copy.deepcopy(transformer.tokenizer),  # which is changed, and training may continue
            self.encoder.contract,
            [*read_provenance(self.encoder.folder), *([self.describe_run(own)] if own else [])],
            name=self.hub_model_id,
        )

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Add nothing: the library's card would read all of the data, and is not used."""

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the modules without the library's model card."""
        if self.args.should_save:
            folder = output_dir or self.args.output_dir
            self.model.save_pretrained(str(folder), create_model_card=False)
