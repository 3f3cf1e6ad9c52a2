"""A Trainer that marks complete checkpoints, resumes from them, and pushes whole repositories.

transformers' own pushes leave out code and card, and send a pickle of the arguments.
"""

import dataclasses
import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo, run_as_future
from transformers import Trainer, TrainerCallback, TrainerState
from transformers.trainer import TRAINER_STATE_NAME, TRAINING_ARGS_NAME
from transformers.trainer_utils import (
    EvalLoopOutput,
    TrainOutput,
)

from modeling_condenser.files.atomic import atomic_folder
from modeling_condenser.files.run_folder import (
    DATA,
    MODEL_FOLDER,
    all_checkpoints,
    check_run_folder,
    claim_run_folder,
    describe_machine,
    hash_data,
    last_checkpoint,
)
from modeling_condenser.publishing.card import write_card
from modeling_condenser.publishing.provenance import Stage, describe_stage
from modeling_condenser.publishing.push import commit_folder

logger = logging.getLogger(__name__)

START = "start_fingerprint"  # a fact: the weights and the configuration that a run starts from

# Arguments that transformers or a trainer computes if they are not given.
_DERIVED = (
    "accelerator_config debug hub_token include_num_input_tokens_seen local_rank "
    "remove_unused_columns report_to"
).split()


