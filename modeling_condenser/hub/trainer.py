"""A Trainer that marks complete checkpoints, resumes from them, and pushes whole repositories.

transformers' own pushes during training leave out code and card, and send a pickle of the
arguments. They are switched off, and a callback pushes after each checkpoint.
"""

import dataclasses
import logging
import shutil
import time
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import CommitInfo, HfApi
from transformers import Trainer, TrainerCallback, TrainerState
from transformers.trainer import TRAINER_STATE_NAME, TRAINING_ARGS_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy, TrainOutput

from modeling_condenser.runs.run_folder import (
    RUN_FILE,
    RunIdentity,
    all_checkpoints,
    check_checkpoint,
    check_run_folder,
    describe_machine,
    drop_old_checkpoints,
    fingerprints_of,
    is_complete,
    last_whole_checkpoint,
    read_manifest,
    seal_checkpoint,
    whole_checkpoints,
    write_settings,
)
from modeling_condenser.runs.whole_files import link_or_copy

from .model_folder import fetch
from .provenance import Stage, publishable
from .push import STALE_WEIGHTS, commit_folder
from .training_log import readiness_entries, thin_log

logger = logging.getLogger(__name__)

LAST_CHECKPOINT = "last-checkpoint"  # as the Trainer calls it

# Arguments that transformers or a trainer computes if they are not given.
_DERIVED = (
    "accelerator_config debug hub_token include_num_input_tokens_seen local_rank "
    "remove_unused_columns report_to"
).split()


