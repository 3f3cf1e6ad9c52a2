"""What the tests of the loopback Hub upload, and how they compare what came of it."""

from pathlib import Path

from tests.hub.loopback_hub import LoopbackHub

REPO = "owner/encoder"
WEIGHTS = bytes(range(256)) * 200
FILES = {
    "README.md": b"---\nlicense: mit\ntags: [condenser]\n---\n# An encoder\n",
    "config.json": b'{"hidden_size": 32}\n',
    "model.safetensors": WEIGHTS,
    "1_Pooling/config.json": b"{}",
    "empty.txt": b"",
}


def held(hub: LoopbackHub, revision: str = "main") -> dict[str, bytes]:
    """What the repository holds, less the file that every repository opens with."""
    files = hub.repo(REPO).files(revision)
    del files[".gitattributes"]
    return files


def read(folder: Path) -> dict[str, bytes]:
    """All files below a folder, by their path in it, less that same file."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and file.name != ".gitattributes"
    }
