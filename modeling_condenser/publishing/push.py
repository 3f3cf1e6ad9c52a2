"""Publish an encoder, a retriever or a checkpoint: gather, check, open as a user would, commit."""

import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from huggingface_hub import (
    CommitInfo,
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    get_token,
)
from huggingface_hub.errors import EntryNotFoundError
from huggingface_hub.utils import validate_repo_id
from transformers.dynamic_module_utils import get_relative_import_files

import modeling_condenser.modeling_condenser
from modeling_condenser.files.hub import NETWORK_ERRORS
from modeling_condenser.files.models import (
    CONFIG_FILE,
    MAP_FOLDER,
    QUERY_FOLDER,
    drop_code_names,
    find_weights,
    is_checkpoint,
    refuse_links,
)
from modeling_condenser.files.run_folder import MODEL_FOLDER, read_json
from modeling_condenser.files.settings import parse_settings

from .card import CARD_FILE, GENERATED, GENERATED_TAGS, own_text, read_card, write_card
from .markdown import as_list
from .provenance import RESULTS_FILE, SECRET, read_provenance

logger = logging.getLogger(__name__)

# Of a training, which a published model does not need.
_TRAINING_STATE = "optimizer.pt scheduler.pt scaler.pt rng_state*.pth trainer_state.json".split()
_TRAINING_STATE += ["training_args.bin", "stream-*.json"]
# Of an earlier commit: weights, which would be loaded in place of the new ones, and results.
_STALE = ["model*.safetensors", "model.safetensors.index.json", "pytorch_model*"]
_STALE += ["tf_model*.h5", "flax_model*.msgpack", "model*.onnx*", "onnx/*.onnx*"]
_STALE += ["openvino_model*", "openvino/openvino_model*"]
_STALE += [f"{QUERY_FOLDER}/*", f"{MAP_FOLDER}/*"]  # of an adapted model
_STALE += [RESULTS_FILE, *_TRAINING_STATE]
_CHANGING = {"model-index", "base_model", "datasets"}  # metadata of one version of a model
_IGNORED = (".git", ".cache", ".ipynb_checkpoints", "__pycache__", ".DS_Store", ".*.partial")
_PICKLES = frozenset(".bin .ckpt .dill .h5 .joblib .msgpack .pickle .pkl .pt .pth".split())
# A pickle begins with its protocol; an archive of torch names its pickle among the first bytes.
_PICKLE_START = re.compile(rb"\x80[\x02-\x05]|PK(?s:.*)\.pkl")


@dataclass(frozen=True)
class PushRecipe:
    """What to publish, and where.

    Attributes:
        folder: an export, a fine-tuning, adaptation or pre-training run, or a checkpoint.
        name: owner/name of the repository, which is created if it does not exist.
        private: whether a new repository is private.
        revision: branch, which is created if it does not exist; by default main.
        license: such as apache-2.0; by default that of the model card.
        language: code of the language of the texts, such as fr; by default that of the model card.
        message: of the commit.
        replace_card: replace text and metadata that the repository's card has and the folder's
            lacks.
        dry_run: check, and show the card and the files, without the network.
    """

    folder: str
    name: str
    private: bool | None = None
    revision: str | None = None
    license: str | None = None
    language: str | None = None
    message: str = "Push with condenser"
    replace_card: bool = False
    dry_run: bool = False


@dataclass(frozen=True)
class PushReport:
    """What was pushed, or would be.

    Attributes:
        sizes: path in the repository -> bytes.
        card: the text of the repository's card.
        commit: the newest commit after the push; None if nothing was sent.
    """

    sizes: dict[str, int]
    card: str
    commit: CommitInfo | None = None


