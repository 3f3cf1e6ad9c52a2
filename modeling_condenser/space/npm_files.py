"""The JavaScript libraries of the page: downloaded from the npm registry once, checked, cached."""

import base64
import hashlib
import io
import logging
import os
import tarfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from modeling_condenser.runs.run_folder import whole_folder

logger = logging.getLogger(__name__)

REGISTRY = "https://registry.npmjs.org"
_TIMEOUT = 60  # seconds without an answer


class NpmPackage(NamedTuple):
    """A version of a package, the SHA-512 of its archive as npm states it, and its needed files."""

    name: str
    version: str
    integrity: str
    files: Sequence[str]


# transformers.js imports onnxruntime-web by a name that index.html maps to its smallest build: the
# CPU in WebAssembly, without WebGPU.
PACKAGES = (
    NpmPackage(
        "@huggingface/transformers",
        "4.3.1",
        "sha512-5+voSeUCFK6PCKlY15dPhNOKq3/zOTxDN7oC+Wy9dFb1QZ0TSQomZRRy7URRK8YRuUoE9fGMQTTPC5d/pWBJhA==",
        ("dist/transformers.web.min.js", "LICENSE"),
    ),
    NpmPackage(
        "onnxruntime-web",
        "1.31.0-dev.20260914-8d85527a0",  # the version that transformers.js names
        "sha512-Iy7rtadoBgxS/LLvDr3QW38DB1PNXRnr0GJMcL0TAt7c9qjgVQl83UlGCVyeAnK2InpmW8Uc3PL8XIuqtDeF6g==",
        ("dist/ort.wasm.bundle.min.mjs", "dist/ort-wasm-simd-threaded.wasm"),
    ),
)


def fetch_npm_files(packages: Sequence[NpmPackage] = PACKAGES) -> list[Path]:
    """The needed files of packages, from the cache or else from the npm registry.

    The environment variable `npm_config_registry` names the registry, as in npm. The cache is
    `condenser/npm` in `XDG_CACHE_HOME`, by default ~/.cache.

    Raises:
        OSError: the registry cannot be reached, or its file is not the pinned package.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "condenser" / "npm"
    found: list[Path] = []
    for package in packages:
        folder = cache / f"{package.name.replace('/', '-')}-{package.version}"
        files = {f"package/{path}": folder / Path(path).name for path in package.files}
        if not all(file.is_file() for file in files.values()):
            archive = io.BytesIO(_download(package))
            with whole_folder(folder) as partial, tarfile.open(fileobj=archive) as tar:
                for path, file in files.items():
                    content: Any = tar.extractfile(path)  # it exists: the archive is pinned
                    (partial / file.name).write_bytes(content.read())
        found += files.values()
    return found


def _download(package: NpmPackage) -> bytes:
    """The archive of a package, checked against its hash."""
    registry = os.environ.get("npm_config_registry") or REGISTRY  # noqa: SIM112
    what, file = f"{package.name} {package.version}", package.name.rpartition("/")[2]
    url = f"{registry.rstrip('/')}/{package.name}/-/{file}-{package.version}.tgz"
    logger.info("Downloading %s from the npm registry", what)
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:
            archive = answer.read()
    except (OSError, ValueError) as error:
        raise OSError(
            f"Cannot download {what} from {url}: {error}. Check the connection, or name a registry"
            " that can be reached in npm_config_registry."
        ) from error
    digest = base64.b64encode(hashlib.sha512(archive).digest()).decode()
    if f"sha512-{digest}" != package.integrity:
        raise OSError(f"{url} is not {what}: it has sha512-{digest}, expected {package.integrity}.")
    return archive
