"""What the tests of this folder share: a loopback Hub, a client for it, a folder to upload."""

from pathlib import Path

import pytest
from huggingface_hub import HfApi

from tests.hub.loopback_hub import LoopbackHub
from tests.hub.uploading import FILES, REPO


@pytest.fixture
def api(loopback_hub: LoopbackHub) -> HfApi:
    """The client, logged in as `owner`, with the one repository owner/encoder."""
    api = HfApi()
    api.create_repo(REPO)
    return api


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a card, a config, an LFS file, an empty file and a subfolder."""
    root = tmp_path / "to_upload"
    for name, content in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root
