"""A Trainer that loses nothing: whole checkpoints, and repositories that load after every push.

Mixed into the library's Trainer, or into one that is made from it. The library's own pushes leave
out code and card and send a pickle of the arguments, and its two commits can part; here each push
is one commit of a whole repository.
"""

import logging
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import Trainer
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy
from transformers.utils.hub import PushInProgress

from modeling_condenser.runs.checkpoints import (
    MANIFEST,
    drop_old_checkpoints,
    last_whole_checkpoint,
    seal_checkpoint,
)
from modeling_condenser.runs.whole_files import link_or_copy

from .checkpoint_fetching import LAST_CHECKPOINT, fetch_checkpoint
from .commits import Committed, Target, commit
from .errors import HubError, hub_errors
from .retries import retrying

logger = logging.getLogger(__name__)

_STALE_WEIGHTS = ("model*.safetensors", "model.safetensors.index.json", "pytorch_model*")


class WholeTrainer(Trainer):
    """What the trainers of this package share. `write_repository` is theirs to say.

    With `push_to_hub=True`, `hub_strategy` means what it means for the library: "end" pushes by
    `push_to_hub()` only, "every_save" with every checkpoint, "checkpoint" with the training state
    in `last-checkpoint/` too, "all_checkpoints" with each in its own folder. A push that fails
    does not end the training; the next one sends what is missing.
    """

    @cached_property
    def _pusher(self) -> ThreadPoolExecutor:
        """One push after the other: each is compared with what the one before it left."""
        return ThreadPoolExecutor(max_workers=1, thread_name_prefix="push")

    def write_repository(self, folder: Path, checkpoint: Path | None) -> None:
        """Fill an empty folder with all that a repository of the model as it stands must hold.

        Args:
            folder: to fill.
            checkpoint: that was just saved and holds the model; None to save it from memory.
        """
        raise NotImplementedError

    # Checkpoints

    def find_resume(self, asked: str | bool | None) -> str | None:
        """The checkpoint to go on from.

        Args:
            asked: a checkpoint folder; a repository of the Hub that holds one; None or True for
                the last whole one of `output_dir`, if any; False to start anew.
        """
        if asked is False:
            return None
        run_folder = Path(str(self.args.output_dir))
        if isinstance(asked, str):
            if Path(asked).is_dir():
                return asked
            with self.args.main_process_first():
                return str(fetch_checkpoint(asked, run_folder))
        last = last_whole_checkpoint(run_folder)
        return str(last) if last else None

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save, seal, let older checkpoints go, and push.

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
        if self.args.push_to_hub:
            self._push_checkpoint(folder)
        if self.args.should_save:
            drop_old_checkpoints(run_folder, keep=keep, best=self.state.best_model_checkpoint)

    # Pushes

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Make the repository, before any training."""
        token = token or self.args.hub_token
        name = self.args.hub_model_id or Path(str(self.args.output_dir)).absolute().name
        with hub_errors(f"make the repository {name}", token=token):
            retrying(lambda: super(WholeTrainer, self).init_hf_repo(token=token, private=private))

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: `write_repository` writes the card, which knows more."""

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Nothing yet: the checkpoint is not sealed when the library asks for its push."""

    def _push_checkpoint(self, checkpoint: Path) -> None:
        """Push the model as of a checkpoint, and the checkpoint with it if that is wanted."""
        if not self.is_world_process_zero():
            return
        strategy = HubStrategy(self.args.hub_strategy)
        is_busy = self.push_in_progress is not None and not self.push_in_progress.is_done()
        if strategy == HubStrategy.END or (is_busy and not self.args.hub_always_push):
            return
        staging = self._new_staging()
        self.write_repository(staging, checkpoint)
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        stale: tuple[str, ...] = _STALE_WEIGHTS
        if strategy == HubStrategy.CHECKPOINT:
            _add_training_state(checkpoint, staging / LAST_CHECKPOINT)
            stale = (*stale, f"{LAST_CHECKPOINT}/*")
        elif strategy == HubStrategy.ALL_CHECKPOINTS:
            _add_training_state(checkpoint, staging / checkpoint.name)
        message = f"Training in progress, step {self.state.global_step}"
        self._start_push(staging, message, stale=stale)

    def push_to_hub(  # type: ignore[override]
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Committed | Future | None:
        """Push the model as it stands, as a whole repository.

        Args:
            commit_message: of the commit.
            blocking: whether to return only when it is done.
            token: by default `hub_token`, or the one that is logged in.
            revision: branch; by default `hub_revision`.
            private: whether a new repository is private.
            **kwargs: for the library's card, which is not written.

        Returns:
            The commit (a future of it if not blocking); None in all processes but the first.

        Raises:
            HubError: the Hub refused, or could not be reached; the repository is as it was.
        """
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        self._finish_current_push()
        staging = self._new_staging()
        self.accelerator.wait_for_everyone()
        self.write_repository(staging, None)
        if not self.is_world_process_zero():
            return None
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        future = self._start_push(
            staging, commit_message or "End of training", token=token, revision=revision
        )
        return future.result() if blocking else future

    def _new_staging(self) -> Path:
        staging = Path(str(self.args.output_dir)) / f".push-{self.state.global_step}"
        if self.is_world_process_zero():
            shutil.rmtree(staging, ignore_errors=True)  # of a process that was killed
            staging.mkdir(parents=True)
        return staging

    def _start_push(
        self,
        staging: Path,
        message: str,
        *,
        stale: tuple[str, ...] = _STALE_WEIGHTS,
        token: str | None = None,
        revision: str | None = None,
    ) -> Future:
        """Commit a folder in a thread of its own, and remove it then."""
        target = Target(
            str(self.hub_model_id),
            revision=revision or self.args.hub_revision,
            token=token or self.args.hub_token,
        )
        files = {
            file.relative_to(staging).as_posix(): file
            for file in sorted(staging.rglob("*"))
            if file.is_file()
        }

        def push() -> Committed:
            try:
                return commit(files, target, message=message, stale=stale)
            except HubError as error:
                logger.warning("%s The training is not touched by it.", error)
                raise
            finally:
                shutil.rmtree(staging, ignore_errors=True)

        future = self._pusher.submit(push)
        if self.push_in_progress is None or self.push_in_progress.is_done():
            self.push_in_progress = PushInProgress([future])  # type: ignore
        else:
            self.push_in_progress.jobs.append(future)
        return future


def _add_training_state(checkpoint: Path, folder: Path) -> None:
    """Put a complete checkpoint into a folder, without the pickle of the arguments."""
    for file in checkpoint.rglob("*"):
        if file.is_file() and file.name != TRAINING_ARGS_NAME:
            target = folder / file.relative_to(checkpoint)
            target.parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(file, target)
