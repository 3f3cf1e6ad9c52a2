"""Mining that is interrupted and resumed ends with the same bytes."""

from pathlib import Path

import pytest

from modeling_condenser.mining.mine import mine
from modeling_condenser.mining.miner import Miner
from tests.mining.making import make_labelled, make_run_file


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, object]:
    make_run_file(tmp_path / "run")
    return {
        "system": tmp_path / "run",
        "collection": make_labelled(tmp_path / "collection"),
        "output_dir": tmp_path / "out",
        "n_negatives": 4,
        "queries_per_window": 6,
        "progress": False,
    }


def test_a_finished_run_is_not_mined_again_nor_with_another_recipe(settings, tmp_path):
    file = mine(**settings)
    before = file.stat().st_mtime_ns
    (tmp_path / "run").unlink()
    assert mine(**settings) == file
    assert file.stat().st_mtime_ns == before
    with pytest.raises(ValueError, match="another recipe .*seed"):
        mine(**settings, seed=1)


@pytest.mark.parametrize(("change", "mined"), [(" made", 2), (" other", 4)])
def test_after_an_interruption_only_missing_windows_of_the_same_run_are_mined(
    settings, tmp_path, monkeypatch, change, mined
):
    windows = []
    original = Miner.mine

    def mine_window(self, query_ids):
        windows.append(len(query_ids))
        if len(windows) == 3:
            raise KeyboardInterrupt
        return original(self, query_ids)

    monkeypatch.setattr(Miner, "mine", mine_window)
    with pytest.raises(KeyboardInterrupt):
        mine(**settings)
    run = tmp_path / "run"
    run.write_text(run.read_text().replace(" made", change))
    file = mine(**settings)
    assert len(windows) == 3 + mined
    whole = mine(**{**settings, "output_dir": tmp_path / "whole"})
    assert file.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *("negatives.jsonl", "recipe.yaml", "run.json")
    ]
