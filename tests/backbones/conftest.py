"""The tests of this folder run once for each backbone."""

from pathlib import Path

import pytest

from tests.backbones.encoders import BACKBONES, Backbone


@pytest.fixture(scope="session", params=list(BACKBONES))
def backbone(request: pytest.FixtureRequest) -> Backbone:
    return BACKBONES[request.param]


@pytest.fixture(scope="session")
def folder(backbone: Backbone, texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The backbone with its LM head and tokenizer, for sequences of up to 64 tokens."""
    return backbone.save(tmp_path_factory.mktemp("backbones") / backbone.title, texts)
