"""Publish a model on the Hugging Face Hub, in one commit, after all checks.

    condenser push my-encoder owner/my-encoder --license apache-2.0 --dry-run
    condenser push runs/retriever owner/my-retriever --private
    condenser push runs/mine owner/my-condenser --revision experiment

Pickles, tokens and local paths are refused; the card must be complete; and the repository must open
in a process without this package installed. Files that the Hub already holds are not sent again.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .command_line import fill_settings

if TYPE_CHECKING:
    from modeling_condenser.publishing.push import PushReport


@dataclass(frozen=True)
class PushFields:
    """The fields of `condenser push`.

    Attributes:
        folder: an export, a fine-tuning or pre-training run, or one of its checkpoints.
        name: owner/name of the repository, which is created if needed.
        private: create the repository as a private one.
        revision: branch, which is created if needed.
        create_pr: open a pull request instead of committing to the branch.
        license: of the model, such as apache-2.0, if its card states none.
        message: of the commit.
        dry_run: check and compare, but send nothing.
    """

    folder: str
    name: str
    private: bool = False
    revision: str | None = None
    create_pr: bool = False
    license: str | None = None
    message: str | None = None
    dry_run: bool = False


def run(words: list[str]) -> None:
    fields = fill_settings("push", words, PushFields, plain=("folder", "name"), about=__doc__)
    from modeling_condenser.publishing.push import push

    report = push(
        fields.folder,
        fields.name,
        private=fields.private or None,
        revision=fields.revision,
        create_pr=fields.create_pr,
        license=fields.license,
        message=fields.message,
        dry_run=fields.dry_run,
        announce=lambda report: print(describe_plan(report), flush=True),
    )
    print(describe_outcome(report))


def describe_plan(report: "PushReport") -> str:
    """List the files, their sizes, and which of them would be sent."""
    changed = report.sizes if report.plan is None else report.plan.changed
    lines = [
        f"{'send' if path in changed else 'same':>6} {size:>14,} bytes  {path}"
        for path, size in report.sizes.items()
    ]
    lines += [f"remove {'':>20}  {path}" for path in (report.plan.removed if report.plan else ())]
    if report.left_out:
        lines.append(f"left here, for training only: {', '.join(report.left_out)}")
    lines += [f"note: {difference}" for difference in report.differences]
    n_bytes = sum(report.sizes[path] for path in changed)
    lines.append(f"to send: {len(changed)} of {len(report.sizes)} files, {n_bytes:,} bytes")
    if report.unasked:
        lines.append(f"not compared with the Hub: {report.unasked}")
    return "\n".join(lines)


def describe_outcome(report: "PushReport") -> str:
    """Name the commit, or say that there is none."""
    done = report.committed
    if done is None:
        return f"dry run: nothing was sent to {report.target.url}"
    if not done.is_new:
        return f"nothing to do: {report.target.url} holds it at {done.sha}"
    return f"pushed: {done.url}\npin it: {report.target.name}@{done.sha}"
