"""Run a fine-tuning recipe: the output folder holds the retriever, its log and its record."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.sampler import DefaultBatchSampler, NoDuplicatesBatchSampler
from sentence_transformers.sentence_transformer.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling as PoolingModule
from torch.utils.data import RandomSampler, SequentialSampler
from transformers import PreTrainedTokenizerBase

from modeling_condenser.encoder_parts import settle_pooler
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.hub.contract import EncodingContract, Pooling
from modeling_condenser.hub.export import write_repository
from modeling_condenser.hub.model_folder import find_model_folder, is_checkpoint
from modeling_condenser.hub.provenance import FINETUNING, read_provenance, read_stage
from modeling_condenser.hub.trainer import WholeTrainer
from modeling_condenser.runs.training import run_training

from .data import LABEL, TrainingData, load_training_data
from .objectives import make_loss
from .recipe import FinetuningRecipe


def finetune(settings: Mapping[str, Any]) -> Path:
    """Run a fine-tuning recipe, or resume it from its last complete checkpoint.

    Encoder and data are opened and checked before the output folder is created. A finished folder
    is left unchanged.

    Args:
        settings: fields of `FinetuningRecipe` and of `SentenceTransformerTrainingArguments`.

    Returns:
        The folder of the retriever, within the output folder.

    Raises:
        ValueError: a setting or the data does not fit.
        FileNotFoundError: the encoder, the collection or a file does not exist.
    """

    def make_trainer(recipe: FinetuningRecipe, arguments: Any) -> RetrieverTrainer:
        encoder = open_encoder(recipe.encoder, recipe.contract_changes)
        data = load_training_data(recipe, encoder.contract, seed=arguments.seed)
        return RetrieverTrainer(recipe, encoder, data, arguments)

    return run_training(
        settings,
        make_trainer,
        FinetuningRecipe,
        SentenceTransformerTrainingArguments,
        dataloader_pin_memory=torch.cuda.is_available(),
        report_to="none",
        # A recipe that sets save_steps wants checkpoints.
        save_strategy="steps" if "save_steps" in settings else "no",
    )


def open_encoder(name: str, changes: Mapping[str, Any]) -> Retriever:
    """Load an encoder to fine-tune, in float32; `changes` are fields of `EncodingContract`.

    Its model has two modules, the transformer and the pooling. It does not normalise its vectors;
    the loss does, where the similarity is cosine.
    """
    folder = find_model_folder(name)
    if is_checkpoint(folder):
        raise ValueError(
            f"{folder} is a Condenser checkpoint: use `condenser export` first, and fine-tune that."
        )
    opened = Retriever(folder, **changes)
    modules: list[Any] = list(opened.model)
    kinds, pooling = [type(module) for module in modules], opened.contract.pooling
    is_plain = kinds[:2] == [Transformer, PoolingModule] and kinds[2:] in ([], [Normalize])
    if not is_plain or pooling not in get_args(Pooling):
        raise ValueError(
            f"{folder} has the modules {', '.join(kind.__name__ for kind in kinds)} and the "
            f"pooling {pooling!r}; expected Transformer, Pooling ({', '.join(get_args(Pooling))}) "
            "and possibly Normalize: state another pooling, or use sentence-transformers itself."
        )
    settle_pooler(modules[0].model)
    del opened.model[2:]
    return opened


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
