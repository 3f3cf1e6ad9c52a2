"""The Hugging Face Trainer, told what to log about a Condenser, and how to lose nothing."""

import math
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import TrainOutput, seed_worker

from modeling_condenser.hub.trainer import WholeTrainer

from .arguments import CondenserTrainingArguments
from .checks import check_objective, check_reading
from .examples import PreparedText, as_documents
from .masking import IGNORE_INDEX
from .packed_batches import count_bags, count_tokens, is_packed, unpack
from .probe import probe
from .repository import complete_repository, describe_training, link_model
from .token_budget import TokenBudgetBatches


class CondenserTrainer(WholeTrainer):
    """Trains a `CondenserForPreTraining` (or a `CondenserForMaskedLM`, plain MLM).

    Beside what the Trainer logs, each log entry holds

    - `head_loss` and `late_loss`, nats a masked token, and `bow_loss`, nats a block, averaged over
      the steps since the last; `bow_weight` of the last step;
    - `head_accuracy`, `late_accuracy` and `swap_cost` of the batch before the step (`Probe`), but
      under FSDP;
    - `tokens_per_second`, tokens of text, without padding, since the last entry; and `seconds`.

    Checkpoints are sealed with a manifest, and `train()` resumes from the last whole one in
    `output_dir` without being told to. With `push_to_hub=True` the repository can be loaded after
    each push (`WholeTrainer`). Data sets with `set_epoch` are told the epoch. A stream is read by
    each process, which takes its own batches.

    With `CondenserTrainingArguments` the training data may be text: a data set with a column
    `text`, or a list of `{"text": ...}`. It is tokenized, cut into blocks and masked as the
    arguments say, and batches are packed where the encoder allows it.

    Args:
        model: to train.
        args: `CondenserTrainingArguments`; or plain `TrainingArguments`, with collator and blocks.
        data_collator: made here for text.
        train_dataset: text, or blocks such as `KeyedBlocks`.
        processing_class: the tokenizer; for text, by default, that of the model's checkpoint.
        facts: about the data, for the model card.
        batches: which blocks share a batch; `per_device_train_batch_size` of them by default, and
            unused otherwise.
        bow_weight: of bag-of-words prediction, for batches with `bow_targets`, at the first step.
        bow_weight_end: the same at the last step, reached on a cosine; `bow_weight` by default.
        **kwargs: as for `Trainer`.

    Raises:
        ValueError: batches are packed, which cannot be divided among the GPUs of one process;
            batches of a stream are to be dealt out (`check_reading`); labels are smoothed; or
            model, text and arguments do not fit together.
    """

    objectives: tuple[str, ...] = ("condenser", "mlm")  # of `CondenserTrainingArguments`
    logged_losses: tuple[str, ...] = ("head_loss", "late_loss", "bow_loss")

    def __init__(
        self,
        model: Any,
        args: TrainingArguments,
        data_collator: Any = None,
        train_dataset: Any = None,
        *,
        processing_class: Any = None,
        facts: Mapping[str, Any] | None = None,
        batches: TokenBudgetBatches | None = None,
        bow_weight: float = 1.0,
        bow_weight_end: float | None = None,
        **kwargs: Any,
    ):
        if isinstance(args, CondenserTrainingArguments):
            check_objective(args.objective, model, self.objectives)
            bow_weight, bow_weight_end = args.bow_weight, args.bow_weight_end
            documents = as_documents(train_dataset)
            if documents is not None:
                text = PreparedText.of(documents, model, args, processing_class)
                train_dataset, processing_class = text.examples, text.tokenizer
                batches, data_collator = text.batches, data_collator or text.collator
                facts = {"objective": args.objective, **text.facts, **(facts or {})}
        super().__init__(
            model=model,
            args=args,
            data_collator=data_collator,
            train_dataset=train_dataset,
            processing_class=processing_class,
            **kwargs,
        )
        if self.args.label_smoothing_factor:
            raise ValueError(
                f"label_smoothing_factor is {self.args.label_smoothing_factor}, but the Trainer "
                "smooths the late predictions alone and drops the other losses: set it to 0."
            )
        self.args.remove_unused_columns = False  # `mask_key` is no argument of the model
        self._facts = dict(facts or {})
        self.batches = batches
        self.bow_weight = bow_weight
        self.bow_weight_end = bow_weight if bow_weight_end is None else bow_weight_end
        if isinstance(self.train_dataset, IterableDataset):
            check_reading(self.args)
            self.accelerator.dataloader_config.dispatch_batches = False
        is_packing = getattr(self.data_collator, "packed", False)
        if self.args.n_gpu > 1 and (is_packing or batches is not None):
            raise ValueError(
                f"One process sees {self.args.n_gpu} GPUs, but a packed batch or one with a budget "
                "of tokens is made for one: start a process for each with torchrun or accelerate "
                "launch, or set packed: false and leave tokens_per_batch out."
            )
        self._losses: dict[str, torch.Tensor] = {}
        self._last_bow_weight = bow_weight
        self._counts: dict[str, torch.Tensor] = {}  # what losses of the coming step are divided by
        self._n_tokens: torch.Tensor | int = 0  # summed on the device, read when logged
        self._window: tuple[float, int] | None = None  # when the last entry was, and at which step
        self._probed: tuple[int, dict[str, float]] | None = None  # at which step, and what
        self.add_callback(_EpochTeller(self))

    def train(  # type: ignore[override]
        self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any
    ) -> TrainOutput:
        """Train, from the last whole checkpoint of `output_dir` unless told otherwise.

        Args:
            resume_from_checkpoint: a checkpoint folder; a repository of the Hub that was pushed
                with `hub_strategy="checkpoint"`; None or True for the last whole one of
                `output_dir`, if any; False to start anew.
            **kwargs: as for `Trainer.train`.
        """
        self._window = None
        resume = self.find_resume(resume_from_checkpoint)
        return super().train(resume_from_checkpoint=resume, **kwargs)

    def write_repository(self, folder: Path, checkpoint: Path | None) -> None:
        """Fill a folder with model, code, tokenizer, provenance and card."""
        if checkpoint is None:
            self.save_model(str(folder), _internal_call=True)
            (folder / TRAINING_ARGS_NAME).unlink(missing_ok=True)
        else:
            link_model(checkpoint, folder)
        if self.is_world_process_zero():
            stages = describe_training(self, self._facts)
            complete_repository(folder, stages, name=self.hub_model_id)

    def training_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        if self._window is None:
            self._window = (time.perf_counter(), self.state.global_step)
        self._n_tokens = self._n_tokens + count_tokens(inputs)
        if self._is_probe_due():
            batch = self._prepare_inputs(self.choose_probed(inputs))
            with self.accelerator.autocast():
                measured = probe(self.accelerator.unwrap_model(model), batch)
            self._probed = (self.state.global_step, measured.logs())
        return super().training_step(model, inputs, num_items_in_batch)

    def get_batch_samples(
        self, epoch_iterator: Iterator, num_batches: int, device: torch.device
    ) -> tuple[list, torch.Tensor | int | None]:
        """The micro-batches of a step, whose bags and twice masked tokens are counted, too."""
        samples, n_items = super().get_batch_samples(epoch_iterator, num_batches, device)
        self._counts = {}
        if samples and self.args.n_gpu <= 1:  # of several GPUs, each estimates its own
            if "bow_targets" in samples[0]:
                self._counts["num_bags_in_batch"] = self._sum_up(map(count_bags, samples))
            if "head_targets" in samples[0]:
                self._counts["num_head_items_in_batch"] = self._sum_up(
                    (sample["head_targets"] != IGNORE_INDEX).sum() for sample in samples
                )
        return samples, n_items

    def _sum_up(self, counts: Iterator[torch.Tensor]) -> torch.Tensor:
        """Over micro-batches, and over processes where the library's own count is."""
        total = torch.stack([count.to(self.args.device) for count in counts]).sum()
        if self.args.world_size > 1 and self.args.average_tokens_across_devices:
            total = self.accelerator.gather(total).sum()  # type: ignore[assignment]
        return total

    def bow_weight_now(self) -> float:
        """The weight of bag-of-words prediction at this step: a cosine over the training."""
        done = self.state.global_step / max(self.state.max_steps, 1)
        cosine = (1 + math.cos(math.pi * min(done, 1.0))) / 2
        return self.bow_weight_end + (self.bow_weight - self.bow_weight_end) * cosine

    def leave_out(self, seconds: float) -> None:
        """Count seconds that something else took, such as measuring, to no training."""
        if self._window is not None:
            since, step = self._window
            self._window = (since + seconds, step)

    def choose_probed(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The part of a batch that is probed, padded: all of it, or what a packed one has room for.

        Of a packed batch as many blocks are taken as, padded, are no more than twice its tokens.
        """
        if not is_packed(inputs):
            return inputs
        room = 2 * inputs["input_ids"].numel()
        return unpack(inputs, pad_token_id=self.pad_token_id, room=room)

    @property
    def pad_token_id(self) -> int:
        """Padding's token, of the collator that packs batches."""
        collator: Any = self.data_collator
        return collator.tokenizer.pad_token_id

    def get_train_dataloader(self) -> DataLoader:
        """The Trainer's loader, with batches of its own where `batches` are given."""
        if self.batches is None:
            return super().get_train_dataloader()
        n_workers = self.args.dataloader_num_workers
        loader = DataLoader(
            self.train_dataset,  # type: ignore[arg-type]
            batch_sampler=self.batches,
            collate_fn=self.data_collator,
            num_workers=n_workers,
            pin_memory=self.args.dataloader_pin_memory,
            persistent_workers=self.args.dataloader_persistent_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            worker_init_fn=partial(
                seed_worker, num_workers=n_workers, rank=self.args.process_index
            ),
        )
        return self.accelerator.prepare(loader)

    def _is_probe_due(self) -> bool:
        """Whether the coming step is one that is logged, and not yet probed."""
        step = self.state.global_step
        if self.is_fsdp_enabled:  # shards are put together for a whole forward pass only
            return False
        if self._probed is not None and self._probed[0] == step:
            return False
        every = max(int(self.state.logging_steps or self.args.logging_steps), 1)
        is_first = step == 0 and self.args.logging_first_step
        return is_first or (step + 1) % every == 0

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        if model.training:
            inputs = {**inputs, **self._counts}
        if "bow_targets" in inputs:
            self._last_bow_weight = self.bow_weight_now()
            inputs = {**inputs, "bow_weight": self._last_bow_weight}
        loss, outputs = super().compute_loss(
            model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch
        )
        if model.training:
            self._add_losses(outputs)
        return (loss, outputs) if return_outputs else loss

    def _add_losses(self, outputs: Mapping[str, Any]) -> None:
        """Sum the losses of the micro-batches; each is its share of the whole batch's loss."""
        for name in self.logged_losses:
            value = outputs.get(name)
            if value is not None:
                self.add_measure(name, value)

    def add_measure(self, name: str, value: torch.Tensor) -> None:
        """Add to what the next log entry states, a step: sums over micro-batches and processes."""
        so_far = self._losses.get(name, torch.zeros((), device=value.device))
        self._losses[name] = so_far + value.detach().float()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self._window is not None:
            logs.update(self._measures_since_last_entry())
            if "bow_loss" in logs:
                logs["bow_weight"] = self._last_bow_weight
            if self._probed is not None and self._probed[0] == self.state.global_step - 1:
                logs.update(self._probed[1])
        super().log(logs, start_time)

    def _measures_since_last_entry(self) -> dict[str, float]:
        """Losses a step and tokens a second, over all processes; starts the next window."""
        since, first_step = self._window or (time.perf_counter(), self.state.global_step)
        n_steps = max(self.state.global_step - first_step, 1)
        device = self.args.device
        tokens = torch.as_tensor(self._n_tokens, device=device)
        now = time.perf_counter()
        measures = {
            name: self.accelerator.reduce(total, reduction="sum").item() / n_steps
            for name, total in self._losses.items()
        }
        n_tokens = self.accelerator.reduce(tokens, reduction="sum").item()
        measures["tokens_per_second"] = n_tokens / max(now - since, 1e-9)
        measures["seconds"] = now - since
        self._losses, self._n_tokens = {}, 0
        self._window = (now, self.state.global_step)
        return measures


class _EpochTeller(TrainerCallback):
    """Tells the training data its epoch, which the library does in some distributed setups only."""

    def __init__(self, trainer: CondenserTrainer):
        self.trainer = trainer

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        for told in (self.trainer.train_dataset, self.trainer.batches):
            set_epoch = getattr(told, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(int(state.epoch or 0))
