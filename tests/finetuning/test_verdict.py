"""The verdict about a fine-tuned retriever and its start."""

import shutil

import pytest

from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.evaluation.verdict import judge
from modeling_condenser.files.contract import EncodingContract
from modeling_condenser.finetuning.finetune import finetune, load_dev_queries
from modeling_condenser.finetuning.verdict import judge_finetuned
from modeling_condenser.publishing.export import export_encoder


@pytest.mark.parametrize("grade", ["1", "0", None])
def test_a_fine_tuning_is_judged_against_its_start_if_there_are_dev_queries(
    bert_run, collection, tmp_path, grade, caplog
):
    place = shutil.copytree(collection, tmp_path / "collection")
    if grade is not None:
        judged = (place / "qrels/test.tsv").read_text()
        (place / "qrels/dev.tsv").write_text(judged.replace("\t1\n", f"\t{grade}\n"))
    contract = EncodingContract(8, 24, similarity="cosine")  # which the recipe does not name
    start = export_encoder(bert_run, tmp_path / "start", contract=contract)
    settings = {
        "encoder": str(start),
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
        dev = load_dev_queries(settings)
        expected = str(judge(Retriever(start), Retriever(folder), dev))
        assert found is not None
        assert found.partition(";")[0] == expected.partition(";")[0]
        assert f"Verdict against its start: {found.partition(':')[0]}" in card
        assert judge_finetuned(settings, folder) == found  # which is only read
    else:
        assert found is None
        assert "no dev queries with relevant passages, so nobody knows whether" in caplog.text
        assert "Verdict" not in card