class ResumableTrainer(Trainer):
    """Base of the trainers of this package, whose `save_model` writes a repository but its card.

    `push_to_hub` and `hub_strategy` mean the same as in transformers, but every push is one commit
    of a repository that can be loaded; with the strategy "checkpoint" ("all_checkpoints" is the
    same) it also holds the state of the training. A failed push does not end the training.

    Attributes:
        facts: for the run's record and the model card, with fingerprints of the model and the data.
        settings: of the recipe; None in a script, whose settings are the trainer's arguments.
        epoch_dependent: data and samplers whose `set_epoch` is called as each epoch begins.
    """

    facts: dict[str, Any]
    settings: Mapping[str, Any] | None = None
    epoch_dependent: Sequence[Any] = ()
    push_in_progress: Any = None

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        # By `time.perf_counter`; the start is moved by what is not counted.
        self._started: float = 0.0
        self._ended: float | None = 0.0
        self._first_step = 0  # that this session began after
        self.add_callback(_SetEpoch(self))

    @property
    def run_settings(self) -> Mapping[str, Any]:
        """The settings of the run: those of the recipe, or in a script the trainer's arguments."""
        return self.script_settings() if self.settings is None else self.settings

    @property
    def data_hash(self) -> str:
        """Hash of the model that the run starts from, and of its data."""
        ends = ("_fingerprint", "_sha256")
        return hash_data([v for name, v in sorted(self.facts.items()) if name.endswith(ends)])

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
        seconds, steps = round(self.train_seconds, 3), self.state.global_step
        settings = {"learning_rate": self.args.learning_rate, "seed": self.args.seed}
        done = {"steps": steps, "train_seconds": seconds, DATA: self.data_hash}
        return {**self.facts, **settings, **done}

    def describe_run(self, name: str) -> Stage:
        """This training as a stage, with the record and the log so far."""
        return describe_stage(
            name,
            self.run_settings,
            {**describe_machine(), **self.run_facts()},
            self.state.log_history,
        )

    def train(  # type: ignore[override]
        self, resume_from_checkpoint: str | Path | bool | None = None, **kwargs: Any
    ) -> TrainOutput:
        """Train, by default from the last complete checkpoint of `output_dir`.

        It is continued if it is of the same run: with the same settings, start and data.

        Args:
            resume_from_checkpoint: True or a folder for a checkpoint of other settings, but not of
                other data; False to start again, which removes the checkpoints in `output_dir`.
            **kwargs: for `Trainer.train`.

        Raises:
            ValueError: the checkpoint is of another run or holds the model only, or there was
                nothing to train on.
            FileNotFoundError: there is no complete checkpoint, but True was given.
        """
        with self.args.main_process_first(desc="finding the checkpoint"):
            checkpoint = self._enter_folder(resume_from_checkpoint)
        resume, before, self._first_step = None, 0.0, 0
        if checkpoint is not None:
            state = _state(checkpoint)
            resume, self._first_step = str(checkpoint), state.global_step
            if self.args.logging_steps < 1:  # a share of all steps, which are now known
                self.args.logging_steps = state.logging_steps
            before = _callbacks_of(state).get("Clock", {}).get("train_seconds", 0.0)
            logger.warning("Resuming from %s, step %d.", checkpoint, self._first_step)
        self._started, self._ended = time.perf_counter() - before, None
        output = super().train(resume_from_checkpoint=resume, **kwargs)
        self._ended = time.perf_counter()
        if self.state.global_step == 0:
            raise ValueError(
                "The training ended after 0 steps, so the model was not trained: check"
                " num_train_epochs, and that the data have at least one batch of"
                f" {self.args.train_batch_size * self.args.world_size} (dataloader_drop_last drops"
                " others)."
            )
        if self.state.global_step == self._first_step:
            logger.warning("The run was trained to its end before: no step was trained.")
        return output._replace(training_loss=output.metrics["train_loss"])

    def _enter_folder(self, asked: str | Path | bool | None) -> Path | None:
        """Find the checkpoint to resume from, and refuse a folder or checkpoint of another run."""
        folder = Path(str(self.args.output_dir))
        if asked is None:
            check_run_folder(folder, self.run_settings, self.data_hash)
        last = last_checkpoint(folder)
        checkpoint = Path(asked) if isinstance(asked, str | Path) else last
        if asked is False:
            checkpoint = None
            for older in all_checkpoints(folder) if self.is_world_process_zero() else ():
                logger.warning("Starting again: removing %s.", older)
                shutil.rmtree(older)
        elif asked is True and checkpoint is None:
            raise FileNotFoundError(f"{folder} has no complete checkpoint to resume.")
        if checkpoint is not None:
            if not any(checkpoint.glob("rng_state*.pth")):
                raise ValueError(
                    f"{checkpoint} holds no state of a training, which is not saved with "
                    "save_only_model, so none can be continued from it: open it as the model of a "
                    "new run, or start again, each in another output_dir."
                )
            if last and _state(last).global_step > _state(checkpoint).global_step:
                raise ValueError(
                    f"{last} is newer than {checkpoint}, and a later resume would take it: choose "
                    "another output_dir, or remove the newer checkpoints."
                )
        if asked is None and self.is_world_process_zero():
            claim_run_folder(folder, self.run_settings, self.data_hash)
        return checkpoint

    @property
    def train_seconds(self) -> float:
        """Seconds of the training so far, over all sessions of a run that was resumed."""
        return (time.perf_counter() if self._ended is None else self._ended) - self._started

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """The Trainer's loop, whose seconds are not counted as training."""
        started = time.perf_counter()
        output = super().evaluation_loop(*args, **kwargs)
        self.exclude_time(time.perf_counter() - started)
        return output

    def exclude_time(self, seconds: float) -> None:
        """Do not count these seconds as training, because something else took them."""
        self._started += seconds if self._ended is None else 0.0

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """The Trainer's log; the last entry of a resumed run states the loss of all its steps."""
        history = [entry for entry in self.state.log_history if "loss" in entry]
        earlier = [entry for entry in history if entry["step"] <= self._first_step]
        if "train_loss" in logs and earlier:
            steps = [0, *(entry["step"] for entry in earlier)]
            sums = (e["loss"] * (e["step"] - last) for e, last in zip(earlier, steps, strict=False))
            before = self._first_step * sum(sums) / steps[-1]
            logs["train_loss"] = (before + self._total_loss_scalar) / self.state.global_step
        super().log(logs, start_time)

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

    def _save_rng_state(self, output_dir: str) -> None:
        """As the Trainer; the state that marks a complete checkpoint follows in all processes."""
        super()._save_rng_state(output_dir)
        _callbacks_of(self.state)["Clock"] = {"train_seconds": self.train_seconds}
        self.accelerator.wait_for_everyone()

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Push nothing during training: `push_to_hub` pushes the whole repository at its end."""

    def push_to_hub(  # type: ignore[override]
        self,
        commit_message: str = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        license: str | None = None,
        language: str | list[str] | None = None,
        tags: str | list[str] | None = None,
        **_: Any,
    ) -> CommitInfo | Future | None:
        """Push the current model as a whole repository, after writing it (`write_model`).

        The arguments are those of transformers. Of those for the model card, license, language and
        tags are used; the others are known from the run.

        Returns:
            The commit (a future of it if not blocking); None in all processes but the first.

        Raises:
            OSError: the Hub failed or refused.
        """
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        self._finish_current_push()
        stated = {"license": license, "language": language, "tags": tags}
        folder = self.write_model(**{name: value for name, value in stated.items() if value})
        if not self.is_world_process_zero():
            return None
        upload = self._upload(folder, commit_message, token=token, revision=revision)
        return upload.result() if blocking else upload

    def write_model(self, **metadata: Any) -> Path:
        """Write the repository of the current model to the run folder, atomically.

        `metadata` is of the card, such as its license.
        """
        model_folder = Path(str(self.args.output_dir), MODEL_FOLDER)
        is_first = self.is_world_process_zero()
        # In all processes, because each may hold a part of the model.
        with atomic_folder(model_folder) if is_first else nullcontext(model_folder) as folder:
            self.save_model(str(folder), _internal_call=True)
            if is_first:
                (folder / TRAINING_ARGS_NAME).unlink(missing_ok=True)  # a pickle
                write_card(folder, name=self.hub_model_id, metadata=metadata)
        self.accelerator.wait_for_everyone()
        return model_folder

    def _upload(self, folder: Path, message: str, **how: Any) -> Future:
        """Commit a folder in the background; `how` is for `commit_folder`."""
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        default = {"token": self.args.hub_token, "revision": self.args.hub_revision}
        stated = {name: value for name, value in how.items() if value is not None}
        name = str(self.hub_model_id)
        return run_as_future(commit_folder, folder, name, message=message, **{**default, **stated})


class _SetEpoch(TrainerCallback):
    """Calls `set_epoch`; transformers does so in some distributed setups only."""

    def __init__(self, trainer: ResumableTrainer):
        self.trainer = trainer

    def on_epoch_begin(self, args: Any, state: TrainerState, *_: Any, **__: Any) -> None:
        for drawn in self.trainer.epoch_dependent:
            drawn.set_epoch(int(state.epoch or 0))


def _state(checkpoint: Path) -> TrainerState:
    return TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))


def _callbacks_of(state: TrainerState) -> dict[str, Any]:
    """The part of the Trainer's state that callbacks store in a checkpoint."""
    stored: Any = state.stateful_callbacks  # annotated as a list, which it is only at first
    return stored
