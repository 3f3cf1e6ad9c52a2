"""The verdict about a fine-tuned retriever and its start."""

import shutil

import pytest

from modeling_condenser.collection.load import load_collection
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.evaluation.verdict import judge
from modeling_condenser.finetuning.finetune import finetune
from modeling_condenser.finetuning.verdict import judge_finetuned
from modeling_condenser.model_files.contract import EncodingContract
from modeling_condenser.publishing.export import export_encoder


@pytest.mark.parametrize("grade", ["1", "0", None])
def test_a_fine_tuning_is_judged_against_its_start_if_there_are_dev_queries(
    bert_run, collection, tmp_path, grade, caplog
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
        judged = judge(Retriever(start), Retriever(folder), load_collection(place, split="dev"))
        assert found is not None
        assert found.partition(";")[0] == str(judged).partition(";")[0]
        assert f"Verdict against its start: {found.partition(':')[0]}" in card
        assert judge_finetuned(settings, folder) == found  # which is only read
    else:
        assert found is None
        assert "no dev queries with relevant passages, so nobody knows whether" in caplog.text
        assert "Verdict" not in card
