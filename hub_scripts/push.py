"""condenser push FOLDER OWNER/NAME: publish on the Hugging Face Hub.

    condenser push my-encoder owner/my-encoder --license apache-2.0 --dry-run
    condenser push runs/retriever owner/my-retriever --private
    condenser push runs/mine owner/my-condenser --revision experiment

FOLDER is an export, a fine-tuning or pre-training run, or one of its checkpoints. It must not hold
pickles, secrets or local paths, its card must be complete, and it must open in a process without
this package. Files that are on the Hub already are not sent again.
"""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modeling_condenser.publishing.push import PushReport


def run(words: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="condenser push",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="FOLDER", help="what to publish")
    parser.add_argument("name", metavar="OWNER/NAME", help="repository, made if it does not exist")
    parser.add_argument("--private", action="store_true", help="a new repository is private")
    parser.add_argument("--revision", help="branch, made if it does not exist (default: main)")
    parser.add_argument(
        "--create-pr", "--create_pr", action="store_true", help="open a pull request"
    )
    parser.add_argument(
        "--license",
        help="of the model, such as apache-2.0 (default: as on its card, or on the Hub)",
    )
    parser.add_argument("--message", help="of the commit")
    parser.add_argument(
        "--dry-run", "--dry_run", action="store_true", help="check only, send nothing"
    )
    arguments = parser.parse_args(words)
    from modeling_condenser.publishing.push import push

    report = push(
        arguments.folder,
        arguments.name,
        private=arguments.private or None,
        revision=arguments.revision,
        create_pr=arguments.create_pr,
        license=arguments.license,
        message=arguments.message,
        dry_run=arguments.dry_run,
        announce=lambda report: print(describe_files(report), flush=True),
    )
    print(describe_outcome(report))


def describe_files(report: "PushReport") -> str:
    """The files that are sent, and their sizes."""
    lines = [f"{size:>14,} bytes  {path}" for path, size in report.sizes.items()]
    lines.append(f"{sum(report.sizes.values()):>14,} bytes in {len(report.sizes)} files")
    if report.left_out:
        lines.append(f"not published, for training only: {', '.join(report.left_out)}")
    return "\n".join(lines)


def describe_outcome(report: "PushReport") -> str:
    """The commit, if there is one."""
    done = report.committed
    if done is None:
        return f"dry run: nothing was sent to {report.target.url}"
    if not done.is_new:
        return f"nothing changed: {report.target.url} is at {done.sha}"
    return f"pushed: {done.url}\npin it: {report.target.name}@{done.sha}"