def push(*, token: str | None = None, **settings: Any) -> PushReport:
    """Publish an encoder, a retriever or a pre-training checkpoint on the Hub, in one commit.

    Checked first: there are no pickles and access tokens, the card names a license, and the
    repository opens in a process without this package. The state of a training is left out. The
    folder itself is not changed.

    Args:
        token: by default HF_TOKEN, or the token of `hf auth login`.
        **settings: fields of `PushRecipe`.

    Raises:
        FileNotFoundError: there is no such folder, or no model in it.
        ValueError: something must be corrected before publishing; all reasons are listed.
        OSError: the Hub failed or refused; the repository is unchanged.
    """
    (recipe,) = parse_settings(settings, PushRecipe)
    if recipe.name.count("/") != 1:
        raise ValueError(f"The name of the repository is {recipe.name!r}, expected owner/name.")
    validate_repo_id(recipe.name)
    source = find_weights(Path(recipe.folder))
    if source is None:
        raise FileNotFoundError(
            f"There is no model in {recipe.folder}: expected a folder with {CONFIG_FILE}, or a run "
            f"with {MODEL_FOLDER}/ or checkpoint-N/."
        )
    _, text = read_card(source / CARD_FILE)
    if text and not GENERATED.search(text) and not read_provenance(source):
        raise ValueError(
            f"{source} has a model card of others, and {source.name} was not trained by this "
            "package: `hf upload` publishes it as it is."
        )
    with tempfile.TemporaryDirectory(prefix="condenser-push-") as scratch:
        staging = Path(scratch, recipe.name.rpartition("/")[2])
        shutil.copytree(source.resolve(), staging, ignore=_find_unneeded, copy_function=_link)
        refuse_links(staging, inside=source)
        if is_checkpoint(staging):
            _renew_code(staging)
        else:
            drop_code_names(staging)
        changes = {"license": recipe.license, "language": recipe.language}
        metadata = {name: value for name, value in changes.items() if value}
        write_card(staging, name=recipe.name, metadata=metadata)
        check_publishable(staging, name=recipe.folder)
        commit = None
        if not recipe.dry_run:
            if not recipe.replace_card:
                refuse_lost_text(staging / CARD_FILE, source / CARD_FILE, recipe, token)
            commit = commit_folder(
                staging,
                recipe.name,
                message=recipe.message,
                revision=recipe.revision,
                private=recipe.private,
                token=token,
            )
        sizes = {path: file.stat().st_size for path, file in _list_files(staging).items()}
        return PushReport(sizes, (staging / CARD_FILE).read_text("utf-8"), commit)


def _find_unneeded(folder: str, names: list[str]) -> set[str]:
    """Names in a folder that are not published; pickled weights are not read beside others."""
    twice = ["pytorch_model.bin"] if "model.safetensors" in names else []
    return shutil.ignore_patterns(*_IGNORED, *_TRAINING_STATE, *twice)(folder, names)


def _link(source: str | Path, target: str | Path) -> None:
    """Link to a file; copy it where links are refused, as on Windows without developer mode."""
    try:
        Path(target).symlink_to(source)
    except OSError:
        shutil.copyfile(source, target)


def _renew_code(folder: Path) -> None:
    """Give a checkpoint, perhaps of an earlier version, the code of this one."""
    model = modeling_condenser.modeling_condenser.__file__
    for original in map(Path, [model, *get_relative_import_files(model)]):
        file = folder / original.name
        if file.is_file() and file.read_bytes() != original.read_bytes():
            logger.warning("%s is pushed as in this version of the package.", file.name)
        file.unlink(missing_ok=True)
        _link(original, file)


def refuse_lost_text(new: Path, old: Path, recipe: PushRecipe, token: str | None) -> None:
    """Raise a ValueError if metadata or text of the repository's card are not in the new one.

    `old` is where the person can add it.
    """
    api = HfApi(token=token)
    place: Any = {"revision": recipe.revision}
    try:
        if not api.file_exists(recipe.name, CARD_FILE, **place):
            return
        file = api.hf_hub_download(recipe.name, CARD_FILE, force_download=True, **place)
    except (*NETWORK_ERRORS, EntryNotFoundError, ValueError) as error:
        raise OSError(f"Cannot push to {recipe.name}: {error}") from error
    (data_on_hub, text_on_hub), (data, text) = read_card(Path(file)), read_card(new)
    text_on_hub, lost = own_text(text_on_hub), sorted(data_on_hub.keys() - data.keys() - _CHANGING)
    for name in ("tags", "language"):
        values, now = as_list(data_on_hub.get(name)), as_list(data.get(name))
        lost += [f"{name}: {value}" for value in values if value not in {*now, *GENERATED_TAGS}]
    for name in ("license", "license_name", "license_link"):
        value = data_on_hub.get(name)
        if not recipe.license and value is not None and value != data.get(name, value):
            lost.append(f"{name}: {value}")
    reason = f"the metadata {', '.join(lost)}" if lost else f"text ({text_on_hub[:60]!r})"
    if lost or text_on_hub not in own_text(text):
        raise ValueError(
            f"The card of {recipe.name} on the Hub has {reason} that the new one lacks: copy it to "
            f"{old} (text: below the generated block; a license: --license), or "
            "replace it: `condenser push --replace_card true`. Nothing was sent."
        )


