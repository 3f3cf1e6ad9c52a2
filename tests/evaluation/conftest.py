"""A retriever whose encoding contract has a separator and prompts of its own."""

from pathlib import Path

import pytest

from modeling_condenser.hub.contract import EncodingContract
from modeling_condenser.hub.export import export_encoder


@pytest.fixture(scope="module")
def retriever(bert_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = {"title_separator": " : ", "query_prompt": "why ", "passage_prompt": "river "}
    folder = tmp_path_factory.mktemp("retrievers") / "retriever"
    return export_encoder(bert_run, folder, contract=EncodingContract(8, 24, **texts))
