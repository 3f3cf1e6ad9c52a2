"""Publishing: a folder in; inspected, opened as a user would, and one commit of the Hub out."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from modeling_condenser.hub.commits import CommitPlan, Committed, Target, commit, plan_commit
from modeling_condenser.hub.errors import HubError
from modeling_condenser.repository.checks import card_problems

from .contents import find_refusals
from .staging import Kind, Staged, code_differences, stage_repository

_OPENING = Path(__file__).with_name("open_repository.py")
# Weights that a repository holds and the folder does not would be loaded beside the new ones.
_STALE = ("model*.safetensors", "model.safetensors.index.json", "pytorch_model*")


@dataclass(frozen=True)
class PushReport:
    """What was pushed, or would be.

    Attributes:
        target: where to.
        sizes: path in the repository -> bytes, of every file that it will hold of ours.
        plan: what differs from the Hub; None where a dry run could not ask it.
        left_out: files of a training checkpoint that stay here.
        differences: of a checkpoint's code from the installed package's.
        committed: the commit; None in a dry run.
        unasked: why a dry run could not ask the Hub.
    """

    target: Target
    sizes: dict[str, int]
    plan: CommitPlan | None
    left_out: list[str]
    differences: list[str]
    committed: Committed | None = None
    unasked: str | None = None


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
    """Publish an encoder, a retriever or a pre-training checkpoint on the Hub.

    First everything is checked: nothing that must not be published, a complete card, and that the
    repository opens in a process without this package. The folder itself is not changed; the card
    that is pushed has the repository's name in its examples.

    Args:
        folder: an export, a fine-tuning or pre-training run, or one of its checkpoints.
        name: `owner/name` of the repository, which is made where there is none.
        private: whether a new repository is private.
        revision: branch, which is made where there is none.
        create_pr: propose the commit as a pull request.
        license: of the model, such as "apache-2.0" or "other", where its card states none.
        message: of the commit.
        token: None for the one that is logged in, or HF_TOKEN.
        dry_run: check and compare, and change nothing.
        announce: is told what would be sent, after all checks and before anything is sent.

    Raises:
        FileNotFoundError: there is no such folder, or no model in it.
        ValueError: something must be mended before it may be published; all reasons are listed.
        HubError: the Hub refused, or could not be reached; the repository is as it was.
    """
    target = Target(name, "model", revision, private, create_pr, token)
    with tempfile.TemporaryDirectory(prefix="condenser-push-") as scratch:
        staging = Path(scratch, name.rpartition("/")[2])
        staging.mkdir()
        staged = stage_repository(folder, staging, name=name, license=license)
        _refuse_unfit(staged, staging)
        report = PushReport(
            target,
            {path: file.stat().st_size for path, file in staged.files.items()},
            None,
            staged.left_out,
            code_differences(staged),
        )
        try:
            report = replace(report, plan=plan_commit(staged.files, target, stale=_STALE))
        except HubError as error:
            if not dry_run:
                raise
            report = replace(report, unasked=str(error))
        if announce is not None:
            announce(report)
        if dry_run:
            return report
        message = message or f"Push {staged.kind} with condenser"
        committed = commit(staged.files, target, message=message, stale=_STALE)
        return replace(report, committed=committed)


def _refuse_unfit(staged: Staged, staging: Path) -> None:
    reasons = [str(refusal) for refusal in find_refusals(staged.files)]
    reasons += [f"README.md: {problem}" for problem in card_problems(staging)]
    # What executes code or is torn is not opened.
    reasons = reasons or [
        f"as a user would open it: {p}" for p in opening_problems(staging, staged.kind)
    ]
    if reasons:
        listed = "\n".join(f"  - {reason}" for reason in reasons)
        raise ValueError(
            f"{staged.source} is not fit to be published:\n{listed}\nMend this and push again; "
            "nothing was sent."
        )


def opening_problems(folder: Path, kind: Kind) -> list[str]:
    """Open a repository in a process that has not this package, and say what does not work."""
    with tempfile.TemporaryDirectory(prefix="condenser-open-") as scratch:
        process = subprocess.run(
            [sys.executable, "-I", str(_OPENING), str(folder), kind],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,  # nobody is there to be asked
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
