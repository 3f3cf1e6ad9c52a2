"""A Trainer that continues the run of its folder by default, and pushes whole repositories.

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

from accelerate.utils import gather_object
from huggingface_hub import CommitInfo, run_as_future
from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME, TRAINING_ARGS_NAME
from transformers.trainer_utils import EvalLoopOutput, HubStrategy, TrainOutput

from modeling_condenser.files.run_folder import (
    DATA,
    MODEL_FOLDER,
    all_checkpoints,
    atomic_folder,
    claim_run_folder,
    describe_machine,
    hash_data,
    is_complete,
    last_checkpoint,
    read_run,
    start_run,
)
from modeling_condenser.publishing.card import CARD_FILE, own_text, read_card, write_card
from modeling_condenser.publishing.export import have_equal_weights
from modeling_condenser.publishing.provenance import (
    RESULTS_FILE,
    Stage,
    describe_stage,
    read_provenance,
)
from modeling_condenser.publishing.push import PushRecipe, commit_folder, refuse_lost_text

logger = logging.getLogger(__name__)

_CLOCK = "Clock"  # among the states of callbacks
# In the record: the weights and the configuration that a run starts from.
MODEL_FINGERPRINT = "start_fingerprint"

# Arguments that transformers or a trainer computes if they are not given.
_COMPUTED = (
    "accelerator_config debug hub_token include_num_input_tokens_seen local_rank "
    "remove_unused_columns report_to restore_callback_states_from_checkpoint"
).split()


class ResumableTrainer(Trainer):
    """Base of the trainers of this package, whose `save_model` writes a repository but its card.

    Checkpoints are the Trainer's own. A checkpoint is complete if its trainer_state.json is
    readable, which is written last. Nothing is pushed before the end of the training.

    Attributes:
        record: what run.json and the model card say of the run, with fingerprints of the model and
            the data.
        settings: of the recipe; None in a script, whose settings are the trainer's arguments.
        is_over: whether early stopping had ended the run that is resumed.
        epoch_dependent: data and samplers whose `set_epoch` is called as each epoch begins.
    """

    record: dict[str, Any]
    settings: Mapping[str, Any] | None = None
    epoch_dependent: Sequence[Any] = ()

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        # By `time.perf_counter`; the start is moved by what is not counted.
        self._started: float = 0.0
        self._ended: float | None = 0.0
        self.is_over = False
        # So that a resumed run stops early where an uninterrupted one does.
        self.args.restore_callback_states_from_checkpoint = True
        self.add_callback(_Resume(self))
        if self.args.dataloader_persistent_workers:
            logger.warning(
                "dataloader_persistent_workers is true: a training that is resumed has other "
                "dropout from its next epoch on."
            )
        if self.args.push_to_hub and self.args.hub_strategy != HubStrategy.END:
            logger.warning("Checkpoints are not pushed: `push_to_hub()` pushes the finished model.")

    @property
    def run_settings(self) -> Mapping[str, Any]:
        """The settings of the run: those of the recipe, or in a script the trainer's arguments."""
        return self.script_settings() if self.settings is None else self.settings

    def script_settings(self) -> dict[str, Any]:
        """The settings of a run without a recipe: the arguments that differ from the defaults."""
        # Read from the class, because a second instance would reset the state of accelerate.
        defaults = {field.name: field.default for field in dataclasses.fields(self.args)}
        settings = {}
        for name, value in self.args.to_dict().items():
            default = defaults.get(name)
            if name not in _COMPUTED and value != default and (value or default):
                settings[name] = value
        return settings

    @property
    def global_batch(self) -> int | None:
        """The size of a step's batch over all processes, if the loss depends on no other size."""
        return None

    @property
    def data_hash(self) -> str:
        """Hash of the model that the run starts from, and of its data."""
        ends = ("_fingerprint", "_sha256")
        return hash_data([v for name, v in sorted(self.record.items()) if name.endswith(ends)])

    def run_record(self) -> dict[str, Any]:
        """Facts about data and training so far, for the run's record and the card."""
        return {
            **self.record,
            "learning_rate": self.args.learning_rate,
            "seed": self.args.seed,
            "steps": self.state.global_step,
            "train_seconds": round(self.train_seconds, 3),
            DATA: self.data_hash,
        }

    def describe_run(self, name: str) -> Stage:
        """This training as a stage, with the record and the log so far."""
        record = {**describe_machine(), **self.run_record()}
        return describe_stage(name, self.run_settings, record, self.state.log_history)

    def train(  # type: ignore[override]
        self, resume_from_checkpoint: str | Path | bool | None = None, **kwargs: Any
    ) -> TrainOutput:
        """Train, by default from the last complete checkpoint of `output_dir`.

        Args:
            resume_from_checkpoint: by default, the run in `output_dir` is continued if it has the
                same settings, start and data, and another one refused once it has a checkpoint or a
                model. True or a folder continues a checkpoint of the same start and data, whatever
                its settings. With a checkpoint elsewhere a run begins, which is continued like
                others once `output_dir` has a checkpoint of its own. False is an error if
                `output_dir` has a checkpoint, which would be lost, or the model of another run.
            **kwargs: for `Trainer.train`.

        Raises:
            ValueError: `output_dir` holds another run, a checkpoint holds the model only, or there
                was nothing to train on.
            FileNotFoundError: there is no complete checkpoint, but True was given.
        """
        if resume_from_checkpoint is False and self.state.global_step:
            raise ValueError(
                "This trainer has trained its model already: to start again, make both anew, with "
                "another output_dir."
            )
        self.check_processes()
        with self.args.main_process_first(desc="finding the checkpoint"):
            checkpoint = self._find_checkpoint(resume_from_checkpoint)
        before, n_steps, self.is_over = 0.0, 0, False
        if checkpoint is not None:
            state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
            if self.args.logging_steps < 1:  # a share of all steps, which are now known
                self.args.logging_steps = state.logging_steps
            n_steps = state.global_step
            before = _callback_states(state).get(_CLOCK, {}).get("train_seconds", 0.0)
            self.is_over = resume_from_checkpoint is None and _has_stopped_early(state)
            logger.warning("Resuming from %s, step %d.", checkpoint, state.global_step)
        self.load_data_state(checkpoint, n_steps)
        self._started, self._ended = time.perf_counter() - before, None
        output = super().train(str(checkpoint) if checkpoint else None, **kwargs)
        self._ended = time.perf_counter()
        if self.state.global_step == 0:
            raise ValueError(
                "The training ended after 0 steps: check num_train_epochs, and that the data have "
                f"a batch of {self.args.train_batch_size * self.args.world_size}."
            )
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint:
            self.record["best_step"] = self.state.best_global_step
        return output

    def check_processes(self) -> None:
        """Raise a ValueError in all processes unless they have the same start, data and folder."""
        if len(set(gather_object([self.data_hash]))) > 1:
            raise ValueError(
                "The processes have different models or data: give them the same files or the "
                "whole stream, each shuffle, interleave and train_test_split a seed, and build the "
                "model after set_seed."
            )
        self.accelerator.wait_for_everyone()
        folder = Path(str(self.args.output_dir))
        seen = [path.name for path in all_checkpoints(folder) if is_complete(path)]
        seen += [MODEL_FOLDER] * (folder / MODEL_FOLDER).is_dir()
        if len(set(map(tuple, gather_object([seen])))) > 1:
            raise ValueError(
                f"The processes see different checkpoints or models in {folder}: name a folder "
                "that all machines share."
            )

    def load_data_state(self, checkpoint: Path | None, n_steps: int) -> None:
        """Let data that keep a state of their own begin, or continue after a checkpoint's steps."""

    def save_data_state(self, checkpoint: Path) -> None:
        """Write the state of data that keep one to a checkpoint, in each process."""

    def _find_checkpoint(self, resume: str | Path | bool | None) -> Path | None:
        """The checkpoint to continue; claims the folder for a run without a recipe."""
        folder = Path(str(self.args.output_dir))
        own = last_checkpoint(folder)
        if resume is False and own:
            raise ValueError(
                f"{own} would be lost: leave resume_from_checkpoint out to continue from it, or "
                "choose another output_dir to start again."
            )
        named = Path(resume) if isinstance(resume, str | Path) else None
        begins_there = named is not None and named.resolve().parent != folder.resolve()
        if begins_there and own:
            logger.warning("%s has begun already, so %s is not opened again.", folder, named)
            named = None
        if named is not None and not is_complete(named):
            raise FileNotFoundError(
                f"resume_from_checkpoint is {str(named)!r}, which is no complete checkpoint: name "
                "a folder such as checkpoint-500."
            )
        is_in_a_script = self.settings is None and self.is_world_process_zero()
        if is_in_a_script and (begins_there or not resume):
            claim = claim_run_folder if own or (folder / MODEL_FOLDER).is_dir() else start_run
            try:
                claim(folder, self.run_settings, self.data_hash, batch=self.global_batch)
            except ValueError as error:
                advice = "train(resume_from_checkpoint=True) continues it with other settings."
                raise ValueError(f"{error} {advice}") from None
        checkpoint = named or own
        if checkpoint is None and resume:
            raise FileNotFoundError(f"{folder} has no complete checkpoint to resume.")
        stored = read_run(checkpoint.parent).get(DATA) if checkpoint else None
        if stored not in (None, self.data_hash):
            raise ValueError(
                f"{checkpoint} is of a run on other data or from another model (data: "
                f"{stored[:12]} then, {self.data_hash[:12]} now): give the trainer those of that "
                "run (shuffled with a seed), or start from the checkpoint as a model."
            )
        if checkpoint and not any(checkpoint.glob("rng_state*.pth")):
            raise ValueError(
                f"{checkpoint} holds only a model (save_only_model): choose another output_dir, "
                "and start from the model."
            )
        return checkpoint

    @property
    def train_seconds(self) -> float:
        """Seconds of the training so far, over all sessions of a run that was resumed."""
        return (time.perf_counter() if self._ended is None else self._ended) - self._started

    def exclude_time(self, seconds: float) -> None:
        """Do not count these seconds as training, because something else took them."""
        self._started += seconds if self._ended is None else 0.0

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """The Trainer's loop, whose seconds are not counted as training."""
        started = time.perf_counter()
        output = super().evaluation_loop(*args, **kwargs)
        self.exclude_time(time.perf_counter() - started)
        return output

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Refuse a checkpoint that does not fit the model; it stores shared weights once."""
        model: Any = self.model
        weights, not_stored = model.state_dict(), set(load_result.missing_keys)
        loaded = {weight.data_ptr() for name, weight in weights.items() if name not in not_stored}
        missing = sorted(name for name in not_stored if weights[name].data_ptr() not in loaded)
        if missing or load_result.unexpected_keys:
            raise ValueError(
                f"The checkpoint does not fit the model: weights are missing ({missing[:3]}) or "
                f"unknown ({load_result.unexpected_keys[:3]}). Build the model as for its run."
            )

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list, Any]:
        """As in `Trainer`, but no batches for a training that is resumed after its last step."""
        if self.is_over or self.state.global_step >= self.state.max_steps:
            return [], None
        return super().get_batch_samples(*args, **kwargs)

    def _save_rng_state(self, output_dir: str) -> None:
        """As the Trainer, then wait for all processes: the state that marks the end comes next."""
        super()._save_rng_state(output_dir)
        self.save_data_state(Path(output_dir))
        _callback_states(self.state)[_CLOCK] = {"train_seconds": self.train_seconds}
        self.accelerator.wait_for_everyone()

    def _load_callback_state(self) -> None:
        """As the Trainer, which knows callbacks only."""
        _callback_states(self.state).pop(_CLOCK, None)
        super()._load_callback_state()

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Push nothing during training: `push_to_hub` pushes the whole repository at its end."""

    def push_to_hub(  # type: ignore[override]
        self,
        commit_message: str = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **metadata: Any,
    ) -> CommitInfo | Future | None:
        """Push the current model as a whole repository in one commit, after `write_model`.

        The arguments are those of transformers. Of those for the model card, license, language and
        tags are used; the others are known from the run. Only the first process has a result.

        Raises:
            ValueError: the card on the Hub has text or metadata that the new one lacks.
        """
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        names = ("license", "language", "tags")
        folder = self.write_model(**{name: metadata[name] for name in names if name in metadata})
        if not self.is_world_process_zero():
            return None
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        name, token = str(self.hub_model_id), token or self.args.hub_token
        revision = revision or self.args.hub_revision
        recipe = PushRecipe(str(folder), name, revision=revision, license=metadata.get("license"))
        refuse_lost_text(folder / CARD_FILE, folder / CARD_FILE, recipe, token)
        upload = run_as_future(
            commit_folder, folder, name, message=commit_message, token=token, revision=revision
        )
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
                _keep_card_and_results(model_folder, folder, self.data_hash)
                write_card(folder, name=self.hub_model_id, metadata=metadata)
        self.accelerator.wait_for_everyone()
        return model_folder


