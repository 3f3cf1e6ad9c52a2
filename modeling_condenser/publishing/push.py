"""Publish an encoder, a retriever or a checkpoint: gather, check, open as a user would, commit."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from huggingface_hub import hf_hub_download

from modeling_condenser.hub.commits import Committed, Target, commit_folder
from modeling_condenser.hub.errors import NotOnHubError, hub_errors
from modeling_condenser.hub.model_folder import CONFIG_FILE, is_checkpoint
from modeling_condenser.repository.card import CARD_FILE, read_card, write_card
from modeling_condenser.repository.checks import card_problems
from modeling_condenser.repository.contract import CONTRACT_FILE
from modeling_condenser.repository.provenance import (
    PROVENANCE_FILE,
    read_pretraining,
    write_provenance,
)
from modeling_condenser.runs.checkpoints import MANIFEST, is_training_state, last_whole_checkpoint
from modeling_condenser.runs.run_folder import MODEL_FOLDER
from modeling_condenser.runs.whole_files import is_partial

from .contents import find_refusals

Kind = Literal["encoder", "checkpoint"]
_OPENING = Path(__file__).with_name("open_repository.py")
_IGNORED = (".git", ".cache", ".ipynb_checkpoints", "__pycache__", ".DS_Store")


@dataclass(frozen=True)
class PushReport:
    """What was pushed, or would be.

    Attributes:
        target: where to.
        sizes: path in the repository -> bytes.
        left_out: files of a training checkpoint that are not pushed.
        committed: the commit; None in a dry run.
    """

    target: Target
    sizes: dict[str, int]
    left_out: list[str]
    committed: Committed | None = None


def push(
    folder: str | Path,
    name: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    license: str | None = None,
    message: str | None = None,
    token: str | None = None,
    dry_run: bool = False,
    announce: Callable[[PushReport], None] | None = None,
) -> PushReport:
    """Publish an encoder, a retriever or a pre-training checkpoint on the Hub, in one commit.

    Checked first: no pickles, secrets or local paths, a complete card, and that the repository
    opens in a process without this package. The folder itself is not changed.

    Args:
        folder: an export, a fine-tuning or pre-training run, or one of its checkpoints.
        name: `owner/name` of the repository, made if it does not exist.
        private: whether a new repository is private.
        revision: branch, made if it does not exist.
        create_pr: open a pull request instead of committing to the branch.
        license: such as "apache-2.0"; by default that of the card, or of the card on the Hub.
        message: of the commit.
        token: None for the one that is logged in, or HF_TOKEN.
        dry_run: check only.
        announce: called with the report after all checks, before anything is sent.

    Raises:
        FileNotFoundError: there is no such folder, or no model in it.
        ValueError: something must be corrected before publishing; all reasons are listed.
        HubError: the Hub failed or refused; the repository is unchanged.
    """
    target = Target(name, revision, private, create_pr, token)
    source = find_publishable(Path(folder))
    kind: Kind = "encoder" if (source / CONTRACT_FILE).is_file() else "checkpoint"
    if kind == "checkpoint" and not is_checkpoint(source):
        raise ValueError(
            f"{source} has no {CONTRACT_FILE}, so how it encodes is unknown: push an export, a "
            "retriever (condenser finetune) or a Condenser checkpoint (condenser pretrain)."
        )
    with tempfile.TemporaryDirectory(prefix="condenser-push-") as scratch:
        staging = Path(scratch, name.rpartition("/")[2])
        left_out = _link_files(source, staging)
        if kind == "checkpoint" and not (staging / PROVENANCE_FILE).is_file():
            write_provenance(staging, read_pretraining(source.parent))
        metadata = {"license": license} if license else _find_license(staging, target)
        write_card(staging, name=name, metadata=metadata)
        files = {path.relative_to(staging).as_posix(): path for path in _files(staging)}
        reasons = [*find_refusals(files), *card_problems(staging)]
        # A model is opened only if nothing else is wrong, since opening a pickle executes code.
        reasons = reasons or [f"opening it: {p}" for p in opening_problems(staging, kind)]
        if reasons:
            listed = "\n".join(f"  - {reason}" for reason in reasons)
            raise ValueError(f"{source} cannot be published; nothing was sent:\n{listed}")
        sizes = {path: file.stat().st_size for path, file in files.items()}
        report = PushReport(target, sizes, left_out)
        if announce is not None:
            announce(report)
        if dry_run:
            return report
        message = message or f"Push {kind} with condenser"
        return replace(report, committed=commit_folder(staging, target, message=message))


def find_publishable(folder: Path) -> Path:
    """The folder with the weights: itself, or a run's model, or its last checkpoint.

    Raises:
        FileNotFoundError: there is no such folder, or no model in it.
    """
    for found in (folder, folder / MODEL_FOLDER):
        if (found / CONFIG_FILE).is_file():
            return found
    checkpoint = last_whole_checkpoint(folder) if folder.is_dir() else None
    if checkpoint is None:
        raise FileNotFoundError(
            f"There is no model in {folder}: expected a folder with {CONFIG_FILE}, or a run with "
            f"{MODEL_FOLDER}/ or checkpoint-N/."
        )
    return checkpoint


def _link_files(source: Path, staging: Path) -> list[str]:
    """Link the files to publish into a folder; returns the training state that is left out."""
    is_training = (source / MANIFEST).is_file()
    left_out = []
    for path in _files(source):
        relative = path.relative_to(source)
        if is_training and is_training_state(path):
            left_out.append(relative.as_posix())
            continue
        (staging / relative).parent.mkdir(parents=True, exist_ok=True)
        (staging / relative).symlink_to(path.resolve())
    return left_out


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.is_file() and not is_partial(path) and not {*parts} & {*_IGNORED}:
            yield path


def _find_license(staging: Path, target: Target) -> dict[str, Any]:
    """The license on the card on the Hub, if the local card states none."""
    if read_card(staging / CARD_FILE)[0].get("license"):
        return {}
    try:
        with hub_errors(f"read the card of {target.name}"):
            card = hf_hub_download(
                target.name, CARD_FILE, revision=target.revision, token=target.token
            )
    except NotOnHubError:
        return {}
    metadata, _ = read_card(Path(card))
    return {key: value for key, value in metadata.items() if key.startswith("license")}


def opening_problems(folder: Path, kind: Kind) -> list[str]:
    """Open a repository in a process without this package, and return what does not work."""
    with tempfile.TemporaryDirectory(prefix="condenser-open-") as scratch:
        process = subprocess.run(
            [sys.executable, "-IB", str(_OPENING), str(folder), kind],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,  # nobody answers a question
            cwd=scratch,
            env={
                **os.environ,
                "HF_HUB_OFFLINE": "1",
                "HF_MODULES_CACHE": scratch,
                "TRANSFORMERS_VERBOSITY": "error",
                "TOKENIZERS_PARALLELISM": "false",
            },
        )
    lines = process.stdout.strip().splitlines()
    if process.returncode or not lines:
        return [f"the process ended with status {process.returncode}: {process.stderr[-2000:]}"]
    return list(json.loads(lines[-1]))
