"""sentence-transformers' trainer, told how to lose nothing and to draw negatives each epoch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformerTrainer
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import TrainOutput

from modeling_condenser.hub.trainer import WholeTrainer

from .drawing import DrawnExamples


class RetrieverTrainer(WholeTrainer, SentenceTransformerTrainer):
    """Trains an encoder.

    Checkpoints are sealed with a manifest, and `train()` goes on from the last whole one in
    `output_dir` without being told to. With `push_to_hub=True` the repository is a plain encoder's
    after each push (`WholeTrainer`).

    Args:
        repository: writes the repository of the encoder as it stands into a folder; is given the
            trainer's state and the repository's name on the Hub.
        drawn: draws the negatives; is told the epoch. None where nothing is drawn.
        **arguments: as for `SentenceTransformerTrainer`.
    """

    def __init__(
        self,
        *,
        repository: Callable[[Path, TrainerState, str | None], None] | None = None,
        drawn: DrawnExamples | None = None,
        **arguments: Any,
    ):
        self._repository = repository
        super().__init__(**arguments)
        if drawn is not None:
            self.add_callback(_EpochTeller(drawn))

    def train(  # type: ignore[override]
        self, resume_from_checkpoint: str | bool | None = None, **arguments: Any
    ) -> TrainOutput:
        """Train, from the last whole checkpoint of `output_dir` unless told otherwise.

        Args:
            resume_from_checkpoint: a checkpoint folder; a repository of the Hub that was pushed
                with `hub_strategy="checkpoint"`; None or True for the last whole one of
                `output_dir`, if any; False to start anew.
            **arguments: as for `Trainer.train`.
        """
        resume = self.find_resume(resume_from_checkpoint)
        if resume is not None and self._is_final(Path(resume)):
            self._load_from_checkpoint(resume)
            return TrainOutput(self.state.global_step, 0.0, {})
        return super().train(resume_from_checkpoint=resume, **arguments)

    def _is_final(self, checkpoint: Path) -> bool:
        """Take over a checkpoint's state, and tell whether it is that of the last step.

        The library would train one more step from there.
        """
        self.state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
        return self.state.global_step >= self.state.max_steps

    def write_repository(self, folder: Path, checkpoint: Path | None) -> None:
        """Fill a folder with what the `repository` argument writes.

        Raises:
            ValueError: there is none, so nothing can be pushed.
        """
        if self._repository is None:
            raise ValueError(
                "RetrieverTrainer has no `repository`, so what to push is unknown: give a function "
                "that writes it, as `finetune` does, or set push_to_hub=False."
            )
        if self.is_world_process_zero():
            self._repository(folder, self.state, self.hub_model_id)

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Gather nothing for the library's card, which would read the data: we write our own."""

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save the modules, without the library's card."""
        self.model.save_pretrained(str(output_dir or self.args.output_dir), create_model_card=False)


class _EpochTeller(TrainerCallback):
    def __init__(self, drawn: DrawnExamples):
        self.drawn = drawn

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.drawn.set_epoch(int(state.epoch or 0))
