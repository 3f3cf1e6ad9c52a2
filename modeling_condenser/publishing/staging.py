"""A repository as it will be published: a run, a checkpoint or an export in; a folder of links out.

The folder that was given stays as it is. What is inspected and opened is what is sent.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from modeling_condenser.hub.model_folder import CONFIG_FILE
from modeling_condenser.repository.card import write_card
from modeling_condenser.repository.contract import CONTRACT_FILE
from modeling_condenser.repository.provenance import (
    PROVENANCE_FILE,
    read_pretraining,
    write_provenance,
)
from modeling_condenser.runs.checkpoints import MANIFEST, is_training_state, last_whole_checkpoint
from modeling_condenser.runs.run_folder import MODEL_FOLDER
from modeling_condenser.runs.whole_files import is_partial

Kind = Literal["encoder", "checkpoint"]
CODE_FILES = (
    "configuration_condenser.py",
    "encoder_parts.py",
    "losses.py",
    "modeling_condenser.py",
)

_NOT_OURS = (".git", ".cache", ".ipynb_checkpoints", "__pycache__", ".DS_Store")


@dataclass(frozen=True)
class Staged:
    """A folder that holds just what a repository will.

    Attributes:
        kind: "encoder", an export or a retriever; or "checkpoint", of pre-training.
        source: the folder that the weights lie in.
        files: path in the repository -> file.
        left_out: files of a checkpoint that only training needs.
    """

    kind: Kind
    source: Path
    files: dict[str, Path]
    left_out: list[str]


def stage_repository(
    folder: str | Path, staging: Path, *, name: str, license: str | None = None
) -> Staged:
    """Gather what is to be published, and write the card for its name.

    Args:
        folder: an export, a fine-tuning or pre-training run, or one of its checkpoints.
        staging: empty folder, filled with links and with the card.
        name: `owner/name`, which takes its place in the card's examples.
        license: of the model, for the card.

    Raises:
        FileNotFoundError: there is no such folder, or no model in it.
        ValueError: it holds a model that is neither an export nor a Condenser checkpoint.
    """
    source = find_publishable(Path(folder))
    kind = _kind(source)
    is_training = (source / MANIFEST).is_file()
    left_out = []
    for path in _files(source):
        relative = path.relative_to(source)
        if is_training and is_training_state(path):
            left_out.append(relative.as_posix())
            continue
        target = staging / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(path.resolve())
    if kind == "checkpoint" and not (staging / PROVENANCE_FILE).is_file():
        write_provenance(staging, read_pretraining(source.parent))
    write_card(staging, name=name, license=license)
    files = {path.relative_to(staging).as_posix(): path for path in _files(staging)}
    return Staged(kind, source, files, left_out)


def find_publishable(folder: Path) -> Path:
    """The folder with the weights: itself, or of a run its model or else its last checkpoint."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"There is no folder {folder}: expected an export, a run, or one of its checkpoints."
        )
    if (folder / CONFIG_FILE).is_file():
        return folder
    if (folder / MODEL_FOLDER / CONFIG_FILE).is_file():
        return folder / MODEL_FOLDER
    checkpoint = last_whole_checkpoint(folder)
    if checkpoint is None:
        raise FileNotFoundError(
            f"{folder} holds no model: expected {CONFIG_FILE} in it, or a run's {MODEL_FOLDER}/ or "
            "checkpoint-N/."
        )
    return checkpoint


def _kind(folder: Path) -> Kind:
    if (folder / CONTRACT_FILE).is_file():
        return "encoder"
    model_type = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8")).get("model_type")
    if model_type == "condenser":
        return "checkpoint"
    raise ValueError(
        f"{folder} is a model of type {model_type!r} without {CONTRACT_FILE}, so nobody could know "
        "how it encodes. Push an export (condenser export), a retriever (condenser finetune) or a "
        "Condenser checkpoint (condenser pretrain)."
    )


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.is_file() and not is_partial(path) and not any(p in _NOT_OURS for p in parts):
            yield path


def code_differences(staged: Staged) -> list[str]:
    """Which code files of a checkpoint differ from those of the installed package, and how.

    A checkpoint brings its own code. That of another version of the package is not wrong, but a
    person who publishes it should know.
    """
    if staged.kind != "checkpoint":
        return []
    package = Path(__file__).parent.parent
    differences = []
    for name in CODE_FILES:
        file = staged.files.get(name)
        if file is None:
            differences.append(f"{name} is missing: the checkpoint cannot be opened without it")
        elif file.read_bytes() != (package / name).read_bytes():
            differences.append(f"{name} differs from that of the installed package")
    known = {*CODE_FILES}
    others = sorted(path for path in staged.files if path.endswith(".py") and path not in known)
    return [*differences, *(f"{path} is no file of this package" for path in others)]
