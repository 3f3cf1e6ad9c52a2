"""condenser push FOLDER OWNER/NAME: publish on the Hugging Face Hub, after every check.

    condenser push my-encoder owner/my-encoder --license apache-2.0 --dry-run
    condenser push runs/retriever owner/my-retriever --private
    condenser push runs/mine owner/my-condenser --revision experiment

FOLDER is an export, a fine-tuning or pre-training run, or one of its checkpoints. It is refused,
with file and line, where it holds a pickle, a token or a path of this machine; its card must be
complete; and it must open in a process that has not this package. What the Hub holds already is not
sent again.
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
    parser.add_argument("name", metavar="OWNER/NAME", help="repository, made where there is none")
    parser.add_argument("--private", action="store_true", help="a new repository is private")
    parser.add_argument("--revision", help="branch, made where there is none (default: main)")
    parser.add_argument(
        "--create-pr", "--create_pr", action="store_true", help="propose it as a pull request"
    )
    parser.add_argument("--license", help="of the model, where its card states none: apache-2.0")
    parser.add_argument("--message", help="of the commit")
    parser.add_argument(
        "--dry-run", "--dry_run", action="store_true", help="check and compare, change nothing"
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
        announce=lambda report: print(describe_plan(report), flush=True),
    )
    print(describe_outcome(report))


def describe_plan(report: "PushReport") -> str:
    """What would be sent, and how large it is."""
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
    """What became of it."""
    done = report.committed
    if done is None:
        return f"dry run: nothing was sent to {report.target.url}"
    if not done.is_new:
        return f"nothing to do: {report.target.url} holds it at {done.sha}"
    return f"pushed: {done.url}\npin it: {report.target.name}@{done.sha}"
