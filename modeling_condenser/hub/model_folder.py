"""A model's name in; its folder out, downloaded where it is not here."""

import importlib.metadata
import json
from pathlib import Path

from .errors import NotOnHubError
from .fetching import fetch

CONFIG_FILE = "config.json"
MODULES_FILE = "modules.json"
STARTER = "starter"
STARTER_TITLE = "starter of condenser"
STARTER_FOLDER = Path(__file__).parent.parent / STARTER

_STARTER_FILES = (CONFIG_FILE, "model.safetensors", "tokenizer.json", "tokenizer_config.json")
_NEEDED_FILES = ["*.json", "*.txt", "*.model", "*.jinja", "*.safetensors"]
_OTHER_FORMATS = ["onnx/*", "openvino/*", "coreml/*", "gguf/*", "*checkpoint*/*", "evaluation/*"]
_OLD_WEIGHTS = "pytorch_model*.bin"
_WITHOUT_WEIGHTS = ("Pooling", "Normalize")


def resolve_encoder_name(name: str | Path) -> str:
    """The folder of the encoder that comes with this package for "starter"; else the name itself.

    The bundled encoder goes before a folder of that name: write `./starter` for the folder.

    Raises:
        FileNotFoundError: files of the bundled encoder are missing.
    """
    if name != STARTER:
        return str(name)
    missing = [file for file in _STARTER_FILES if not (STARTER_FOLDER / file).is_file()]
    if missing:
        raise FileNotFoundError(
            f"The encoder {STARTER!r} that comes with condenser is incomplete: {STARTER_FOLDER} "
            f"lacks {', '.join(missing)}. Install condenser again, or name another encoder; a "
            f"folder of your own is written ./{STARTER}."
        )
    return str(STARTER_FOLDER)


def is_starter(name: str) -> bool:
    """Whether a name or a path is that of the encoder that comes with this package."""
    return name in (STARTER, str(STARTER_FOLDER))


def describe_starter() -> str:
    """What a model card calls the bundled encoder: by the version of the package it came with."""
    try:
        return f"{STARTER_TITLE} {importlib.metadata.version('condenser')}"
    except importlib.metadata.PackageNotFoundError:  # run from its source, not installed
        return STARTER_TITLE


def find_model_folder(model: str | Path) -> Path:
    """The folder of a model, downloaded where it is a Hub name.

    Only configuration, tokenizer and one set of weights are downloaded.

    Args:
        model: a folder, "starter", `owner/name`, or `owner/name@revision`.

    Raises:
        FileNotFoundError: there is neither a folder nor a Hub model of that name, or the Hub cannot
            be reached and the model was not downloaded before.
        OSError: the Hub answered with an error, or a file differs from its checksum.
    """
    name = resolve_encoder_name(model)
    if Path(name).is_dir():
        return Path(name)
    missing = (
        f"There is no encoder {name!r}: expected a folder that exists, or the name of a model on "
        "the Hub, such as owner/name."
    )
    is_path = Path(name).exists() or Path(name).is_absolute() or name.startswith(".")
    if is_path or name.partition("@")[0].count("/") > 1:
        raise FileNotFoundError(missing)
    try:
        folder = fetch(name, only=_NEEDED_FILES, without=_OTHER_FORMATS)
        old_weights = _lacking_weights(folder)
        return fetch(name, only=old_weights) if old_weights else folder
    except (NotOnHubError, ValueError) as error:
        raise FileNotFoundError(f"{missing} {error}") from None


def _lacking_weights(folder: Path) -> list[str]:
    """Patterns of the older weight files, for the folders of modules without newer ones."""
    return [
        f"{path}/{_OLD_WEIGHTS}" if path else _OLD_WEIGHTS
        for path, kind in module_paths(folder).items()
        if kind not in _WITHOUT_WEIGHTS and not any((folder / path).glob("*.safetensors"))
    ]


def module_paths(folder: Path) -> dict[str, str]:
    """Where a model's modules lie, below its folder, and what they are: path -> class.

    A model that is not of sentence-transformers has one, its encoder, in the folder itself.
    """
    file = folder / MODULES_FILE
    if not file.is_file():
        return {"": "Transformer"}
    modules = json.loads(file.read_text(encoding="utf-8"))
    return {module["path"]: module["type"].rpartition(".")[2] for module in modules}
