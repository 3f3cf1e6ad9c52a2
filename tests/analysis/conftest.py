"""A pre-training run whose readiness was measured meanwhile."""

import pytest

from modeling_condenser.analysis.callback import pretrain_and_measure


@pytest.fixture(scope="session")
def settings(bert_folder, corpus_file):
    given = {"encoder": str(bert_folder), "corpus": str(corpus_file), "n_head_layers": 1}
    schedule = {"max_length": 32, "per_device_train_batch_size": 4, "max_steps": 5, "seed": 7}
    quick = {"logging_steps": 2, "save_steps": 2, "disable_tqdm": True, "use_cpu": True}
    return {**given, **schedule, **quick, "learning_rate": 1e-3}


@pytest.fixture(scope="session")
def readiness(collection):
    """Settings whose sample holds all passages and queries of the collection."""
    sizes = {"texts": 6, "max_length": 32, "queries": 999, "passages": 999}
    return {"every": 2, "collection": str(collection), **sizes}


@pytest.fixture(scope="session")
def measured(settings, readiness, tmp_path_factory):
    run = tmp_path_factory.mktemp("measured") / "run"
    pretrain_and_measure({**settings, "readiness": readiness, "output_dir": str(run)})
    return run
