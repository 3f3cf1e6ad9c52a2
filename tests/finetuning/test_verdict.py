"""The verdict about a fine-tuned retriever and its start."""

import shutil

import pytest

from modeling_condenser.finetuning.finetune import finetune
from modeling_condenser.finetuning.verdict import judge_finetuned


@pytest.mark.parametrize("grade", ["1", "0", None])
def test_a_fine_tuning_is_judged_against_its_start_if_there_are_dev_queries(
    exported, collection, tmp_path, grade, caplog
):
    place = tmp_path / "collection"
    shutil.copytree(collection, place)
    title, *rows = (collection / "qrels/test.tsv").read_text().splitlines()
    half = sorted({row.split("\t")[0] for row in rows})[::2]
    trained = [row for row in rows if row.split("\t")[0] in half]
    (place / "qrels/train.tsv").write_text("\n".join([title, *trained]))
    if grade is not None:
        judged = ["\t".join([*row.split("\t")[:-1], grade]) for row in {*rows} - {*trained}]
        (place / "qrels/dev.tsv").write_text("\n".join([title, *judged]))
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
    if grade == "1":
        assert found is not None
        assert "nDCG@10" in found
        assert f"Verdict against its start: {found.partition(':')[0]}" in card
        assert judge_finetuned(settings, folder) == found  # which is only read
    else:
        assert found is None
        assert "no dev queries with relevant passages, so nobody knows whether" in caplog.text
        assert "Verdict" not in card
