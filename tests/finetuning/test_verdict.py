"""The verdict about a fine-tuned retriever and its start."""

import shutil

import pytest

from modeling_condenser.finetuning.finetune import finetune
from modeling_condenser.finetuning.verdict import judge_finetuned


@pytest.mark.parametrize("has_dev", [True, False])
def test_a_fine_tuning_is_judged_against_its_start_if_there_are_dev_queries(
    exported, collection, tmp_path, has_dev, caplog
):
    place = tmp_path / "collection"
    shutil.copytree(collection, place)
    for split in ("train", *(["dev"] if has_dev else [])):
        shutil.copy(collection / "qrels/test.tsv", place / f"qrels/{split}.tsv")
    settings = {
        "encoder": str(exported),
        "collection": str(place),
        "output_dir": str(tmp_path / "run"),
        "max_steps": 2,
        "per_device_train_batch_size": 8,
        "use_cpu": True,
    }
    folder = finetune(settings)
    found = judge_finetuned(settings, folder)
    card = (folder / "README.md").read_text()
    if has_dev:
        assert found is not None
        assert "nDCG@10" in found
        assert f"Against its start it is {found.partition(':')[0]}" in card
        assert judge_finetuned(settings, folder) == found  # which is only read
    else:
        assert found is None
        assert "has no dev queries, so nobody knows whether the fine-tuning helped" in caplog.text
        assert "Against its start" not in card