class WholeTrainer(Trainer):
    """Base of the trainers of this package, which define `write_repository`.

    `push_to_hub` and `hub_strategy` mean the same as in transformers. Every push is one commit of a
    repository that can be loaded. A failed push does not end the training.

    Attributes:
        facts: for the run's record and the model card, with fingerprints of the model and the data.
        settings: of the recipe; None in a script, whose settings are the trainer's arguments.
        train_seconds: of the training so far, over all sessions of a run that was resumed.
        drawn_anew: data and samplers whose `set_epoch` is called as each epoch begins;
            transformers calls it in some distributed setups only.
    """

    facts: dict[str, Any]
    settings: Mapping[str, Any] | None = None
    drawn_anew: Sequence[Any] = ()

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._started: float | None = None  # when this session began, without what is left out
        self._before: dict[str, Any] = {}  # the manifest of the checkpoint that it resumes from
        self.train_seconds, self._loss_sum = 0.0, torch.zeros((), device=self.args.device)
        self._api = HfApi()  # its background thread runs one upload after the other
        self._last_upload: Future | None = None
        self.add_callback(_Events(self))

    def write_repository(self, folder: Path, checkpoint: Path | None) -> None:
        """Fill an empty folder with the repository of the current model.

        The model is in `checkpoint`, which was just saved; with None it is saved from memory.
        """
        raise NotImplementedError

    @property
    def identity(self) -> RunIdentity:
        """What the run folder belongs to."""
        settings = self.script_settings() if self.settings is None else self.settings
        return RunIdentity(settings, fingerprints_of(self.facts))

    def script_settings(self) -> dict[str, Any]:
        """The settings of a run without a recipe: the arguments that differ from the defaults."""
        # Read from the class, because a second instance would reset the state of accelerate.
        usual = {field.name: field.default for field in dataclasses.fields(self.args)}
        return {
            name: value
            for name, value in self.args.to_dict().items()
            if name not in _DERIVED and value != usual.get(name) and (value or usual.get(name))
        }

    def run_facts(self) -> dict[str, Any]:
        """Facts about data and training so far, for the run's record and the card."""
        self._take_time()
        seconds, steps = round(self.train_seconds, 3), self.state.global_step
        return {**self.facts, "seed": self.args.seed, "steps": steps, "train_seconds": seconds}

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
            FileNotFoundError: the repository does not exist, it has no complete checkpoint, or
                `asked` is True and there is no checkpoint.
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
        if checkpoint is None and asked is True:
            raise FileNotFoundError(f"{self.args.output_dir} has no complete checkpoint to resume.")
        return str(checkpoint) if checkpoint else None

    def train(  # type: ignore[override]
        self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any
    ) -> TrainOutput:
        """Train from the checkpoint of `find_resume`, and wait for the last push.

        By default, the last complete checkpoint of `output_dir` is continued if it is of the same
        run: with the same settings, start and data. A checkpoint that is named (or True) may be of
        other settings, but not of other data. False starts again, and removes the checkpoints in
        `output_dir`.

        Raises:
            ValueError: the checkpoint is of another run.
            FileNotFoundError: see `find_resume`.
        """
        arguments = self.args
        with arguments.main_process_first(desc="finding the checkpoint"):
            resume = self._enter_folder(resume_from_checkpoint)
        first = _step(Path(resume)) if resume else None
        self._before = read_manifest(Path(resume)) if resume else {}
        self.train_seconds, self._started = self._before.get("train_seconds", 0.0), None
        self._loss_sum.fill_(self._before.get("loss_sum", 0.0))
        self._is_pushing, self._keep = arguments.push_to_hub, arguments.save_total_limit
        arguments.push_to_hub, arguments.save_total_limit = False, None
        try:
            output = super().train(resume_from_checkpoint=resume, **kwargs)
        finally:
            arguments.push_to_hub, arguments.save_total_limit = self._is_pushing, self._keep
        self._take_time()
        self._started = None
        if self.state.global_step == first:
            logger.warning("The run was trained to its end before: no step was trained.")
        if self._last_upload is not None:
            self._last_upload.exception()  # wait
        return output._replace(training_loss=output.metrics["train_loss"])

    def _enter_folder(self, asked: str | bool | None) -> str | None:
        """Find the checkpoint to resume from, and refuse a folder or checkpoint of another run."""
        folder, identity = Path(str(self.args.output_dir)), self.identity
        resume = self.find_resume(asked)
        if self.settings is None and (folder / RUN_FILE).is_file():
            raise ValueError(f"{folder} holds the run of a recipe: choose another output_dir.")
        if asked is False:
            self._remove_checkpoints(folder)
        elif resume is not None:
            if asked is None:
                check_run_folder(folder, identity)
            compared, step = check_checkpoint(Path(resume), identity), _step(Path(resume))
            newest = whole_checkpoints(folder)[-1:]
            if newest and _step(newest[0]) > step:
                raise ValueError(
                    f"{newest[0]} is newer than {resume}, and a later resume would take it: choose "
                    "another output_dir, or remove the newer checkpoints."
                )
            logger.warning("Resuming from %s, step %d%s.", resume, step, _extent(compared))
        if self.settings is None and self.is_world_process_zero():
            write_settings(folder, identity.settings)
        return resume

    def _remove_checkpoints(self, folder: Path) -> None:
        for checkpoint in all_checkpoints(folder) if self.is_world_process_zero() else ():
            logger.warning("Starting again: removing %s.", checkpoint)
            shutil.rmtree(checkpoint)

    def start_clock(self) -> None:
        """Count the seconds of the training from now on."""
        self._started = time.perf_counter()

    def _take_time(self) -> None:
        """Add the seconds since the last call to those of the training."""
        if self._started is not None:
            now = time.perf_counter()
            self.train_seconds += now - self._started
            self._started = now

    def leave_out(self, seconds: float) -> None:
        """Do not count these seconds as training, because something else took them."""
        self.train_seconds -= seconds if self._started is not None else 0.0

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The Trainer's step; sums the losses."""
        loss = super().training_step(*args, **kwargs)
        self._loss_sum += loss.detach().nan_to_num(0.0, 0.0, 0.0)  # as `logging_nan_inf_filter`
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """The Trainer's log; the last entry of a resumed run states the loss of all its steps."""
        if "train_loss" in logs and "loss_sum" in self._before:
            logs["train_loss"] = self._total_loss() / max(self.state.global_step, 1)
        super().log(logs, start_time)

    def _total_loss(self) -> float:
        """The sum of the losses of all steps so far, the mean over processes."""
        return self.accelerator.reduce(self._loss_sum.clone(), reduction="mean").item()

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Refuse a checkpoint that does not fit the model; it stores shared weights once."""
        model: Any = self.model
        weights, lacks = model.state_dict(), set(load_result.missing_keys)
        loaded = {own.data_ptr() for name, own in weights.items() if name not in lacks}
        missing = sorted(name for name in lacks if weights[name].data_ptr() not in loaded)
        if missing or load_result.unexpected_keys:
            raise ValueError(
                f"The checkpoint does not fit the model: weights are missing ({missing[:3]}) or "
                f"unknown ({load_result.unexpected_keys[:3]}). Build the model as for its run."
            )

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
        self._take_time()
        sums = {"train_seconds": self.train_seconds, "loss_sum": self._total_loss()}
        if self.args.should_save:
            seal_checkpoint(checkpoint, {**fingerprints_of(self.facts), **sums})
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

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.trainer.start_clock()

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


def _extent(compared: Set[str]) -> str:
    """What to say of data that were not compared."""
    return "" if compared else "; its data have no fingerprint and were not compared"


def _warn_of_failure(upload: Future) -> None:
    if error := upload.exception():
        logger.warning("The push failed, and the training continues: %s", error)


def _step(checkpoint: Path) -> int:
    return TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME)).global_step
