"""Find the folder of a model by its name, and download it if needed."""

import importlib.metadata
import json
from pathlib import Path
from typing import Any

from modeling_condenser.runs.checkpoints import last_whole_checkpoint
from modeling_condenser.runs.run_folder import MODEL_FOLDER

from .fetching import fetch

CONFIG_FILE = "config.json"
MODULES_FILE = "modules.json"
STARTER = "starter"
STARTER_TITLE = "starter of condenser"
STARTER_FOLDER = Path(__file__).parent.parent / STARTER

_NEEDED_FILES = ["*.json", "*.txt", "*.model", "*.jinja", "*.safetensors"]
_OTHER_FORMATS = ["onnx/*", "openvino/*", "coreml/*", "gguf/*", "*checkpoint*/*", "evaluation/*"]
_OLD_WEIGHTS = "pytorch_model*.bin"
_WITHOUT_WEIGHTS = ("Pooling", "Normalize")


def resolve_encoder_name(name: str | Path) -> str:
    """The folder of the bundled encoder for "starter"; any other name unchanged.

    Raises:
        FileNotFoundError: the bundled encoder is not installed.
    """
    if name != STARTER:
        return str(name)
    if not (STARTER_FOLDER / CONFIG_FILE).is_file():
        raise FileNotFoundError(
            f"The bundled encoder {STARTER!r} is not installed: install condenser again. A folder "
            f"of your own is named ./{STARTER}."
        )
    return str(STARTER_FOLDER)


def is_starter(name: str) -> bool:
    """Whether a name or path is that of the bundled encoder."""
    return name in (STARTER, str(STARTER_FOLDER))


def describe_starter() -> str:
    """Name of the bundled encoder on cards, with the version of the package."""
    try:
        return f"{STARTER_TITLE} {importlib.metadata.version('condenser')}"
    except importlib.metadata.PackageNotFoundError:  # not installed
        return STARTER_TITLE


def find_model_folder(model: str | Path) -> Path:
    """The folder of a model; of a model on the Hub the files that it needs are downloaded.

    Args:
        model: a folder, "starter", `owner/name`, or `owner/name@revision`.

    Raises:
        FileNotFoundError: there is neither a folder nor a Hub model of that name.
        OSError: the Hub failed, or cannot be reached and the model is not in the cache.
    """
    name = resolve_encoder_name(model)
    if Path(name).is_dir():
        return Path(name)
    is_path = Path(name).exists() or Path(name).is_absolute() or name.startswith(".")
    reason = ""
    if not is_path and name.partition("@")[0].count("/") <= 1:
        try:
            folder = fetch(name, only=_NEEDED_FILES, without=_OTHER_FORMATS)
            # Pickled weights, for modules that have no others.
            pickled = [
                f"{path}/{_OLD_WEIGHTS}".lstrip("/")
                for path, kind in module_paths(folder).items()
                if kind not in _WITHOUT_WEIGHTS and not any((folder / path).glob("*.safetensors"))
            ]
            return fetch(name, only=pickled) if pickled else folder
        except FileNotFoundError as error:
            reason = f" {error}"
    raise FileNotFoundError(
        f"There is no encoder {name!r}: expected a folder, or the name of a model on the Hub, such "
        f"as owner/name.{reason}"
    )


def read_config(folder: Path) -> dict[str, Any]:
    """A model's config.json; empty if there is none."""
    file = folder / CONFIG_FILE
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def find_weights(folder: Path) -> Path | None:
    """Find the folder with the weights: itself, a run's model, or a run's last checkpoint."""
    for found in (folder, folder / MODEL_FOLDER):
        if (found / CONFIG_FILE).is_file():
            return found
    return last_whole_checkpoint(folder) if folder.is_dir() else None


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder holds a pre-training checkpoint, which has a Condenser's config."""
    return read_config(folder).get("model_type") == "condenser"


def module_paths(folder: Path) -> dict[str, str]:
    """Subfolder -> class name of each sentence-transformers module.

    A model without sentence-transformers modules has one: its encoder, in the folder itself.
    """
    file = folder / MODULES_FILE
    if not file.is_file():
        return {"": "Transformer"}
    modules = json.loads(file.read_text(encoding="utf-8"))
    return {module["path"]: module["type"].rpartition(".")[2] for module in modules}
