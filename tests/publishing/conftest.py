"""A pre-training run of each kind of encoder, and a small collection."""

from pathlib import Path

import pytest

from tests.publishing.making import make_collection, make_run


@pytest.fixture(scope="session")
def bert_run(bert_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(bert_folder, tmp_path_factory.mktemp("runs") / "bert-run")


@pytest.fixture(scope="session")
def roberta_run(roberta_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(roberta_folder, tmp_path_factory.mktemp("runs") / "roberta-run")


@pytest.fixture(scope="session")
def collection(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_collection(tmp_path_factory.mktemp("collections") / "small", texts)
