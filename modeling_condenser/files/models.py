"""Find a model by its name, download it if needed, and read its configuration."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import errors, snapshot_download

from .atomic import read_json
from .run_folder import MODEL_FOLDER, last_checkpoint
from .settings import refuse_ambiguous

CONFIG_FILE = "config.json"
MODULES_FILE = "modules.json"
DENSE_FOLDER = "2_Dense"  # of an adapted model: the map of its vectors
MODULES_CONFIG_FILE = "config_sentence_transformers.json"
INT8_FILE = "onnx/model_qint8.onnx"  # of `condenser export --onnx int8`
STARTER = "starter"
STARTER_TITLE = "starter of condenser"  # on cards
STARTER_FOLDER = Path(__file__).parent.parent / STARTER

# Sentence-transformers keeps the weights of small modules, such as 2_Dense, in pickles.
_NEEDED_FILES = "*.json *.txt *.model *.jinja *.safetensors *_Dense/pytorch_model.bin".split()
_NEEDED_FILES += [INT8_FILE]
_OTHER_FORMATS = "openvino/* coreml/* gguf/* *checkpoint*/* evaluation/*".split()
_NOT_FOUND = (
    errors.RepositoryNotFoundError,
    errors.RevisionNotFoundError,
    errors.LocalEntryNotFoundError,
)


def resolve_encoder_name(name: str | Path) -> str:
    """The folder of the bundled encoder for "starter"; any other name unchanged.

    If there also is a file or folder `starter` here, a ValueError is raised.
    """
    if name != STARTER:
        return str(name)
    refuse_ambiguous(STARTER, "the encoder")
    return str(STARTER_FOLDER)


def split_revision(name: str) -> tuple[str, str | None]:
    """Split `owner/name@revision`; the revision is a branch, tag or commit, or None."""
    repository, _, revision = name.partition("@")
    return repository, revision or None


def fetch(
    name: str,
    *,
    repo_type: str = "model",
    only: Sequence[str] | None = None,
    without: Sequence[str] | None = None,
    **hub: Any,
) -> Path:
    """Fetch a repository into the Hub's cache.

    Args:
        name: `owner/name` or `owner/name@revision`.
        repo_type: "model" or "dataset".
        only, without: patterns of the files to fetch (by default all) and to leave out.
        **hub: for `snapshot_download`, such as `token`.

    Raises:
        FileNotFoundError: it does not exist on the Hub or is private, or the Hub cannot be reached
            and the files are not in the cache.
        OSError: the Hub failed.
    """
    repository, revision = split_revision(name)
    options: Any = {"allow_patterns": only, "ignore_patterns": without, "revision": revision, **hub}
    try:
        return Path(snapshot_download(repository, repo_type=repo_type, **options))
    except errors.HFValidationError:
        raise FileNotFoundError(
            f"There is no folder {name!r}, and a name on the Hub is owner/name."
        ) from None
    except _NOT_FOUND as error:
        raise FileNotFoundError(
            f"There is no folder {name!r}, and it cannot be fetched from the Hub: {error}"
        ) from None


def find_model_folder(model: str | Path, **hub: Any) -> Path:
    """The folder of a model, downloaded if it is on the Hub; a FileNotFoundError if it is nowhere.

    `model` is a folder, a run (`find_weights`), "starter", or `owner/name[@revision]`. A ValueError
    is raised for files that name code of others. `hub` is for `snapshot_download`.
    """
    name = resolve_encoder_name(model)
    if Path(name).is_dir():
        folder = find_weights(Path(name)) or Path(name)
        if (folder / "corpus.jsonl").is_file():
            raise ValueError(f"{name} is a collection, expected a model, which is named first.")
    else:
        folder = fetch(name, only=_NEEDED_FILES, without=_OTHER_FORMATS, **hub)
        if not any(folder.glob("*.safetensors")) and not any(folder.glob("0_*/*.safetensors")):
            folder = fetch(name, only=["*pytorch_model*.bin"], without=_OTHER_FORMATS, **hub)
    refuse_kernels(read_config(folder), folder)
    refuse_modules(folder)
    return folder


def refuse_kernels(config: Mapping[str, Any], source: str | Path) -> None:
    """Raise a ValueError if a config.json names an implementation on the Hub, which is code.

    Of such fields, transformers 5.17 hands `_attn_implementation` to the package `kernels`, and
    5.23 `attn_implementation`, too. `kernels` 0.16 asks the Hub whether it trusts the publisher,
    except offline.
    """
    for name, value in config.items():
        if "_implementation" in name and "/" in json.dumps(value):
            raise ValueError(
                f"config.json of {source} has {name}: {value!r}, which is code on the Hub: remove "
                "it if you do not need it."
            )
        if isinstance(value, Mapping):
            refuse_kernels(value, source)


def refuse_modules(folder: Path) -> None:
    """Raise a ValueError if a model has modules that are not sentence-transformers' own."""
    for module in read_json(folder / MODULES_FILE, []):
        if not module["type"].startswith("sentence_transformers."):
            raise ValueError(
                f"{folder / MODULES_FILE} names {module['type']}, which is code of others: it is "
                "not executed. Use sentence-transformers itself, with trust_remote_code."
            )


def find_weights(folder: Path) -> Path | None:
    """Find the folder with the weights: itself, a run's model, or a run's last checkpoint."""
    for candidate in (folder, folder / MODEL_FOLDER):
        if (candidate / CONFIG_FILE).is_file():
            return candidate
    return last_checkpoint(folder)


def read_config(folder: Path) -> dict[str, Any]:
    """A model's config.json; empty if there is none."""
    return read_json(folder / CONFIG_FILE, {})


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder holds a pre-training checkpoint, which has a Condenser's config."""
    return read_config(folder).get("model_type") == "condenser"


def module_paths(folder: Path) -> list[str]:
    """Subfolders of the sentence-transformers modules; of any other model only the folder, ""."""
    return [module["path"] for module in read_json(folder / MODULES_FILE, [{"path": ""}])]


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Silence transformers' progress bars, and its reports of missing weights."""
    from transformers.utils import logging  # takes seconds, which a search by BM25 need not wait

    with ExitStack() as restored:
        restored.callback(logging.set_verbosity, logging.get_verbosity())
        if logging.is_progress_bar_enabled():
            restored.callback(logging.enable_progress_bar)
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        yield
