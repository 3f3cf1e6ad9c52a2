"""Publish a model on the Hugging Face Hub, in one commit, after all checks.

    condenser push my-encoder owner/my-encoder --license apache-2.0 --dry-run
    condenser push runs/retriever owner/my-retriever --private
    condenser push runs/mine owner/my-condenser --revision experiment

Pickles, tokens and local paths are refused; the card must name a license; and the repository must
open in a process without this package installed. Files that the Hub already holds are not resent.
"""

from dataclasses import dataclass

from .command_line import fill_settings


@dataclass(frozen=True)
class PushFields:
    """The fields of `condenser push`.

    Attributes:
        folder: an export, a fine-tuning or pre-training run, or one of its checkpoints.
        name: owner/name of the repository, which is created if needed.
        private: create the repository as a private one.
        revision: branch, which is created if needed.
        create_pr: open a pull request instead of committing to the branch.
        license: license of the model, such as apache-2.0; by default as on its card, or on the Hub.
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
    from modeling_condenser.hub.push import push

    report = push(**{**vars(fields), "private": fields.private or None})
    for path, size in report.sizes.items():
        print(f"{size:>14,} bytes  {path}")
    print(f"{sum(report.sizes.values()):>14,} bytes in {len(report.sizes)} files")
    if report.commit is None:
        print(f"dry run: nothing was sent to {fields.name}")
    else:
        url = report.commit.pr_url or report.commit.commit_url
        print(f"pushed: {url}\npin it: {fields.name}@{report.commit.oid}")
