"""A pre-training run whose readiness was measured meanwhile."""

import pytest

from modeling_condenser.analysis.callback import readiness_callbacks
from modeling_condenser.pretraining.pretrain import pretrain
from tests.pretraining.short_runs import SETTINGS


@pytest.fixture(scope="session")
def settings(bert_folder, corpus_file):
    given = {"encoder": str(bert_folder), "corpus": str(corpus_file), "n_head_layers": 1}
    saved = {"save_strategy": "steps", "save_steps": 2, "logging_steps": 2}
    return {**SETTINGS, **given, **saved, "per_device_train_batch_size": 4, "max_steps": 5}


@pytest.fixture(scope="session")
def readiness(collection):
    """Settings whose sample holds all passages and queries of the collection."""
    sizes = {"texts": 6, "max_length": 32, "queries": 999, "passages": 999}
    return {"every": 2, "collection": str(collection), **sizes}


@pytest.fixture(scope="session")
def measured(settings, readiness, tmp_path_factory):
    run = tmp_path_factory.mktemp("measured") / "run"
    given = {**settings, "readiness": readiness, "output_dir": str(run)}
    pretrain(**given, callbacks=readiness_callbacks(given))
    return run