def _keep_card_and_results(old: Path, new: Path, data: str) -> None:
    """Copy the card of the model that is replaced; its results, if the weights are equal.

    Of another run, only the text that a person wrote is copied.
    """
    kept = [CARD_FILE]
    stages = read_provenance(old)
    if not stages or stages[-1].run.get(DATA) != data:
        kept, text = [], own_text(read_card(old / CARD_FILE)[1])
        if text:
            (new / CARD_FILE).write_text(text, encoding="utf-8")
    if have_equal_weights(old, new):
        kept.append(RESULTS_FILE)
    for name in kept:
        if (old / name).is_file():
            shutil.copyfile(old / name, new / name)


def check_one_device(args: TrainingArguments) -> None:
    """Raise a ValueError if one process would train on several GPUs."""
    if args.n_gpu > 1:
        raise ValueError(
            f"One process sees {args.n_gpu} GPUs, but a batch is for one: start a process for each "
            "with torchrun or accelerate launch, or set CUDA_VISIBLE_DEVICES to one."
        )


class _Resume(TrainerCallback):
    """Gives a resumed run its present intervals, and its best checkpoint where the folder is now.

    It also calls `set_epoch`, which transformers does in some distributed setups only.
    """

    def __init__(self, trainer: ResumableTrainer):
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: TrainerState, *_: Any, **__: Any) -> None:
        state.compute_steps(args, state.max_steps)
        best = Path(str(args.output_dir), f"checkpoint-{state.best_global_step}")
        if best.is_dir():
            state.best_model_checkpoint = str(best)

    def on_epoch_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        for drawn in self.trainer.epoch_dependent:
            drawn.set_epoch(int(state.epoch or 0))
        if self.trainer.is_over:
            control.should_training_stop = True


def _has_stopped_early(state: TrainerState) -> bool:
    """Whether early stopping ended the training here; other callbacks may only interrupt it."""
    stored = _callback_states(state).get("EarlyStoppingCallback", [])
    return any(
        each["attributes"]["early_stopping_patience_counter"]
        >= each["args"]["early_stopping_patience"]
        for each in (stored if isinstance(stored, list) else [stored])
    )


def _callback_states(state: TrainerState) -> dict[str, Any]:
    """The part of the Trainer's state that callbacks store in a checkpoint."""
    stored: Any = state.stateful_callbacks  # annotated as a list, which it is only at first
    return stored
