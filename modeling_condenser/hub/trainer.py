"""A Trainer that marks complete checkpoints, resumes from them, and pushes whole repositories.

transformers' own pushes during training leave out code and card, and send a pickle of the
arguments. They are switched off, and a callback pushes after each checkpoint.
"""

import logging
import shutil
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo, HfApi
from transformers import Trainer, TrainerCallback, TrainerState
from transformers.trainer import TRAINER_STATE_NAME, TRAINING_ARGS_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy, TrainOutput

from modeling_condenser.runs.run_folder import (
    describe_machine,
    drop_old_checkpoints,
    is_complete,
    last_whole_checkpoint,
    seal_checkpoint,
)
from modeling_condenser.runs.whole_files import link_or_copy

from .model_folder import fetch
from .provenance import Stage, publishable
from .push import STALE_WEIGHTS, commit_folder
from .training_log import readiness_entries, thin_log

logger = logging.getLogger(__name__)

LAST_CHECKPOINT = "last-checkpoint"  # as the Trainer calls it


class WholeTrainer(Trainer):
    """Base of the trainers of this package, which define `write_repository`.

    `push_to_hub` and `hub_strategy` mean the same as in transformers. Every push is one commit of a
    repository that can be loaded. A failed push does not end the training.

    Attributes:
        facts: for the run's record and the model card.
        drawn_anew: data and samplers whose `set_epoch` is called as each epoch begins;
            transformers calls it in some distributed setups only.
    """

    facts: dict[str, Any]
    drawn_anew: Sequence[Any] = ()

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._api = HfApi()  # its background thread runs one upload after the other
        self._last_upload: Future | None = None
        self.add_callback(_Events(self))

    def write_repository(self, folder: Path, checkpoint: Path | None) -> None:
        """Fill an empty folder with the repository of the current model.

        The model is in `checkpoint`, which was just saved; with None it is saved from memory.
        """
        raise NotImplementedError

    def run_facts(self) -> dict[str, Any]:
        """Facts about data and training so far, for the run's record and the card."""
        return {**self.facts, "seed": self.args.seed, "steps": self.state.global_step}

    def describe_run(self, stage: Stage) -> Stage:
        """A stage of this training, with the record and the log so far."""
        log, run = self.state.log_history, {**describe_machine(), **self.run_facts()}
        measured = readiness_entries(log)
        return replace(stage, run=publishable(run), log=thin_log(log), readiness=measured)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: `write_repository` writes the card."""

    def find_resume(self, asked: str | bool | None) -> str | None:
        """The checkpoint to resume from, if any.

        Args:
            asked: a checkpoint folder; a repository on the Hub, `owner/name[@revision]`, that was
                pushed with `hub_strategy="checkpoint"`, unless a checkpoint in `output_dir` is as
                new; None or True for the last complete checkpoint of `output_dir`; False to start
                again.

        Raises:
            FileNotFoundError: the repository does not exist, or has no complete checkpoint.
        """
        if asked is False or (isinstance(asked, str) and Path(asked).is_dir()):
            return asked or None
        checkpoint = last_whole_checkpoint(Path(str(self.args.output_dir)))
        if isinstance(asked, str):
            with self.args.main_process_first():
                fetched = fetch(asked, only=[f"{LAST_CHECKPOINT}/*"]) / LAST_CHECKPOINT
            if not is_complete(fetched):
                raise FileNotFoundError(
                    f"{asked} has no complete {LAST_CHECKPOINT}/: push with push_to_hub=True and "
                    'hub_strategy="checkpoint" to resume from the Hub, or name an older commit '
                    "(owner/name@COMMIT)."
                )
            if checkpoint is None or _step(checkpoint) < _step(fetched):
                checkpoint = fetched
        return str(checkpoint) if checkpoint else None

    def train(  # type: ignore[override]
        self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any
    ) -> TrainOutput:
        """Train from the checkpoint of `find_resume`, and wait for the last push.

        By default it is the last complete checkpoint of `output_dir`, if there is one.
        """
        resume = self.find_resume(resume_from_checkpoint)
        arguments = self.args
        self._is_pushing, self._keep = arguments.push_to_hub, arguments.save_total_limit
        arguments.push_to_hub, arguments.save_total_limit = False, None
        try:
            output = super().train(resume_from_checkpoint=resume, **kwargs)
        finally:
            arguments.push_to_hub, arguments.save_total_limit = self._is_pushing, self._keep
        if self._last_upload is not None:
            self._last_upload.exception()  # wait
        return output

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list, Any]:
        """As in `Trainer`, but no batches for a training that is resumed after its last step."""
        if self.state.global_step >= self.state.max_steps:
            return [], None
        return super().get_batch_samples(*args, **kwargs)

    def finish_checkpoint(self) -> None:
        """Mark the checkpoint of this step as complete, push it, and drop old checkpoints."""
        run_folder = Path(str(self.args.output_dir))
        checkpoint = run_folder / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        self.accelerator.wait_for_everyone()  # each process writes its random state
        if self.args.should_save:
            seal_checkpoint(checkpoint)
        if self._is_pushing and self.is_world_process_zero():
            self._push_checkpoint(checkpoint)
        if self.args.should_save:
            best = self.state.best_model_checkpoint
            drop_old_checkpoints(run_folder, keep=self._keep, best=best)

    def _push_checkpoint(self, checkpoint: Path) -> None:
        """Push the model of a checkpoint, with its training state if the strategy says so."""
        strategy = HubStrategy(self.args.hub_strategy)
        is_busy = self._last_upload is not None and not self._last_upload.done()
        if strategy == HubStrategy.END or (is_busy and not self.args.hub_always_push):
            return
        state_folders = {
            HubStrategy.CHECKPOINT: LAST_CHECKPOINT,
            HubStrategy.ALL_CHECKPOINTS: checkpoint.name,
        }
        message = f"Training in progress, step {self.state.global_step}"
        upload = self._push(message, checkpoint, state_folder=state_folders.get(strategy))
        if upload is not None:
            upload.add_done_callback(_warn_of_failure)

    def push_to_hub(  # type: ignore[override]
        self, commit_message: str = "End of training", blocking: bool = True, **options: Any
    ) -> CommitInfo | Future | None:
        """Push the current model as a whole repository; an OSError if the Hub failed or refused.

        The arguments are those of transformers; of its further options only `token`, `revision` and
        `private` are used.

        Returns:
            The commit (a future of it if not blocking); None in all processes but the first.
        """
        names = ("token", "revision", "private")
        given = {name: options[name] for name in names if options.get(name) is not None}
        if self.hub_model_id is None:
            self.init_hf_repo(token=given.get("token"), private=given.get("private"))
        upload = self._push(commit_message, None, **given)
        return upload.result() if upload and blocking else upload

    def _push(
        self, message: str, checkpoint: Path | None, *, state_folder: str | None = None, **how: Any
    ) -> Future | None:
        """Write the repository to a new folder, and commit it in the background.

        See `write_repository` for the checkpoint; all of it is also copied to `state_folder` of the
        repository. `how` are options of `commit_folder`.
        """
        staging = Path(str(self.args.output_dir)) / f".push-{self.state.global_step}"
        if self.is_world_process_zero():
            shutil.rmtree(staging, ignore_errors=True)  # left by a killed process
            staging.mkdir(parents=True)
        if checkpoint is None:  # all processes save the model
            self.accelerator.wait_for_everyone()
        self.write_repository(staging, checkpoint)
        if not self.is_world_process_zero():
            return None
        if checkpoint and state_folder:
            without = shutil.ignore_patterns(TRAINING_ARGS_NAME)  # a pickle
            target = staging / state_folder
            shutil.copytree(checkpoint, target, ignore=without, copy_function=link_or_copy)
            how["stale"] = [*STALE_WEIGHTS, f"{state_folder}/*"]
        how = {"revision": self.args.hub_revision, "token": self.args.hub_token, **how}
        self.callback_handler.on_push_begin(self.args, self.state, self.control)

        def upload() -> CommitInfo:
            try:
                return commit_folder(staging, str(self.hub_model_id), message=message, **how)
            finally:
                shutil.rmtree(staging, ignore_errors=True)

        self._last_upload = self._api.run_as_future(upload)
        return self._last_upload


class _Events(TrainerCallback):
    def __init__(self, trainer: WholeTrainer):
        self.trainer = trainer

    def on_epoch_begin(self, args: Any, state: TrainerState, *_: Any, **__: Any) -> None:
        for drawn in self.trainer.drawn_anew:
            drawn.set_epoch(int(state.epoch or 0))

    def on_train_end(self, args: Any, state: TrainerState, *_: Any, **__: Any) -> None:
        if state.global_step == 0:
            raise ValueError(
                "The training ended after 0 steps, so the model was not trained: check"
                " num_train_epochs, and that the data have at least one batch of"
                f" {args.train_batch_size * args.world_size} (dataloader_drop_last drops others)."
            )

    def on_save(self, *_: Any, **__: Any) -> None:
        self.trainer.finish_checkpoint()


def _warn_of_failure(upload: Future) -> None:
    if error := upload.exception():
        logger.warning("The push failed, and the training continues: %s", error)


def _step(checkpoint: Path) -> int:
    return TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME)).global_step
