"""The tests of this folder run once for each encoder; outside of `-m slow` for three of them."""

from pathlib import Path

import pytest

from tests.backbones.encoders import BACKBONES, Backbone

IN_EACH_RUN = ("BERT", "DistilBERT", "ModernBERT")


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(name, marks=[] if name in IN_EACH_RUN else pytest.mark.slow)
        for name in BACKBONES
    ],
)
def backbone(request: pytest.FixtureRequest) -> Backbone:
    return BACKBONES[request.param]


@pytest.fixture(scope="session")
def folder(backbone: Backbone, texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The encoder with its LM head and tokenizer, for sequences of up to 64 tokens."""
    return backbone.save(tmp_path_factory.mktemp("backbones") / backbone.title, texts)
