"""The Hugging Face Trainer, told what to log about a Condenser, and how to lose nothing."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput

from modeling_condenser.runs.checkpoints import (
    MANIFEST,
    drop_old_checkpoints,
    last_whole_checkpoint,
    seal_checkpoint,
)

from .probe import probe


class CondenserTrainer(Trainer):
    """Trains a `CondenserForPreTraining` (or a `CondenserForMaskedLM`, plain MLM).

    Beside what the Trainer logs, each log entry holds

    - `head_loss` and `late_loss`, nats a masked token, averaged over the steps since the last;
    - `head_accuracy`, `late_accuracy` and `swap_cost` of the batch before the step (`Probe`);
    - `tokens_per_second`, tokens of text, without padding, since the last entry.

    Checkpoints are sealed with a manifest, and `train()` resumes from the last whole one in
    `output_dir` without being told to. Data sets with `set_epoch` are told the epoch.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._losses: dict[str, torch.Tensor] = {}
        self._n_tokens: torch.Tensor | int = 0  # summed on the device, read when logged
        self._window: tuple[float, int] | None = None  # when the last entry was, and at which step
        self._probed: tuple[int, dict[str, float]] | None = None  # at which step, and what
        self.add_callback(_EpochTeller(self))

    def train(  # type: ignore[override]
        self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any
    ) -> TrainOutput:
        """Train, from the last whole checkpoint of `output_dir` unless told otherwise.

        Args:
            resume_from_checkpoint: a checkpoint folder; None or True for the last whole one, if
                any; False to start anew.
            **kwargs: as for `Trainer.train`.
        """
        if resume_from_checkpoint in (None, True):
            last = last_whole_checkpoint(Path(str(self.args.output_dir)))
            resume_from_checkpoint = str(last) if last else None
        self._window = None
        return super().train(resume_from_checkpoint=resume_from_checkpoint or None, **kwargs)

    def training_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        if self._window is None:
            self._window = (time.perf_counter(), self.state.global_step)
        self._n_tokens = self._n_tokens + inputs["attention_mask"].sum()
        if self._is_probe_due():
            batch = self._prepare_inputs(inputs)
            with self.accelerator.autocast():
                measured = probe(self.accelerator.unwrap_model(model), batch)
            self._probed = (self.state.global_step, measured.logs())
        return super().training_step(model, inputs, num_items_in_batch)

    def _is_probe_due(self) -> bool:
        """Whether the coming step is one that is logged, and not yet probed."""
        step = self.state.global_step
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
        loss, outputs = super().compute_loss(
            model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch
        )
        if model.training:
            self._add_losses(outputs)
        return (loss, outputs) if return_outputs else loss

    def _add_losses(self, outputs: Mapping[str, Any]) -> None:
        """Sum the losses of the micro-batches; each is its share of the whole batch's loss."""
        for name in ("head_loss", "late_loss"):
            value = outputs.get(name)
            if value is not None:
                so_far = self._losses.get(name, torch.zeros((), device=value.device))
                self._losses[name] = so_far + value.detach().float()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self._window is not None:
            logs.update(self._measures_since_last_entry())
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
        self._losses, self._n_tokens = {}, 0
        self._window = (now, self.state.global_step)
        return measures

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        """Save, seal, and only then let older checkpoints go.

        Raises:
            OSError: the checkpoint could not be written; older ones are untouched.
        """
        run_folder = Path(str(self.args.output_dir))
        folder = run_folder / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        keep, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            if self.args.should_save:
                (folder / MANIFEST).unlink(missing_ok=True)
            super()._save_checkpoint(model, trial)
            if self.args.should_save:
                seal_checkpoint(folder)
        except (OSError, RuntimeError, SafetensorError) as error:
            raise OSError(
                f"Could not write {folder}: {error}. Older checkpoints are untouched: when the "
                "cause (such as a full disk) is removed, the same command goes on from the last."
            ) from error
        finally:
            self.args.save_total_limit = keep
        if self.args.should_save:
            drop_old_checkpoints(run_folder, keep=keep, best=self.state.best_model_checkpoint)


class _EpochTeller(TrainerCallback):
    """Tells the training data its epoch, which the library does in some distributed setups only."""

    def __init__(self, trainer: Trainer):
        self.trainer = trainer

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        set_epoch = getattr(self.trainer.train_dataset, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(int(state.epoch or 0))
