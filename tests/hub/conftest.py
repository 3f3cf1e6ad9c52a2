"""An export that tests of this folder share."""

from pathlib import Path

import pytest

from modeling_condenser.hub.contract import EncodingContract
from modeling_condenser.hub.export import export_encoder


@pytest.fixture(scope="session")
def exported(bert_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export with short texts, which no test changes."""
    return export_encoder(
        bert_run, tmp_path_factory.mktemp("exports") / "encoder", contract=EncodingContract(8, 24)
    )
