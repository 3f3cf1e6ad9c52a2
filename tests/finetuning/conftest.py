"""An encoder that the tests of this room share."""

from pathlib import Path

import pytest

from modeling_condenser.hub.contract import EncodingContract
from modeling_condenser.hub.export import export_encoder
from tests.hub.making import make_run


@pytest.fixture(scope="session")
def encoder(bert_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export, without dropout, with noisy weights and lengths of 48 and 56."""
    root = tmp_path_factory.mktemp("encoders")
    contract = EncodingContract(48, 56, title_separator=" : ")
    return export_encoder(make_run(bert_folder, root / "run"), root / "encoder", contract=contract)
