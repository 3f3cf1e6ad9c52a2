"""The Hugging Face Trainer with a Condenser's data, losses, log and repository."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from datasets import Dataset, IterableDataset
from torch.utils.data import DataLoader
from transformers import TrainingArguments
from transformers.trainer_pt_utils import find_batch_size

from modeling_condenser.encoder_files import find_tokenizer
from modeling_condenser.files.run_folder import hash_data
from modeling_condenser.losses import IGNORE_INDEX, bag_sizes
from modeling_condenser.packing import unpack
from modeling_condenser.publishing import provenance
from modeling_condenser.training.trainer import (
    MODEL_FINGERPRINT,
    ResumableTrainer,
    check_one_device,
)

from .arguments import CondenserTrainingArguments, with_objective
from .batches import TokenBudgetBatches
from .data import KeyedBlocks
from .examples import (
    fingerprint_start,
    make_builder,
    make_collator,
    make_examples,
    packs,
    prepare_model,
)
from .objectives import HEAD_SETTINGS, OBJECTIVES
from .probe import probe
from .rows import as_rows, fingerprint_stream
from .streams import PLACES, BlockStream, StreamCollator

_NO_LOGITS = "only masked tokens have logits, which are not kept. Evaluations log their losses."
_OWN_DATA = "give it a model of from_encoder(...); it makes its own batches."
_HALF = "it would leave half precision after an evaluation. bf16 and fp16 hold in evaluations, too."
_REFUSED = {  # of `Trainer` and of `TrainingArguments`, unless they have their default
    "compute_metrics": _NO_LOGITS,
    "preprocess_logits_for_metrics": _NO_LOGITS,
    "compute_loss_func": "it would replace all losses, that of the head among them.",
    "model_init": _OWN_DATA,
    "data_collator": _OWN_DATA,
    "label_smoothing_factor": "the Trainer would drop all losses but the late one.",
    "neftune_noise_alpha": "its noise depends on the length of a row, which holds many blocks.",
    "bf16_full_eval": _HALF,
    "fp16_full_eval": _HALF,
    "enable_jit_checkpoint": "a killed training would end as if finished. Set save_steps.",
    "auto_find_batch_size": "set the batch size, tokens_per_batch or cache_chunk_size.",
    "ignore_data_skip": "a training continues with the batches that follow.",
    "train_sampling_strategy": "blocks are shuffled, and packed batches have no padding.",
}
_PROBED = ("head_accuracy", "late_accuracy", "swap_cost")


class _Moment(NamedTuple):
    """A point of the training."""

    seconds: float  # of training
    step: int
    n_tokens: int  # seen by all processes


class CondenserTrainer(ResumableTrainer):
    """Trains a `CondenserForPreTraining` (or a `CondenserForMaskedLM`, plain MLM).

    Each log entry also holds

    - `head_loss` and `late_loss`, nats a masked token, and `bow_loss`, nats a block, averaged over
      the steps since the last entry;
    - `head_accuracy`, `late_accuracy` and `swap_cost` (`probe`) of a batch;
    - `seconds` and `tokens_per_second`, without padding, since the last entry.

    Args:
        model: to train.
        args: the objective, and how text becomes blocks and batches; plain `TrainingArguments` get
            the defaults of `CondenserTrainingArguments`.
        train_dataset: text of any kind: a list of strings, or of rows with the column `text`; a
            `Dataset` or `DatasetDict` (its split train); a torch data set of strings or rows; or a
            stream, an `IterableDataset`, which needs `max_steps`. It is tokenized, cut into blocks
            and masked. Rows of `input_ids`, tokenized before, are cut into blocks of equal length.
        eval_dataset: the same, or a mapping of several. A stream is read to its end. Masks and
            pairs are the same in each evaluation, which logs each part of the loss, such as
            `eval_head_loss`, or `eval_NAME_head_loss` of one of several. `evaluate` takes the
            same, and `predict` one data set.
        processing_class: the tokenizer; by default that of the model's checkpoint.
        **kwargs: as for `Trainer`, but the objective has its own `data_collator`.

    Raises:
        ValueError: an argument is not supported, the model has adapters, one process sees several
            GPUs, or model, text and arguments do not fit together.
    """

    args: CondenserTrainingArguments
    is_contrastive = False
    logged_losses: tuple[str, ...] = ("head_loss", "late_loss", "bow_loss")

    def __init__(
        self,
        model: Any,
        args: TrainingArguments,
        *,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        **kwargs: Any,
    ):
        args = with_objective(args)
        kwargs = {name: value for name, value in kwargs.items() if value is not None}
        _check(self, model, args, kwargs)
        if isinstance(eval_dataset, Mapping):
            _check_metric(args, eval_dataset)
        self.record: dict[str, Any] = {"objective": args.objective}
        self.batches: TokenBudgetBatches | None = None
        rows = None
        if train_dataset is not None:
            rows = as_rows(train_dataset, name="train_dataset")
        tokenizer = processing_class or find_tokenizer(model)
        prepare_model(model, tokenizer, args)
        collator = make_collator(model, tokenizer, args)
        if isinstance(rows, IterableDataset):
            train_dataset = BlockStream(rows, make_builder(tokenizer, args, rows), args)
            self.record["stream_fingerprint"] = fingerprint_stream(rows)
            vocabulary = sorted(tokenizer.get_vocab().items())
            self.record["tokenizer_fingerprint"] = hash_data(vocabulary)
        elif rows is not None:
            train_dataset, self.batches, counts = make_examples(rows, tokenizer, args)
            self.record |= counts
        self.record[MODEL_FINGERPRINT] = fingerprint_start(model)
        args.remove_unused_columns = False  # `mask_key` is no argument of the model
        args.include_num_input_tokens_seen = "non_padding"
        super().__init__(
            model,
            args,
            collator,
            train_dataset,
            eval_dataset,
            processing_class=tokenizer,
            **kwargs,
        )
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise ValueError(
                "FSDP and DeepSpeed are not supported: each GPU holds the whole model, as "
                "encoders are small. Start the processes with torchrun, without their settings."
            )
        self.eval_dataset = self.prepare_evaluation(self.eval_dataset)
        self.is_packing = packs(model, args)
        self._losses: dict[str, torch.Tensor] = {}
        self._evaluated: dict[str, torch.Tensor] | None = None  # the same of an evaluation
        self._weight, self._n_evaluated = 1, 0  # of a batch, and of all so far
        self._counts: dict[str, torch.Tensor] = {}  # divisors of the losses of this step
        self._batch: dict[str, Any] = {}  # the first of this step
        self._last_entry: _Moment | None = None
        for data in (self.train_dataset, self.batches):
            if isinstance(data, KeyedBlocks | TokenBudgetBatches):
                self.epoch_dependent = [*self.epoch_dependent, data]

    def prepare_evaluation(self, data: Any) -> Any:
        """Make examples of evaluation data, or of a mapping of several, if they are text."""
        if isinstance(data, Mapping):
            return {name: self.prepare_evaluation(part) for name, part in data.items()}
        if data is None or isinstance(data, KeyedBlocks):
            return data
        rows = as_rows(data, name="eval_dataset")
        if isinstance(rows, IterableDataset):
            rows = Dataset.from_list(list(rows))
        tokenizer: Any = self.processing_class
        return make_examples(rows, tokenizer, self.args, for_evaluation=True)[0]

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """The Trainer's loader of `eval_dataset`, which may be text."""
        if not isinstance(eval_dataset, str):  # the name of one of several
            eval_dataset = self.prepare_evaluation(eval_dataset)
        return super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        """The Trainer's loader of `test_dataset`, which may be text."""
        return super().get_test_dataloader(self.prepare_evaluation(test_dataset))

    def load_data_state(self, checkpoint: Path | None, n_steps: int) -> None:
        self._last_entry, self._losses = None, {}
        if isinstance(self.train_dataset, BlockStream):
            self.train_dataset.load(checkpoint, n_steps)

    def save_data_state(self, checkpoint: Path) -> None:
        if isinstance(self.train_dataset, BlockStream):
            self.train_dataset.save(checkpoint)

    def get_train_dataloader(self) -> DataLoader:
        """The Trainer's loader, with batches of its own for a stream and for a token budget."""
        names = ["num_workers", "pin_memory", "persistent_workers", "prefetch_factor"]
        names += ["in_order", "multiprocessing_context"]  # the last is not in transformers 5.0
        options: Any = {name: getattr(self.args, f"dataloader_{name}", None) for name in names}
        collator: Any = self.data_collator
        data = self.train_dataset
        filled: Any = data if isinstance(data, BlockStream) else self.batches
        if filled is None:
            return super().get_train_dataloader()
        if collator.packed and self.args.torch_compile:  # which compiles once for each shape
            collator = partial(collator, shape=filled.shape(collator.masked_shares))
        if isinstance(data, BlockStream):  # the batches of this process: nothing to distribute
            return DataLoader(data, batch_size=None, collate_fn=StreamCollator(collator), **options)
        options |= {"dataset": data, "collate_fn": collator}
        return self.accelerator.prepare(DataLoader(batch_sampler=self.batches, **options))

    def get_batch_samples(
        self, epoch_iterator: Iterator, num_batches: int, device: torch.device
    ) -> tuple[list, torch.Tensor | int | None]:
        """Get the micro-batches of a step, count bags and second masks, and keep the first."""
        samples, n_items = super().get_batch_samples(epoch_iterator, num_batches, device)
        if isinstance(self.train_dataset, BlockStream):
            for sample in samples:
                self.train_dataset.places |= sample.pop(PLACES)
        self._batch = samples[0] if samples else {}
        self._last_entry = self._last_entry or self._now()
        self._count_targets(samples)
        return samples, n_items

    def prediction_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The Trainer's step; counts bags and second masks, as for training."""
        # A packed batch is one row of several blocks.
        self._weight = (
            len(inputs["block_index"]) if "block_index" in inputs else find_batch_size(inputs)
        )
        self._n_evaluated += self._weight
        self._count_targets([inputs])
        loss, *others = super().prediction_step(model, inputs, *args, **kwargs)
        if loss is not None:
            self.add_measure("loss", loss)
        return loss, *others

    def _count_targets(self, samples: Sequence[Mapping[str, Any]]) -> None:
        """Count what the losses of a step are divided by, except the masked tokens."""
        counts: dict[str, list[torch.Tensor]] = defaultdict(list)
        for sample in samples:
            if "bow_targets" in sample:
                sizes = bag_sizes(sample["bow_targets"], sample.get("cu_seq_lens_q"))
                counts["num_bags_in_batch"].append((sizes > 0).sum())
            if "head_targets" in sample:
                is_predicted = sample["head_targets"] != IGNORE_INDEX
                counts["num_head_items_in_batch"].append(is_predicted.sum())
        self._counts = {}
        for name, parts in counts.items():
            total = torch.stack(parts).sum().to(self.args.device)
            # The library counts masked tokens over all processes, too.
            is_shared = self.args.average_tokens_across_devices
            self._counts[name] = self.accelerator.reduce(total) if is_shared else total

    def _probe(self) -> dict[str, float]:
        """Measures of this step's batch."""
        if "labels" not in self._batch:
            return {}
        padded = unpack(self._batch) if "cu_seq_lens_q" in self._batch else self._batch
        batch = self._prepare_inputs(self.choose_probed(padded))
        with self.accelerator.autocast():
            measures = probe(self.accelerator.unwrap_model(self.model), [batch])
        return {name: measures[name] for name in _PROBED if name in measures}

    def choose_probed(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The first blocks of a batch: with padding they have at most twice its tokens."""
        mask = inputs["attention_mask"]
        n_blocks = max(1, 2 * int(mask.sum()) // mask.shape[1])
        return {name: column[:n_blocks] for name, column in inputs.items()}

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        inputs = {**inputs, **self._counts}
        if "bow_targets" in inputs:
            inputs = {**inputs, "bow_weight": self.args.bow_weight}
        loss, outputs = super().compute_loss(
            model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch
        )
        # Of shared averages, each process has its part of the sum; else it has a mean of its own.
        n_processes = self.accelerator.num_processes
        share = 1 if self.args.average_tokens_across_devices else 1 / n_processes
        share *= 1 if model.training else n_processes  # in evaluation, means are averaged
        for name in self.logged_losses:
            if (value := outputs.get(name)) is not None:
                self.add_measure(name, share * value)
        return (loss, outputs) if return_outputs else loss

    def add_measure(self, name: str, value: torch.Tensor) -> None:
        """Add to a measure of the next log entry.

        In training it is a sum over micro-batches and processes, of which the entry states the mean
        over steps; in evaluation the mean over batches, weighted as that of the loss.
        """
        measures = self._losses if self._evaluated is None else self._evaluated
        so_far = measures.get(name, torch.zeros((), device=value.device))
        measures[name] = so_far + self._weight * value.detach().float()

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """The Trainer's loop; its metrics have each part of the loss, such as `eval_head_loss`.

        The loss is their sum; that of the Trainer weights the last batch in another way.
        """
        self._evaluated, self._n_evaluated = {}, 0
        try:
            output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
            metrics: Any = output.metrics
            n_all = torch.tensor(float(self._n_evaluated), device=self.args.device)
            n_all = self.accelerator.reduce(n_all, reduction="sum")
            for name, total in self._evaluated.items():
                sum_of_all = self.accelerator.reduce(total, reduction="sum")
                metrics[f"{metric_key_prefix}_{name}"] = (sum_of_all / n_all).item()
        finally:
            self._evaluated, self._weight = None, 1
        return output

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self._last_entry is not None:
            last, now = self._last_entry, self._now()
            self._last_entry = now
            for name, total in self._losses.items():
                sum_of_all = self.accelerator.reduce(total, reduction="sum").item()
                logs[name] = sum_of_all / max(now.step - last.step, 1)
            self._losses = {}
            logs["seconds"] = now.seconds - last.seconds
            logs["tokens_per_second"] = (now.n_tokens - last.n_tokens) / max(logs["seconds"], 1e-9)
            logs.update(self._probe())
        super().log(logs, start_time)

    def _now(self) -> _Moment:
        n_tokens = int(self.state.num_input_tokens_seen)
        return _Moment(self.train_seconds, self.state.global_step, n_tokens)

    @property
    def global_batch(self) -> int:
        """Blocks or pairs of a step over all processes; tokens, if batches have a budget."""
        size = self.args.tokens_per_batch or self.args.train_batch_size
        return size * self.args.gradient_accumulation_steps * self.args.world_size

    def run_record(self) -> dict[str, Any]:
        """Facts about data, model and training so far, for the run's record and the card."""
        model = self.accelerator.unwrap_model(self.model)
        return {
            **super().run_record(),
            "tokens_seen": int(self.state.num_input_tokens_seen),
            "head_mlm_probability": getattr(model.config, "head_mlm_probability", None),
            "n_parameters": sum(p.numel() for p in model.parameters()),
        }

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model, with its provenance beside it."""
        super().save_model(output_dir, _internal_call)
        if self.args.should_save:
            before = provenance.read_start(self.run_settings.get("encoder", ""))
            stages = [*before, self.describe_run(provenance.PRETRAINING)]
            provenance.write_provenance(Path(output_dir or str(self.args.output_dir)), stages)

    def script_settings(self) -> dict[str, Any]:
        """As `ResumableTrainer.script_settings`, with the encoder and the settings of the head."""
        config: Any = self.accelerator.unwrap_model(self.model).config
        settings = {name: getattr(config, name) for name in HEAD_SETTINGS}
        # A checkpoint with its head has its name in its own configuration.
        start = config.name_or_path or config.encoder_config.name_or_path
        settings["encoder"] = start or provenance.IN_MEMORY
        settings = {name: value for name, value in settings.items() if value is not None}
        return {**settings, **super().script_settings()}


def _check_metric(args: CondenserTrainingArguments, names: Iterable[str]) -> None:
    """Raise a ValueError unless the metric that chooses checkpoints is of one of several data."""
    metric = args.metric_for_best_model
    if metric and not metric.removeprefix("eval_").startswith(tuple(f"{name}_" for name in names)):
        raise ValueError(
            f"metric_for_best_model is {metric}, but eval_dataset has several: name one of "
            f"{', '.join(f'eval_{name}_loss' for name in names)}."
        )


def _check(
    trainer: Any, model: Any, args: CondenserTrainingArguments, others: Mapping[str, Any]
) -> None:
    """Raise a ValueError for what the objective and this trainer do not support."""
    defaults = {field.name: field.default for field in fields(CondenserTrainingArguments)}
    given = {**vars(args), **others}
    for name, reason in _REFUSED.items():
        if given.get(name) not in (None, defaults.get(name)):
            raise ValueError(f"{type(trainer).__name__} takes no {name}: {reason}")
    if getattr(model, "_hf_peft_config_loaded", False) or hasattr(model, "peft_config"):
        raise ValueError(
            "The model has adapters of PEFT, without which its encoder would be saved: merge them "
            "(merge_and_unload), or train the whole model."
        )
    check_one_device(args)
    objective = OBJECTIVES[args.objective]
    is_ours = hasattr(model, "condenser")  # by name: remote code has classes of its own
    fits_model = is_ours and hasattr(model, "run_head") == objective.has_head
    if objective.is_contrastive != trainer.is_contrastive or not fits_model:
        trainer_name = "ContrastiveTrainer" if objective.is_contrastive else "CondenserTrainer"
        model_name = "CondenserForPreTraining" if objective.has_head else "CondenserForMaskedLM"
        raise ValueError(
            f"objective {objective.name!r} needs a {trainer_name} and a {model_name}, but these "
            f"are a {type(trainer).__name__} and a {type(model).__name__}."
        )