def _list_files(folder: Path) -> dict[str, Path]:
    """Path within a folder -> file, in the order of the paths."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file for file in files}


def check_publishable(folder: Path, *, name: str = "") -> None:
    """Raise a ValueError with all reasons not to publish a model's folder with its card."""
    reasons = find_refusals(folder)
    if not read_card(folder / CARD_FILE)[0].get("license"):
        reasons.append("no license is named: pass --license, such as --license apache-2.0")
    if is_checkpoint(folder):
        reasons += _find_foreign_code(folder)
    # It is opened only if nothing else is wrong, since opening a checkpoint executes code.
    if not reasons and (error := find_opening_error(folder)):
        reasons = [f"opening it: {error}"]
    if reasons:
        listed = "\n  - ".join(["", *reasons])
        raise ValueError(f"{name or folder.name} cannot be published; nothing was sent:{listed}")


def commit_folder(
    folder: Path,
    name: str,
    *,
    message: str,
    revision: str | None = None,
    private: bool | None = None,
    token: str | None = None,
) -> CommitInfo:
    """Upload a folder in one atomic commit; create the repository and the branch if needed.

    Links are followed. Weights, results and training states of the repository that are not in the
    folder are deleted. Without a change there is no commit. Arguments and errors are those of
    `push`.
    """
    api = HfApi(token=token)
    try:
        api.create_repo(name, private=private, exist_ok=True)
        if private and not api.repo_info(name).private:
            raise PermissionError(
                f"{name} exists and is public: make it private in its settings, or push without "
                "--private."
            )
        if revision is not None:
            api.create_branch(name, branch=revision, exist_ok=True)
        files = _list_files(folder)
        stale = [
            path
            for path in api.list_repo_files(name, revision=revision)
            if path not in files and _is_stale(path)
        ]
        # `upload_folder` makes several commits of a large folder.
        return api.create_commit(
            name,
            [
                *(CommitOperationAdd(path, file) for path, file in files.items()),
                *(CommitOperationDelete(path) for path in stale),
            ],
            commit_message=message,
            revision=revision,
        )
    except NETWORK_ERRORS as error:
        raise OSError(f"Cannot push to {name}: {error}") from error


def _is_stale(path: str) -> bool:
    """Whether a file of the Hub is of the model, and so of an earlier one if it is not pushed."""
    in_folders = [pattern for pattern in _STALE if "/" in pattern]
    patterns = in_folders if "/" in path else _STALE  # `*` matches slashes, too
    return any(fnmatch(path, pattern) for pattern in patterns)


def find_refusals(folder: Path) -> list[str]:
    """Path and reason of each pickle, and each text file with a token."""
    token, refusals = get_token(), []
    for path, file in _list_files(folder).items():
        with file.open("rb") as stream:
            start = stream.read(4096)
        is_named = file.suffix in _PICKLES and not file.name.startswith("openvino_model")
        if is_named or _PICKLE_START.match(start):
            refusals.append(f"{path}: a pickle, which can execute code: save it as safetensors")
        elif b"\0" not in start:
            text = file.read_text(encoding="utf-8", errors="replace")
            if SECRET.search(text) or (token and token in text):
                refusals.append(f"{path}: an access token or password: remove it")
    return refusals


def _find_foreign_code(folder: Path) -> list[str]:
    """Code of a checkpoint that is not this package's, which opening it would execute."""
    package = Path(__file__).parents[1]
    reasons = []
    for path, file in _list_files(folder).items():
        original = package / path
        is_ours = original.is_file() and original.read_bytes() == file.read_bytes()
        if file.suffix == ".py" and not is_ours:
            reasons.append(
                f"{path}: not the code of this version, which opening the checkpoint would "
                "execute: open and save it with this package"
            )
    for name in (CONFIG_FILE, "tokenizer_config.json"):
        if "--" in json.dumps(read_json(folder / name, {}).get("auto_map", "")):
            reasons.append(f"{name}: auto_map names the code of another repository")
    return reasons


def find_opening_error(folder: Path) -> str | None:
    """Why a process without this package cannot use a repository; None if it can."""
    script = Path(__file__).with_name("open_repository.py")
    with tempfile.TemporaryDirectory(prefix="condenser-open-") as scratch:
        process = subprocess.run(
            [sys.executable, "-PB", str(script), str(folder)],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,  # nobody answers a question
            cwd=scratch,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": scratch},
        )
    if process.returncode == 0:
        return None
    ended = f"the process that opened it ended with the exit status {process.returncode}"
    return process.stdout or process.stderr[-2000:] or f"{ended} (-9: killed, perhaps for memory)"
