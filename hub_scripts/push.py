"""Publish a model on the Hugging Face Hub, in one commit, after all checks.

    condenser push my-encoder owner/my-encoder --license apache-2.0 --dry-run
    condenser push runs/retriever owner/my-retriever --private
    condenser push runs/mine owner/my-condenser --revision experiment

Pickles, tokens and local paths are refused; the card must name a license; and the repository must
open in a process without this package installed. Files that the Hub already holds are not resent.
"""

from modeling_condenser.hub.push import push

from .command_line import CommandLine, fields_of


def run(line: CommandLine) -> None:
    fields = line.fill(fields_of(push, without=("token",)), plain=("folder", "name"))
    report = push(**vars(fields))
    for path, size in report.sizes.items():
        print(f"{size:>14,} bytes  {path}")
    print(f"{sum(report.sizes.values()):>14,} bytes in {len(report.sizes)} files")
    if report.commit is None:
        print(f"dry run: nothing was sent to {fields.name}")
    else:
        url = report.commit.pr_url or report.commit.commit_url
        print(f"pushed: {url}\npin it: {fields.name}@{report.commit.oid}")
