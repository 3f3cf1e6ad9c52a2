"""sentence-transformers' trainer, told how to lose nothing and to draw negatives each epoch."""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from sentence_transformers import SentenceTransformerTrainer
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput

from modeling_condenser.runs.checkpoints import (
    MANIFEST,
    drop_old_checkpoints,
    last_whole_checkpoint,
    seal_checkpoint,
)

from .drawing import DrawnExamples


class RetrieverTrainer(SentenceTransformerTrainer):
    """Trains an encoder.

    Checkpoints are sealed with a manifest, and `train()` goes on from the last whole one in
    `output_dir` without being told to.

    Args:
        drawn: draws the negatives; is told the epoch. None where nothing is drawn.
        **arguments: as for `SentenceTransformerTrainer`.
    """

    def __init__(self, *, drawn: DrawnExamples | None = None, **arguments: Any):
        super().__init__(**arguments)
        if drawn is not None:
            self.add_callback(_EpochTeller(drawn))

    def train(  # type: ignore[override]
        self, resume_from_checkpoint: str | bool | None = None, **arguments: Any
    ) -> TrainOutput:
        """Train, from the last whole checkpoint of `output_dir` unless told otherwise.

        Args:
            resume_from_checkpoint: a checkpoint folder; None or True for the last whole one, if
                any; False to start anew.
            **arguments: as for `Trainer.train`.
        """
        if resume_from_checkpoint in (None, True):
            last = last_whole_checkpoint(Path(str(self.args.output_dir)))
            resume_from_checkpoint = str(last) if last else None
            if last is not None and self._is_final(last):
                self._load_from_checkpoint(str(last))
                return TrainOutput(self.state.global_step, 0.0, {})
        return super().train(resume_from_checkpoint=resume_from_checkpoint or None, **arguments)

    def _is_final(self, checkpoint: Path) -> bool:
        """Take over a checkpoint's state, and tell whether it is that of the last step.

        The library would train one more step from there.
        """
        self.state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
        return self.state.global_step >= self.state.max_steps

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Gather nothing for the library's card, which would read the data: we write our own."""

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save the modules, without the library's card."""
        self.model.save_pretrained(str(output_dir or self.args.output_dir), create_model_card=False)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
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
            # Every process writes its random state into the checkpoint.
            self.accelerator.wait_for_everyone()
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
    def __init__(self, drawn: DrawnExamples):
        self.drawn = drawn

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.drawn.set_epoch(int(state.epoch or 0))
